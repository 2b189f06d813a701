package listener

import (
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are made by hand.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) { return <-p, nil }

func (p pipes) Close() error { return nil }

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns both ends of a new connection to a limited listener.
func (p pipes) dial(t *testing.T, l net.Listener) (near, far net.Conn) {
	t.Helper()

	client, server := net.Pipe()

	go func() { p <- server }()

	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { client.Close(); far.Close() })

	return client, far
}

// say writes a byte that nobody waits for.
func say(conn net.Conn) { go func() { _, _ = conn.Write([]byte("a")) }() }

// reads waits for a byte and tells when it came.
func reads(conn net.Conn) <-chan error {
	read := make(chan error, 1)

	go func() {
		_, err := conn.Read(make([]byte, 1))
		read <- err
	}()

	return read
}

// Who waits for the other end has no turn, and the one who writes beside a wait does not end it, as HTTP/2 does.
func TestTurnsOfConnections(t *testing.T) {
	t.Parallel()

	for name, rest := range map[string]func(*limitedConn){
		"by reading on": func(c *limitedConn) { reads(c) },
		"by writing":    func(c *limitedConn) { go func() { _, _ = c.Write([]byte("a")) }() },
		"by a request":  func(c *limitedConn) { c.shaken() },
		"by closing":    func(c *limitedConn) { _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				incoming := make(pipes)
				l := limitConnections(incoming, Options{TLS: new(tls.Config), MaxHandshakes: 1, MaxConnections: 10, ReadTimeout: time.Minute})

				near1, far1 := incoming.dial(t, l)
				say(near1)

				if err := <-reads(far1); err != nil {
					t.Fatal(err)
				}

				near2, far2 := incoming.dial(t, l)
				say(near2)
				second := reads(far2)

				go func() { _, _ = near2.Read(make([]byte, 1)) }()

				if _, err := far2.Write([]byte("a")); err != nil {
					t.Fatal(err)
				}

				synctest.Wait()

				select {
				case err := <-second:
					t.Fatalf("a second connection has read (%v) while the first computes", err)
				default:
				}

				first, _ := far1.(*limitedConn)
				rest(first)
				synctest.Wait()

				select {
				case err := <-second:
					if err != nil {
						t.Error(err)
					}
				default:
					t.Error("the turn of the second connection has not come")
				}
			})
		})
	}
}
