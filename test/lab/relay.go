package lab

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

const dialTimeout = 5 * time.Second

// Relay passes connections on to one of its backends, as a Service of Kubernetes does. It can make
// faults. All its methods may be called concurrently.
type Relay struct {
	addr  string
	grace time.Duration

	mu       sync.Mutex
	listener net.Listener
	backends []*backend
	next     int
	links    map[*link]struct{}
	refused  []time.Duration
	freezing bool
	holding  bool
	leader   func() string
	work     sync.WaitGroup
}

type backend struct {
	addr    string
	failing time.Time // since when; zero: it is not
}

// NewRelay returns a relay that listens at addr. A backend that does not answer for the time of
// grace is left out until it does; before, connections that are meant for it fail.
func NewRelay(addr string, grace time.Duration, backends ...string) (*Relay, error) {
	r := &Relay{addr: addr, grace: grace, links: make(map[*link]struct{})}
	for _, b := range backends {
		r.backends = append(r.backends, &backend{addr: b})
	}
	if err := r.Open(); err != nil {
		return nil, err
	}
	return r, nil
}

// NewRelayTo returns a relay that passes each connection on to the address that leader returns then,
// as a Service with one endpoint does. Without an address, a connection fails.
func NewRelayTo(addr string, leader func() string) (*Relay, error) {
	r := &Relay{addr: addr, leader: leader, links: make(map[*link]struct{})}
	err := r.Open()
	return r, err
}

// Open listens again after Refuse.
func (r *Relay) Open() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener != nil {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", r.addr)
	if err != nil {
		return err
	}
	r.listener, r.addr = l, l.Addr().String()
	r.work.Go(func() { r.accept(l) })
	return nil
}

// Addr is where the relay listens.
func (r *Relay) Addr() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addr
}

// Refuse closes the port, and the connections as Cut does, until Open.
func (r *Relay) Refuse() {
	r.mu.Lock()
	if r.listener != nil {
		_ = r.listener.Close() // It is gone either way.
		r.listener = nil
	}
	r.mu.Unlock()
	r.Cut()
}

// Cut closes the connections, except frozen ones.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		if !l.isFrozen() {
			l.close()
		}
	}
}

// Close refuses connections for good, and closes all, also frozen ones. It waits for its
// goroutines.
func (r *Relay) Close() {
	r.Refuse()
	r.mu.Lock()
	for l := range r.links {
		l.close()
	}
	r.mu.Unlock()
	r.work.Wait()
}

// FreezeNew sets whether new connections are frozen from their start.
func (r *Relay) FreezeNew(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freezing = on
}

// Hold sets whether new connections are accepted and lead nowhere.
func (r *Relay) Hold(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holding = on
}

// Failed returns when connections failed because there was no backend for them: see [record.Now].
func (r *Relay) Failed() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.refused)
}

// Freeze drops all bytes of the connections that exist. Neither end notices.
func (r *Relay) Freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		l.freeze()
	}
}

// Sever drops all packets to the relay of the connections that exist, as a cut cable does: TCP at
// both ends gets no acknowledgement. It lasts until the connections end.
func (r *Relay) Sever() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for l := range r.links {
		l.freeze()
		errs = append(errs, sever(l.front), sever(l.back))
	}
	return errors.Join(errs...)
}

// sever attaches a filter to a socket of this process, which takes no packet.
func sever(conn net.Conn) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return errors.ErrUnsupported
	}
	socket, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	takeNothing := []syscall.SockFilter{{Code: syscall.BPF_RET | syscall.BPF_K}}
	err = socket.Control(func(fd uintptr) {
		failed = syscall.AttachLsf(int(fd), takeNothing) //nolint:staticcheck // One instruction earns no module.
	})
	return errors.Join(err, failed)
}

func (r *Relay) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		r.work.Go(func() { r.serve(listener, conn) })
	}
}

func (r *Relay) serve(listener net.Listener, front net.Conn) {
	back := r.dial()
	if back == nil {
		r.mu.Lock()
		r.refused = append(r.refused, record.Now())
		r.mu.Unlock()
		_ = front.Close() // It has to do without.
		return
	}
	l := &link{front: front, back: back}
	if !r.add(listener, l) {
		l.close()
		return
	}
	var copies sync.WaitGroup
	copies.Go(func() { l.copy(back, front) })
	copies.Go(func() { l.copy(front, back) })
	copies.Wait()
	l.close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.links, l)
}

// add keeps a link, unless the port was closed meanwhile.
func (r *Relay) add(listener net.Listener, l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener != listener {
		return false
	}
	r.links[l] = struct{}{}
	if r.freezing {
		l.freeze()
	}
	return true
}

// dial takes the backends in turn.
func (r *Relay) dial() net.Conn {
	r.mu.Lock()
	holding := r.holding
	r.mu.Unlock()
	if holding {
		nowhere, _ := net.Pipe() // Reads and writes block until it is closed.
		return nowhere
	}
	if r.leader != nil {
		conn, err := (&net.Dialer{Timeout: dialTimeout}).Dial("tcp", r.leader())
		if err != nil {
			return nil
		}
		return conn
	}
	for range len(r.backends) {
		b := r.pick()
		conn, err := (&net.Dialer{Timeout: dialTimeout}).Dial("tcp", b.addr)
		if err == nil {
			r.recovered(b)
			return conn
		}
		if !r.leftOut(b) {
			return nil
		}
	}
	return nil
}

func (r *Relay) pick() *backend {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	return r.backends[r.next%len(r.backends)]
}

// leftOut records a failure, and reports whether another backend should be tried.
func (r *Relay) leftOut(b *backend) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.failing.IsZero() {
		b.failing = time.Now()
	}
	return time.Since(b.failing) > r.grace
}

func (r *Relay) recovered(b *backend) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.failing = time.Time{}
}

// link is one connection on its way.
type link struct {
	front, back net.Conn

	mu     sync.Mutex
	frozen bool
}

func (l *link) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = true
}

func (l *link) isFrozen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.frozen
}

func (l *link) close() {
	_ = l.front.Close() // Either may be closed.
	_ = l.back.Close()
}

// copy carries bytes until either end is gone. On a frozen link it continues to read, and the other
// end gets nothing, not even the end of the connection.
func (l *link) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		frozen := l.isFrozen()
		if n > 0 && !frozen {
			if _, failed := to.Write(buffer[:n]); failed != nil {
				err = failed
			}
		}
		if err != nil {
			if !frozen {
				l.close()
			}
			return
		}
	}
}
