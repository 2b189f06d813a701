package httpserver

import (
	"crypto/tls"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// parkAfter is how long net/http keeps an idle connection of HTTP/1.1. A connection that was
	// parked for longer than rare is parked again immediately: its requests are heartbeats.
	parkAfter, rare = 250 * time.Millisecond, time.Second
	readBuffer      = 4 << 10
)

// visit is a connection of HTTP/1.1 over TLS, as long as net/http serves it. net/http keeps buffers
// of 8 KiB and a stack of 8 KiB for a connection that waits for its next request. So it gets a
// timeout when the connection is idle for parkAfter. Its Close then parks the connection, and the
// next byte begins another visit.
type visit struct {
	*tls.Conn

	socket  syscall.RawConn
	parking *parking
	// idle means that the next deadline of net/http belongs to its wait for a request.
	idle atomic.Bool
	// waiting means that net/http waits, until its next deadline. until is the end of the wait.
	waiting atomic.Bool
	until   time.Time
	// rarely means that the connection was parked for longer than rare before its last request.
	rarely bool
	// over means that net/http has no byte of the next request, and TLS has no complete record of
	// that request.
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
		v.until = t
		v.rarely = false
		t = soon
	}

	return v.Conn.SetReadDeadline(t)
}

func (v *visit) Close() error {
	if v.over.Swap(false) && v.parking.parkVisit(v) {
		return nil
	}
	return v.Conn.Close()
}

// parking has a goroutine for each connection, with the smallest stack there is.
type parking struct {
	// resume gives a connection back to net/http.
	resume func(*visit)
	work   *sync.WaitGroup

	mu     sync.Mutex
	parked map[*tls.Conn]struct{}
	closed bool
}

// parkVisit parks the connection of a visit, and returns false after closeParked.
func (p *parking) parkVisit(v *visit) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.closed {
		return false
	}

	p.parked[v.Conn] = struct{}{}
	_ = v.Conn.SetReadDeadline(v.until) // The wait returns its error.
	p.work.Go(func() { p.awaitRequest(v) })

	return true
}

// awaitRequest waits for the first byte of the next request, and ends the time in the parking. It
// runs in the goroutine of a parked connection.
func (p *parking) awaitRequest(v *visit) {
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

// closeParked closes the parked connections, and parks none any more.
func (p *parking) closeParked() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.closed = true
	for c := range p.parked {
		_ = c.SetReadDeadline(time.Now()) // Its goroutine closes it.
	}
}
