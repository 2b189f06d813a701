package simulation

import (
	"context"
	"net"
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

// now returns the present conditions.
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
	up, down := newStream(), newStream()
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

// link is a connection.
type link struct {
	network   *network
	client    string
	server    *server
	process   string // the client's, if it is one that can be killed
	near, far *end
	began     time.Time // bytes take no time in that moment

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
	if w := l.network.now(l.client); !w.silent && (!w.noAnswers || from.client) {
		from.out.end()
	}
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
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
