package chaos_test

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/chaos"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// echo is a server that says what it hears.
func echo(t *testing.T) string {
	t.Helper()

	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	var work sync.WaitGroup

	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}

			work.Go(func() {
				defer conn.Close() // The other end is gone.

				_, _ = io.Copy(conn, conn) // Until then.
			})
		}
	})

	t.Cleanup(func() {
		_ = l.Close() // It listened.
		work.Wait()
	})

	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()

	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = conn.Close() }) // It may be closed.

	return conn
}

// ask sends a byte and returns what became of it.
func ask(t *testing.T, conn net.Conn, patience time.Duration) error {
	t.Helper()

	if _, err := conn.Write([]byte{42}); err != nil {
		return err
	}

	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}

	_, err := io.ReadFull(conn, make([]byte, 1))

	return err
}

func newRelay(t *testing.T, grace time.Duration, backends ...string) *chaos.Relay {
	t.Helper()

	r, err := chaos.NewRelay(rig.Address(rig.FreePort(t)), grace, backends...)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(r.Close)

	return r
}

func TestRelayTurnsBad(t *testing.T) {
	const long, short = 10 * time.Second, 200 * time.Millisecond

	r := newRelay(t, 0, echo(t))
	old := dial(t, r.Addr())

	if err := ask(t, old, long); err != nil {
		t.Errorf("a good relay: %v", err)
	}

	r.Freeze()

	if err := ask(t, old, short); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a frozen connection: %v, want no answer and no end", err)
	}

	if err := ask(t, dial(t, r.Addr()), long); err != nil {
		t.Errorf("a new connection: %v", err)
	}

	r.Refuse()

	if _, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed port: %v, want a refusal", err)
	}

	if err := r.Open(); err != nil {
		t.Fatal(err)
	}

	if err := ask(t, dial(t, r.Addr()), long); err != nil {
		t.Errorf("an open port: %v", err)
	}
}

func TestRelayLeavesOutWhoIsGone(t *testing.T) {
	gone := rig.Address(rig.FreePort(t))
	r := newRelay(t, 200*time.Millisecond, echo(t), gone)
	failures := 0

	// In turn: as long as nobody knows, every second connection fails.
	for range 2 {
		if ask(t, dial(t, r.Addr()), time.Minute) != nil {
			failures++
		}
	}

	if failures != 1 {
		t.Errorf("%d of 2 connections failed, want 1", failures)
	}

	good := 0

	rig.Eventually(t, time.Minute, "the backend that is gone is left out", func() bool {
		if ask(t, dial(t, r.Addr()), time.Minute) != nil {
			good = 0

			return false
		}

		good++

		return good == 3
	})
}
