package lab

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// Relay passes connections on to one of its backends, as a Service of Kubernetes does. It can
// inject faults. All its methods may be called concurrently.
type Relay struct {
	addr   string
	grace  time.Duration
	target func() (net.Conn, error) // nil: the backends in turn
	listen func(addr string) (net.Listener, error)

	mu       sync.Mutex
	listener net.Listener
	backends []*backend
	links    map[*link]struct{}
	refused  []time.Duration
	freezing bool
	holding  bool
	work     sync.WaitGroup
}

type backend struct {
	addr    string
	failing time.Time // since when; zero: it is not
}

// NewRelay returns a relay that listens at addr. A backend that does not answer for the time of
// grace is left out until it answers. Before that, connections to this backend fail.
func NewRelay(addr string, grace time.Duration, backends ...string) (*Relay, error) {
	return newRelay(listenHere, addr, grace, backends)
}

// NewRelayOn is [NewRelay] on an existing listener, so that no other process can take its address.
func NewRelayOn(l net.Listener, grace time.Duration, backends ...string) (*Relay, error) {
	reserved := l
	listen := func(addr string) (net.Listener, error) {
		first := reserved
		reserved = nil
		if first != nil {
			return first, nil
		}
		return listenHere(addr)
	}

	return newRelay(listen, l.Addr().String(), grace, backends)
}

func newRelay(
	listen func(addr string) (net.Listener, error), addr string, grace time.Duration, backends []string,
) (*Relay, error) {
	r := &Relay{addr: addr, grace: grace, listen: listen}
	for _, b := range backends {
		r.backends = append(r.backends, &backend{addr: b})
	}

	err := r.Open()
	return r, err
}

// NewRelayTo returns a relay that passes each connection on to the address that leader returns then,
// as a Service with one endpoint does. Without an address, a connection fails.
func NewRelayTo(addr string, leader func() string) (*Relay, error) {
	return NewRelayFrom(listenHere, addr, leader)
}

// NewRelayFrom is [NewRelayTo] with a function that listens, as in another network.
func NewRelayFrom(listen func(addr string) (net.Listener, error), addr string, leader func() string) (*Relay, error) {
	r := &Relay{addr: addr, target: func() (net.Conn, error) { return dialHere(leader()) }, listen: listen}
	err := r.Open()
	return r, err
}

// NewRelayInto is [NewRelayTo] with a function that connects, as into another network.
func NewRelayInto(addr string, target func() (net.Conn, error)) (*Relay, error) {
	r := &Relay{addr: addr, target: target, listen: listenHere}
	err := r.Open()
	return r, err
}

func dialHere(addr string) (net.Conn, error) {
	return (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp", addr)
}

func listenHere(addr string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
}

// Open listens again after Refuse.
func (r *Relay) Open() error {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.listener != nil {
		return nil
	}

	l, err := r.listen(r.addr)
	if err != nil {
		return err
	}

	r.listener, r.addr = l, l.Addr().String()
	r.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}

			r.work.Go(func() { r.serve(l, conn) })
		}
	})

	return nil
}

// Addr returns the address at which the relay listens.
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
	r.each(func(l *link) {
		if !l.frozen.Load() {
			l.close()
		}
	})
}

// Close refuses connections from now on, and closes all connections, including frozen connections.
// It waits for its goroutines.
func (r *Relay) Close() {
	r.Refuse()
	r.each((*link).close)
	r.work.Wait()
}

// each calls do for the connections that exist.
func (r *Relay) each(do func(*link)) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for l := range r.links {
		do(l)
	}
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

// Failed returns the times at which connections failed because there was no backend for them: see
// [record.Now].
func (r *Relay) Failed() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.refused)
}

// Freeze drops all bytes of the connections that exist. Neither end notices.
func (r *Relay) Freeze() { r.each(func(l *link) { l.frozen.Store(true) }) }

// Sever drops all packets to the relay of the connections that exist, as a cut cable does: TCP at
// both ends gets no acknowledgement. It lasts until the connections end.
func (r *Relay) Sever() (err error) {
	r.each(func(l *link) {
		l.frozen.Store(true)
		err = errors.Join(err, sever(l.front), sever(l.back))
	})
	return err
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

func (r *Relay) serve(listener net.Listener, front net.Conn) {
	back, err := r.dial()
	if err != nil {
		r.mu.Lock()
		r.refused = append(r.refused, record.Now())
		r.mu.Unlock()
		_ = front.Close() // It has to do without.

		return
	}

	l := &link{front: front, back: back}
	defer l.close()

	if !r.add(listener, l) {
		return
	}

	var copies sync.WaitGroup
	copies.Go(func() { l.copy(back, front) })
	copies.Go(func() { l.copy(front, back) })
	copies.Wait()
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
	if r.links == nil {
		r.links = make(map[*link]struct{})
	}

	r.links[l] = struct{}{}
	l.frozen.Store(r.freezing)
	return true
}

var errNoBackend = errors.New("no backend answers")

// dial connects to the leader, or to the next backend.
func (r *Relay) dial() (net.Conn, error) {
	r.mu.Lock()
	holding, inTurn := r.holding, len(r.backends)
	r.mu.Unlock()

	switch {
	case holding:
		nowhere, _ := net.Pipe() // Reads and writes block until it is closed.
		return nowhere, nil
	case r.target != nil:
		return r.target()
	}

	for range inTurn {
		b := r.pick()
		conn, err := dialHere(b.addr)
		if !r.leftOut(b, err) {
			return conn, err
		}
	}

	return nil, errNoBackend
}

// pick takes the backends in turn.
func (r *Relay) pick() *backend {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.backends = append(r.backends[1:], r.backends[0])
	return r.backends[0]
}

// leftOut records whether a backend answered, and reports whether another one should be tried.
func (r *Relay) leftOut(b *backend, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	switch {
	case err == nil:
		b.failing = time.Time{}
	case b.failing.IsZero():
		b.failing = time.Now()
	}

	return err != nil && time.Since(b.failing) > r.grace
}

// link is one connection on its way.
type link struct {
	front, back net.Conn
	frozen      atomic.Bool
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
		frozen := l.frozen.Load()
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
