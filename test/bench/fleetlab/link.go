package main

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
)

// service stands for the Service of the operator: a new connection goes to one of its replicas at
// random, as kube-proxy does it. It is safe for concurrent use.
type service struct{ replicas atomic.Pointer[[]string] }

func (s *service) set(addresses ...string) { s.replicas.Store(&addresses) }

func (s *service) pick() string {
	replicas := *s.replicas.Load()
	return replicas[rand.IntN(len(replicas))]
}

// link is the network of one runtime, with an address of its own. It is safe for concurrent use.
type link struct {
	service *service
	dialer  net.Dialer

	mu    sync.Mutex
	conns map[*linkConn]struct{}
	// dead means that no packet passes, without an error at either end.
	dead bool
}

// newLink returns the link of the runtime with that number.
func newLink(s *service, number int) *link {
	const perByte, first = 250, 1
	from := net.IPv4(127, byte(first+number/perByte/perByte), byte(number/perByte%perByte), byte(first+number%perByte))
	return &link{service: s, dialer: net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}, conns: map[*linkConn]struct{}{}}
}

// dial connects to a replica of the operator, whatever the address is. On a dead link it blocks
// until ctx ends.
func (l *link) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	if l.isDead() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := l.dialer.DialContext(ctx, network, l.service.pick())
	if err != nil {
		return nil, err
	}
	c := &linkConn{Conn: conn, link: l}
	l.mu.Lock()
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	return c, nil
}

func (l *link) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// kill drops all packets from now on.
func (l *link) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
}

// revive lets packets pass again. The old connections are lost.
func (l *link) revive() {
	l.mu.Lock()
	l.dead = false
	l.mu.Unlock()
	l.cut()
}

// cut closes all connections.
func (l *link) cut() {
	l.mu.Lock()
	conns := make([]*linkConn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // Its users notice.
	}
}

// linkConn is a connection of a link.
type linkConn struct {
	net.Conn

	link *link
}

// Read discards the bytes that arrive while the link is cut.
func (c *linkConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.link.isDead() {
			return n, err
		}
	}
}

// Write discards the bytes while the link is dead.
func (c *linkConn) Write(b []byte) (int, error) {
	if c.link.isDead() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Close also removes the connection from its link.
func (c *linkConn) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}
