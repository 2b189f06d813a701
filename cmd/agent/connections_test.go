package main

import (
	"net"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/runtime-watcher/runtime-watcher/core/crowd"
)

// pipes is a listener whose connections are made by hand.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) { return <-p, nil }

func (p pipes) Close() error { return nil }

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns the server's end of a new connection, on which the client has said something, and hears whatever comes.
func (p pipes) dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()

	client, server := net.Pipe()

	go func() { p <- server }()

	far := must(l.Accept())(t)

	t.Cleanup(func() { _ = client.Close(); _ = far.Close() })

	go func() { _, _ = client.Write([]byte("a")) }()
	go func() { _, _ = client.Read(make([]byte, 1)) }()

	return far
}

func read(conn net.Conn) error {
	_, err := conn.Read(make([]byte, 1))

	return err //nolint:wrapcheck // It is that connection's.
}

// Few handshakes compute at once: one that has read does, until it reads or writes again, there is a request, or it is closed.
func TestHandshakesTakeTurns(t *testing.T) {
	t.Parallel()

	for name, rest := range map[string]func(net.Conn){
		"by reading on": func(c net.Conn) { go func() { _ = read(c) }() },
		"by writing":    func(c net.Conn) { _, _ = c.Write([]byte("a")) },
		"by a request":  func(c net.Conn) { connState(c, http.StateActive) },
		"by closing":    func(c net.Conn) { _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			synctest.Test(t, func(t *testing.T) {
				incoming := make(pipes)
				l := &limited{Listener: incoming, crowd: crowd.New(9), dropped: func(string) {}, turns: crowd.NewTurns(1)}
				first, second, third := incoming.dial(t, l), incoming.dial(t, l), incoming.dial(t, l)

				if err := read(first); err != nil {
					t.Fatal(err)
				}

				done, hungUp := make(chan error, 1), make(chan error, 1)

				go func() { done <- read(second) }()

				synctest.Wait()

				go func() { hungUp <- read(third) }()

				synctest.Wait()

				if len(done) > 0 {
					t.Fatal("a second connection has read while the first computes")
				}

				_ = third.Close() // It never fails.

				if err := <-hungUp; err == nil {
					t.Error("who was closed while it waited has read")
				}

				rest(first)

				if err := <-done; err != nil {
					t.Error(err)
				}

				connState(second, http.StateActive)

				if fourth := incoming.dial(t, l); read(fourth) != nil {
					t.Error("a place was lost")
				}
			})
		})
	}
}

// hasty is a connection that is closed when something has been read from it, before anybody knows of that.
type hasty struct {
	net.Conn

	close func()
}

func (h *hasty) Read(b []byte) (int, error) {
	defer h.close()

	return h.Conn.Read(b) //nolint:wrapcheck // It is that connection.
}

func TestWhoIsClosedMeanwhileTakesNoTurn(t *testing.T) {
	t.Parallel()

	incoming := make(pipes)
	l := &limited{Listener: incoming, crowd: crowd.New(9), dropped: func(string) {}, turns: crowd.NewTurns(1)}
	gone := incoming.dial(t, l)

	c, _ := gone.(*limitedConn)
	c.Conn = &hasty{c.Conn, func() { _ = gone.Close() }}
	_ = read(gone) // Whether it has read something, nobody asks any more.

	if err := read(incoming.dial(t, l)); err != nil {
		t.Error("its turn was not given back")
	}
}
