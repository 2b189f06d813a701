package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// pipes returns a server with one slot for handshakes, and a function that opens a connection to
// it. The client of that sends text and reads everything.
func pipes(t *testing.T, text string) (*Server, func() *conn) {
	t.Helper()
	s := newServer(nil, http.NotFoundHandler(), Options{TLS: new(tls.Config), MaxHandshakes: 1}.withDefaults())
	return s, func() *conn {
		near, far := net.Pipe()
		c := s.admitConn(far)
		t.Cleanup(func() { _ = near.Close(); _ = c.Close() })
		go func() { _, _ = io.WriteString(near, text) }()
		go func() { _, _ = io.Copy(io.Discard, near) }()

		return c
	}
}

func readByte(c net.Conn) error {
	_, err := c.Read(make([]byte, 1))
	return err
}

func reads(c net.Conn) <-chan error {
	read := make(chan error, 1)
	go func() { read <- readByte(c) }()
	return read
}

// A handshake has its slot from a Read to the next call that may wait for the client.
func TestHandshakeReleasesItsSlot(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]func(*Server, *conn){
		"by reading on": func(_ *Server, c *conn) { reads(c) },
		"by writing":    func(_ *Server, c *conn) { _, _ = c.Write([]byte("a")) },
		"by a request":  func(s *Server, c *conn) { s.connState(c, http.StateActive) },
		"by closing":    func(_ *Server, c *conn) { _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, open := pipes(t, "a")
				first := open()
				second := open()
				third := open()
				check(t, readByte(first))
				read := reads(second)
				synctest.Wait()
				closed := reads(third)
				synctest.Wait()

				// A write beside the wait, as in HTTP/2, ends nothing.
				if _, err := second.Write([]byte("a")); err != nil {
					t.Fatal(err)
				}
				if len(read) > 0 {
					t.Fatal("a second connection has read while the first computes")
				}

				_ = third.Close()
				if err := <-closed; !errors.Is(err, net.ErrClosed) {
					t.Errorf("a connection that was closed while it waited returned %v, want %v", err, net.ErrClosed)
				}

				release(s, first)
				check(t, <-read)
				second.endHandshake()

				if err := readByte(open()); err != nil {
					t.Errorf("the slot was lost: %v", err)
				}
			})
		})
	}
}

func TestDeadlineBoundsTheWaitForASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const patience = time.Minute
		_, open := pipes(t, "a")
		first := open()
		second := open()
		check(t, readByte(first))
		check(t, second.SetDeadline(time.Now().Add(patience)))

		began := time.Now()
		if err := readByte(second); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != patience {
			t.Errorf("error %v after %v, want %v after %v", err, time.Since(began), os.ErrDeadlineExceeded, patience)
		}

		first.endHandshake()
		if err := readByte(open()); err != nil {
			t.Errorf("the slot was lost: %v", err)
		}
	})
}

// closing is a connection that is closed just after it was read.
type closing struct {
	net.Conn

	close func()
}

func (c *closing) Read(b []byte) (int, error) {
	defer c.close()
	return c.Conn.Read(b)
}

func TestCloseDuringReadTakesNoSlot(t *testing.T) {
	t.Parallel()

	_, open := pipes(t, "a")
	c := open()
	c.Conn = &closing{c.Conn, func() { _ = c.Close() }}
	_ = readByte(c) // Its result does not matter.

	if err := readByte(open()); err != nil {
		t.Errorf("the slot was lost: %v", err)
	}
}

// A paused connection reads nothing until its pause is over, or until it is closed.
func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, open := pipes(t, "ab")
		c := open()
		s.connState(c, http.StateActive)
		ctx := withConn(t.Context(), c)
		PauseReads(ctx, time.Minute)

		began := time.Now()
		if err := readByte(c); err != nil || time.Since(began) != time.Minute {
			t.Errorf("read after %v (%v), want 1m", time.Since(began), err)
		}

		PauseReads(ctx, time.Hour)
		read := reads(c)
		synctest.Wait()
		_ = c.Close()
		check(t, <-read)

		if took := time.Since(began); took != time.Minute {
			t.Errorf("a closed connection was paused until %v, want no longer", took)
		}
	})
}

// TLS writes within Read, to answer a KeyUpdate. A client that does not read must not stop it.
func TestWriteEndsWithoutADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()

		s, _ := pipes(t, "")
		c := s.admitConn(far)
		check(t, c.SetDeadline(time.Time{}))
		if _, err := c.Write([]byte("a")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("error %v, want %v", err, os.ErrDeadlineExceeded)
		}
	})
}

// A request of another server has no connection of ours. Both calls must leave its connection as it
// is: open, readable and without an origin here.
func TestRequestOfAnotherServer(t *testing.T) {
	t.Parallel()

	type use struct {
		pause  func(ctx context.Context)
		assign func(ctx context.Context) <-chan struct{}
	}
	ours := use{
		func(ctx context.Context) { PauseReads(ctx, time.Hour) },
		func(ctx context.Context) <-chan struct{} { return SetOrigin(ctx, "elsewhere") },
	}

	// The first control shows that a request of this server has a connection which the calls find.
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()

		s, _ := pipes(t, "")
		c := s.admitConn(far)
		defer c.Close()

		if ours.assign(withConn(t.Context(), c)) == nil {
			t.Error("control: a request of this server has no channel, want that of its connection")
		}
	})

	for name, of := range map[string]func(t *testing.T, conn net.Conn) context.Context{
		"no connection": func(t *testing.T, _ net.Conn) context.Context { t.Helper(); return t.Context() },
		"a foreign one": func(t *testing.T, conn net.Conn) context.Context { t.Helper(); return withConn(t.Context(), conn) },
	} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			defer far.Close()

			ctx := of(t, far)
			ours.pause(ctx)
			if closed := ours.assign(ctx); closed != nil {
				t.Errorf("%s: a channel for the end of a connection that is not ours, want nil", name)
			}

			go func() { _, _ = near.Write([]byte("a")) }()

			began := time.Now()
			n, err := far.Read(make([]byte, 1))
			if n != 1 || err != nil || time.Since(began) != 0 {
				t.Errorf("%s: read %d bytes after %v with error %v, want one immediately", name, n, time.Since(began), err)
			}
		})
	}
}
