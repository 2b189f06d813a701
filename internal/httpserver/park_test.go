package httpserver

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"
)

const getRequest = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

// parkingLot is a server. Its answers number the requests of a connection.
type parkingLot struct {
	*running

	client *tls.Config
	// closed has the channels of the first requests.
	closed chan (<-chan struct{})
}

func newParkingLot(t *testing.T, opts Options) *parkingLot {
	t.Helper()

	ca := newAuthority(t)
	opts.TLS = &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}}
	closed := make(chan (<-chan struct{}), 10)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case closed <- SetOrigin(r.Context(), "runtime a"):
		default:
		}

		kept := Kept(r.Context())
		number, _ := kept.Load().(int)
		kept.Store(number + 1)

		if r.TLS == nil || !r.TLS.HandshakeComplete {
			t.Error("a request has no state of TLS")
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Errorf("body: %v", err)
		}

		w.Header().Set("Number", strconv.Itoa(number+1))
	})

	return &parkingLot{run(t, handler, opts), &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"}, closed}
}

// connect returns a connection, and a function that wants its next answer to have that number.
func (p *parkingLot) connect(t *testing.T) (conn *tls.Conn, answered func(number string)) {
	t.Helper()

	conn = tls.Client(p.dial(t), p.client)
	reader := bufio.NewReader(conn)
	return conn, func(number string) {
		t.Helper()
		answer := must(http.ReadResponse(reader, nil))(t)
		if got := answer.Header.Get("Number"); got != number {
			t.Fatalf("answer %q, want %q", got, number)
		}
	}
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// A request may come in any pieces, with pauses in which its connection is parked, or nearly.
func TestRequestsAroundAPause(t *testing.T) {
	t.Parallel()
	post := "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + strconv.Itoa(len(getRequest)) + "\r\n\r\n"
	for name, pieces := range map[string][]string{
		"whole requests":                        {getRequest, getRequest},
		"the beginning of a request":            {getRequest, getRequest[:1], getRequest[1:3], getRequest[3:]},
		"a request beside another's beginning":  {getRequest + getRequest[:3], getRequest[3:]},
		"a request beside another's first byte": {getRequest + getRequest[:1], getRequest[1:]},
		"a request beside another's header":     {getRequest + post, getRequest},
	} {
		for _, pause := range []time.Duration{2 * parkAfter / 3, 3 * parkAfter / 2, rare + 3*parkAfter/2} {
			t.Run(name+" "+pause.String(), func(t *testing.T) {
				t.Parallel()

				conn, answered := newParkingLot(t, Options{}).connect(t)
				for _, piece := range pieces {
					send(t, conn, piece)
					<-time.After(pause)
				}

				answered("1")
				answered("2")
			})
		}
	}
}

// deadlineConn keeps the last deadline.
type deadlineConn struct {
	net.Conn

	deadline time.Time
}

// SetReadDeadline implements [net.Conn].
func (c *deadlineConn) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return c.Conn.SetReadDeadline(t)
}

// A connection that was parked for long is parked again immediately, and only once.
func TestRareRequests(t *testing.T) {
	t.Parallel()
	for _, rest := range []time.Duration{parkAfter, rare + parkAfter} {
		t.Run(rest.String(), func(t *testing.T) {
			t.Parallel()

			bound := must(net.Listen("tcp", "127.0.0.1:0"))(t)
			defer bound.Close()

			other := must(net.Dial("tcp", bound.Addr().String()))(t)
			defer other.Close()

			end := must(bound.Accept())(t)
			defer end.Close()

			resumed := make(chan *visit, 1)
			kept := &deadlineConn{Conn: end}
			var work sync.WaitGroup
			p := &parking{resume: func(v *visit) { resumed <- v }, work: &work, parked: map[*tls.Conn]struct{}{}}
			p.parkVisit(&visit{Conn: tls.Server(kept, nil), socket: socketOf(end), parking: p})
			<-time.After(rest)
			send(t, other, "a")
			v := <-resumed

			for round, soon := range []bool{rest > rare, false} {
				v.idle.Store(true)
				check(t, v.SetReadDeadline(time.Now().Add(time.Hour)))

				if got := time.Until(kept.deadline) <= 0; got != soon {
					t.Errorf("request %d: parked at once is %t, want %t", round, got, soon)
				}
			}
		})
	}
}

// What ends an idle connection ends a parked one, and frees its slot.
func TestParkedConnectionsEnd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opts Options
		end  func(t *testing.T, lot *parkingLot, parked *tls.Conn)
	}{
		"idle timeout": {Options{IdleTimeout: 2 * parkAfter}, func(*testing.T, *parkingLot, *tls.Conn) {}},
		"shutdown":     {Options{}, func(_ *testing.T, lot *parkingLot, _ *tls.Conn) { lot.cancel() }},
		"displacement": {Options{MaxConnections: 1}, func(t *testing.T, lot *parkingLot, _ *tls.Conn) {
			t.Helper()

			another, _ := lot.connect(t)
			t.Cleanup(func() { _ = another.Close() })
			go func() { _ = another.Handshake() }()
		}},
		"end of the client": {Options{}, func(_ *testing.T, _ *parkingLot, parked *tls.Conn) { _ = parked.NetConn().(*net.TCPConn).CloseWrite() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			lot := newParkingLot(t, test.opts)
			conn, answered := lot.connect(t)
			send(t, conn, getRequest)
			answered("1")
			<-time.After(3 * parkAfter / 2)

			closed := <-lot.closed
			if test.opts.IdleTimeout == 0 && isClosed(closed) {
				t.Error("a parked connection is reported as closed")
			}

			test.end(t, lot, conn)
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Error("the server has sent a byte, want it to close the connection")
			}

			check(t, lot.stop())
			if open := lot.limiter.len(); open != 0 {
				t.Errorf("%d slots are taken, want none", open)
			}
			if !isClosed(closed) {
				t.Error("the connection is not reported as closed")
			}
		})
	}
}

func isClosed(closed <-chan struct{}) bool {
	select {
	case <-closed:
		return true
	default:
		return false
	}
}
