package simulation

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// network connects hosts in memory. Each client has link conditions of its own.
type network struct {
	mu         sync.Mutex
	hosts      map[string]func() *server
	conditions map[string]*conditions
	links      map[*link]struct{}
	held       map[string]time.Time // process → bytes arrive no earlier
	ports      int
}

// conditions is the state of the links of a client.
type conditions struct {
	latency   time.Duration
	refuse    bool  // dials fail
	silent    bool  // both directions drop all bytes: half open
	noAnswers bool  // answers are dropped
	cutAfter  int64 // a new connection breaks after so many bytes; 0: never
}

func newNetwork() *network {
	return &network{
		hosts:      make(map[string]func() *server),
		conditions: make(map[string]*conditions),
		links:      make(map[*link]struct{}),
		held:       make(map[string]time.Time),
	}
}

// serve makes a host answer with the server that choose returns, nil for none.
func (n *network) serve(host string, choose func() *server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[host] = choose
}

// change changes the conditions of a client, for existing connections, too.
func (n *network) change(client string, edit func(*conditions)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	edit(n.of(client))
}

func (n *network) of(client string) *conditions {
	w := n.conditions[client]
	if w == nil {
		w = &conditions{latency: time.Millisecond}
		n.conditions[client] = w
	}
	return w
}

func (n *network) now(client string) conditions {
	n.mu.Lock()
	defer n.mu.Unlock()
	return *n.of(client)
}

// hold delays all bytes from and to a process until a time.
func (n *network) hold(process string, until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held[process] = until
}

// latency returns how long bytes on a link are under way.
func (n *network) latency(l *link) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.began.Equal(time.Now()) {
		return 0
	}
	return max(n.of(l.client).latency, time.Until(n.held[l.process]))
}

// reset breaks the connections that match.
func (n *network) reset(match func(*link) bool) {
	n.mu.Lock()
	var broken []*link
	for l := range n.links {
		if match(l) {
			broken = append(broken, l)
		}
	}
	n.mu.Unlock()
	for _, l := range broken {
		l.reset()
	}
}

// dial connects a client with a host.
func (n *network) dial(ctx context.Context, client, host string) (net.Conn, error) {
	w := n.now(client)
	if w.silent {
		return nil, awaitTimeout(ctx)
	}
	n.mu.Lock()
	choose := n.hosts[host]
	n.mu.Unlock()
	if w.refuse || choose == nil {
		return nil, w.refused()
	}
	to := choose()
	if to == nil {
		return nil, w.refused()
	}
	return n.connect(client, to, w)
}

// refused returns the error of a dial after the answer has come back.
func (w *conditions) refused() error {
	sleep(2 * w.latency)
	return refused()
}

func refused() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

const dialTimeout = 5 * time.Second

func awaitTimeout(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	<-ctx.Done()
	return &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
}

func (n *network) connect(client string, to *server, w conditions) (net.Conn, error) {
	n.mu.Lock()
	n.ports++
	port := n.ports
	n.mu.Unlock()
	up := newStream()
	down := newStream()
	l := &link{network: n, client: client, server: to, left: w.cutAfter, limited: w.cutAfter > 0}
	here := &net.TCPAddr{IP: addressOf(client), Port: 1024 + port%60000}
	there := &net.TCPAddr{IP: net.IPv4(10, 9, 0, 1), Port: 443}
	l.near = &end{link: l, in: down, out: up, local: here, remote: there, client: true}
	l.far = &end{link: l, in: up, out: down, local: there, remote: here}
	n.mu.Lock()
	n.links[l] = struct{}{}
	n.mu.Unlock()
	if !to.offer(l.far) {
		l.reset()
		return nil, refused()
	}
	return l.near, nil
}

// addressOf returns an address that is the same for the same client.
func addressOf(client string) net.IP {
	sum := byte(0)
	for i := range len(client) {
		sum = sum*31 + client[i]
	}
	return net.IPv4(10, 1, 0, sum)
}

// link is a connection between a client and a server of the simulation. mu guards the fields below
// it.
type link struct {
	network   *network
	client    string
	server    *server
	process   string // the client's, if it is one that can be killed
	near, far *end
	began     time.Time // bytes take no time in that moment
	unheard   bool      // an end closed, and the other one did not learn of it

	mu      sync.Mutex
	left    int64 // bytes until it breaks
	limited bool
}

// carry moves bytes from one end to the other, as the conditions allow.
func (l *link) carry(from *end, b []byte) error {
	w := l.network.now(l.client)
	if w.silent || w.noAnswers && !from.client {
		return nil
	}
	rest, cut := l.spend(b)
	if len(rest) > 0 {
		from.out.write(rest, l.network.latency(l))
	}
	if cut {
		l.reset()
		return syscall.ECONNRESET
	}
	return nil
}

// spend returns the bytes that pass before the link breaks.
func (l *link) spend(b []byte) (passing []byte, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.limited {
		return b, false
	}
	if int64(len(b)) < l.left {
		l.left -= int64(len(b))
		return b, false
	}
	return b[:l.left], true
}

// hangUp closes the direction of an end. The other end does not learn of it in silence.
func (l *link) hangUp(from *end) {
	w := l.network.now(l.client)
	heard := !w.silent && (!w.noAnswers || from.client)
	if heard {
		from.out.end()
	}
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	l.unheard = l.unheard || !heard
	if from.client {
		delete(l.network.links, l)
	}
}

func (l *link) reset() {
	l.near.in.reset()
	l.far.in.reset()
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	delete(l.network.links, l)
}

// server is the listening side of a host. It implements [net.Listener].
type server struct {
	name    string
	backlog chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newServer(name string) *server {
	return &server{name: name, backlog: make(chan net.Conn, 128), closed: make(chan struct{})}
}

func (s *server) offer(conn net.Conn) bool {
	select {
	case <-s.closed:
		return false
	default:
	}
	select {
	case s.backlog <- conn:
		return true
	default:
		return false
	}
}

// Accept implements [net.Listener].
func (s *server) Accept() (net.Conn, error) {
	select {
	case conn := <-s.backlog:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (s *server) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// Addr implements [net.Listener].
func (s *server) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 9, 0, 1), Port: 443} }

// stream is one direction of a connection. It is not bounded: a write never blocks.
type stream struct {
	mu       sync.Mutex
	changed  *sync.Cond
	chunks   []chunk
	arrival  time.Time // of the newest chunk
	deadline time.Time // of reads
	ended    bool      // the writer closed: EOF after the chunks
	broken   bool
}

// chunk is the data of one write, and the time at which it arrives.
type chunk struct {
	data []byte
	at   time.Time
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// change changes the stream, and wakes the reader.
func (s *stream) change(edit func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit()
	s.changed.Broadcast()
}

// wakeAt wakes the reader later.
func (s *stream) wakeAt(at time.Time) {
	if wait := time.Until(at); wait > 0 {
		time.AfterFunc(wait, func() { s.change(func() {}) })
	}
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if n, err := s.take(b); n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		s.changed.Wait()
	}
}

// take returns 0 and nil when no chunk has arrived.
func (s *stream) take(b []byte) (int, error) {
	now := time.Now()
	switch {
	case s.broken:
		return 0, syscall.ECONNRESET
	case !s.deadline.IsZero() && !now.Before(s.deadline):
		return 0, os.ErrDeadlineExceeded
	case len(s.chunks) > 0 && !now.Before(s.chunks[0].at):
		return s.takeChunk(b), nil
	case len(s.chunks) == 0 && s.ended:
		return 0, io.EOF
	default:
		return 0, nil
	}
}

func (s *stream) takeChunk(b []byte) int {
	first := &s.chunks[0]
	n := copy(b, first.data)
	if first.data = first.data[n:]; len(first.data) == 0 {
		s.chunks = s.chunks[1:]
	}
	return n
}

// write makes data arrive after the latency, in the order of writes.
func (s *stream) write(data []byte, latency time.Duration) {
	s.change(func() {
		if at := time.Now().Add(latency); at.After(s.arrival) {
			s.arrival = at
		}
		s.chunks = append(s.chunks, chunk{append([]byte(nil), data...), s.arrival})
		s.wakeAt(s.arrival)
	})
}

func (s *stream) end() { s.change(func() { s.ended = true }) }

func (s *stream) reset() { s.change(func() { s.broken = true }) }

func (s *stream) isBroken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

func (s *stream) setDeadline(at time.Time) {
	s.change(func() { s.deadline = at })
	if !at.IsZero() {
		s.wakeAt(at)
	}
}

// end is one end of a link. It implements [net.Conn].
type end struct {
	link          *link
	in, out       *stream
	local, remote net.Addr
	client        bool
	once          sync.Once
}

func (e *end) Read(b []byte) (int, error) { return e.in.read(b) }

func (e *end) Write(b []byte) (int, error) {
	e.out.mu.Lock()
	gone := e.out.broken || e.out.ended
	e.out.mu.Unlock()
	if gone {
		return 0, syscall.EPIPE
	}
	return len(b), e.link.carry(e, b)
}

func (e *end) Close() error {
	e.once.Do(func() {
		e.link.hangUp(e)
		e.in.reset()
	})
	return nil
}

// SetKeepAliveConfig breaks this end when the network was silent for as long as the probes last.
func (e *end) SetKeepAliveConfig(c net.KeepAliveConfig) error {
	e.probe(c.Interval, int(c.Idle/c.Interval)+c.Count)
	return nil
}

// isRefused reports whether a probe is answered that there is no such connection any more.
func (l *link) isRefused() bool {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	return l.unheard && !l.network.of(l.client).silent
}

// probe fails after that many probes without an answer in a row.
func (e *end) probe(every time.Duration, left int) {
	most := left
	var again func()
	again = func() {
		if left = max(left-1, 0); !e.link.network.now(e.link.client).silent {
			left = most
		}
		switch {
		case e.in.isBroken():
		case left == 0, e.link.isRefused():
			e.in.reset()
		default:
			time.AfterFunc(every, again)
		}
	}
	time.AfterFunc(every, again)
}

func (e *end) LocalAddr() net.Addr  { return e.local }
func (e *end) RemoteAddr() net.Addr { return e.remote }

func (e *end) SetDeadline(t time.Time) error { return e.SetReadDeadline(t) }

func (e *end) SetReadDeadline(t time.Time) error {
	e.in.setDeadline(t)
	return nil
}

// SetWriteDeadline does nothing, as a write never blocks.
func (e *end) SetWriteDeadline(time.Time) error { return nil }
