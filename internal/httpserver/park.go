package httpserver

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// parkAfter is how long net/http keeps an idle connection of HTTP/1.1. A connection that was
	// parked for longer than rare is parked again at once: its requests are heartbeats.
	parkAfter, rare = 250 * time.Millisecond, time.Second
	// readBuffer is the size of the buffer of net/http for reads.
	readBuffer = 4 << 10
)

// visit is a connection of HTTP/1.1 over TLS, as long as net/http serves it. net/http keeps buffers
// of 8 KiB and a stack of 8 KiB for a connection that waits for its next request. So it gets a
// timeout when the connection is idle for parkAfter. Its Close then parks the connection, and the
// next byte begins another visit.
type visit struct {
	*tls.Conn

	socket  syscall.RawConn
	parking *parking
	// idle means that the next deadline of net/http is that of its wait for a request.
	idle atomic.Bool
	// waiting means that net/http waits, until its next deadline. until is the end of the wait.
	waiting atomic.Bool
	until   time.Time
	// rarely means that the connection was parked for longer than rare before its last request.
	rarely bool
	// over means that net/http has no byte of the next request, and TLS has no whole record of it.
	over atomic.Bool
}

func (v *visit) Read(b []byte) (int, error) {
	waiting := v.waiting.Load()
	if waiting && len(b) < readBuffer { // The buffer has a byte of the next request.
		_ = v.SetReadDeadline(v.until) // Read returns its error.
		waiting = false
	}
	n, err := v.Conn.Read(b)
	if waiting && n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		v.over.Store(true)
	}
	return n, err
}

// SetReadDeadline implements [net.Conn]. net/http calls it before it waits for the next request,
// and again before it reads one, which may be in its buffer.
func (v *visit) SetReadDeadline(t time.Time) error {
	soon := time.Now()
	if !v.rarely {
		soon = soon.Add(parkAfter)
	}
	waiting := v.idle.Swap(false) && soon.Before(t)
	v.waiting.Store(waiting)
	if waiting {
		v.until, t, v.rarely = t, soon, false
	}
	return v.Conn.SetReadDeadline(t)
}

func (v *visit) Close() error {
	if v.over.Swap(false) && v.parking.add(v) {
		return nil
	}
	return v.Conn.Close()
}

// parking has the connections that wait for their next request outside net/http. Each has a
// goroutine, with the smallest stack there is.
type parking struct {
	// resume gives a connection back to net/http.
	resume func(*visit)
	// work counts the goroutines.
	work *sync.WaitGroup

	mu     sync.Mutex
	parked map[*tls.Conn]struct{}
	closed bool
}

// add parks the connection of a visit, and returns false after close.
func (p *parking) add(v *visit) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.parked[v.Conn] = struct{}{}
	_ = v.Conn.SetReadDeadline(v.until) // The wait returns its error.
	p.work.Go(func() { p.wait(v) })
	return true
}

// wait ends when the connection has data, or closes it.
func (p *parking) wait(v *visit) {
	began := time.Now()
	err := awaitData(v.socket)
	v.rarely = time.Since(began) > rare
	p.mu.Lock()
	delete(p.parked, v.Conn)
	p.mu.Unlock()
	if err != nil {
		_ = v.Conn.Close() // The timeout, or the end of the server, is the reason.
		return
	}
	p.resume(v)
}

// close closes the parked connections, and does not wait.
func (p *parking) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for c := range p.parked {
		_ = c.SetReadDeadline(time.Now()) // Its goroutine closes it.
	}
}

// below returns the connection that TLS uses, or the given one.
func below(outer net.Conn) net.Conn {
	if encrypted, ok := outer.(interface{ NetConn() net.Conn }); ok {
		return encrypted.NetConn()
	}
	return outer
}
