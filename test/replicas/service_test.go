package replicas_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// service stands in for kube-proxy and a Service with one endpoint: it leads each new connection to
// the present leader.
type service struct {
	listener net.Listener
	leader   func() string

	running sync.WaitGroup
	mu      sync.Mutex
	open    map[net.Conn]bool
}

func startService(t *testing.T, leader func() string) *service {
	t.Helper()
	s := &service{
		listener: must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")), leader: leader,
		open: make(map[net.Conn]bool),
	}
	s.running.Go(s.accept)
	t.Cleanup(s.close)
	return s
}

func (s *service) addr() string { return s.listener.Addr().String() }

func (s *service) accept() {
	for {
		front, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.running.Go(func() { s.connect(front) })
	}
}

func (s *service) connect(front net.Conn) {
	defer front.Close() // It ends in any case.
	leader := s.leader()
	if leader == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	back, err := new(net.Dialer).DialContext(ctx, "tcp", leader)
	if err != nil {
		return
	}
	defer back.Close() // The same.
	if !s.add(front, back) {
		return
	}
	defer s.remove(front, back)
	var copying sync.WaitGroup
	copying.Go(func() { transfer(back, front) })
	transfer(front, back)
	copying.Wait()
}

// transfer closes both ends when one is closed.
func transfer(to, from net.Conn) {
	_, _ = io.Copy(to, from) // It ends with an error of either end.
	_ = errors.Join(to.Close(), from.Close())
}

func (s *service) add(conns ...net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range conns {
		if s.open == nil {
			return false
		}
		s.open[conn] = true
	}
	return true
}

func (s *service) remove(conns ...net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range conns {
		delete(s.open, conn)
	}
}

func (s *service) close() {
	_ = s.listener.Close() // The test is over.
	s.mu.Lock()
	for conn := range s.open {
		_ = conn.Close() // The same.
	}
	s.open = nil
	s.mu.Unlock()
	s.running.Wait()
}
