package httpserver

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// addressed is a connection from an address of its own.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1} }

// The callbacks run inside the slot of the handshake, so that few verify certificates at once.
// However many begin, a client of another address hardly waits.
func TestHandshakesAreFair(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(opts *Options, verify func()){
		"of TLS": func(opts *Options, verify func()) {
			opts.TLS.VerifyConnection = func(tls.ConnectionState) error { verify(); return nil }
		},
		"of the server": func(opts *Options, verify func()) {
			opts.Handshaken = func(*tls.ConnectionState, *atomic.Value) { verify() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testFairness(t, set) })
		})
	}
}

func testFairness(t *testing.T, set func(opts *Options, verify func())) {
	t.Helper()

	const clients, slots, work = 19, 2, time.Second
	var (
		inside, most atomic.Int64
		group        sync.WaitGroup
		ca, incoming = newAuthority(t), newNetwork()
		began        = time.Now()
	)

	opts := Options{
		Listener: incoming, MaxHandshakes: slots, ReadHeaderTimeout: time.Minute,
		TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}, ClientAuth: tls.RequestClientCert},
	}
	set(&opts, func() {
		most.Store(max(most.Load(), inside.Add(1)))
		<-time.After(work)
		inside.Add(-1)
	})

	r := run(t, noContent, opts)
	exchange := func(near, far net.Conn) {
		incoming.accepted <- far
		client := tls.Client(near, &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"})
		if err := client.HandshakeContext(t.Context()); err != nil {
			t.Error(err)
		}

		_, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		_, _ = io.Copy(io.Discard, client)
	}

	for range clients {
		group.Go(func() { exchange(net.Pipe()) })
	}

	synctest.Wait() // They have begun.
	near, far := net.Pipe()
	exchange(near, addressed{far})

	// The client needs a slot to begin, to be verified, and for its header. Each is among the next
	// four slots, because kinds of work alternate, and origins. Four slots take twice the time of
	// work. Without fairness the client is the last, after ten times.
	if waited, want := time.Since(began), 7*work; waited > want {
		t.Errorf("a client of another address is answered after %v, want at most %v", waited, want)
	}

	group.Wait()
	if all := (clients + 1) / slots * work; most.Load() != slots || time.Since(began) != all {
		t.Errorf("%d callbacks at once, and all took %v, want %d and %v", most.Load(), time.Since(began), slots, all)
	}

	check(t, r.stop())
}

// Clients give up a handshake that takes too long, and begin again. Work for those that have left
// would delay the others until they give up, too.
func TestNoHandshakeForAClientThatLeft(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t)
	begun := make(chan string, 3)
	proceed := make(chan struct{})
	leaf := ca.issue(t)
	r := run(t, noContent, Options{MaxHandshakes: 1, TLS: &tls.Config{
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			begun <- hello.ServerName
			<-proceed
			return &leaf, nil
		},
	}})

	var group sync.WaitGroup
	t.Cleanup(group.Wait)
	// connect begins a handshake, and waits until that many handshakes wait for a slot.
	connect := func(name string, waiters int) *net.TCPConn {
		conn, _ := r.dial(t).(*net.TCPConn)
		group.Go(func() {
			_ = tls.Client(conn, &tls.Config{RootCAs: ca.Pool(), ServerName: name}).HandshakeContext(t.Context())
		})

		for r.queue.waiting() < waiters {
			runtime.Gosched()
		}
		return conn
	}

	connect("first.example", 0)
	if got := <-begun; got != "first.example" {
		t.Fatal(got)
	}

	left := connect("left.example", 1)
	connect("last.example", 2)
	// It tells the server at once, where Close waits for the reader.
	check(t, left.CloseWrite())
	close(proceed)

	if got := <-begun; got != "last.example" {
		t.Errorf("the server began the handshake of %s, want last.example", got)
	}
}

// waiting returns the number of handshakes that wait to begin.
func (q *fairQueue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()

	n := 0
	for _, waiters := range q.rings[fresh].waiters {
		n += len(waiters)
	}

	return n
}

// exhausted is a listener that cannot accept at first.
type exhausted struct {
	net.Listener

	failures int
}

func (e *exhausted) Accept() (net.Conn, error) {
	if e.failures == 0 {
		return e.Listener.Accept()
	}

	e.failures--
	return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
}

func TestErrorsOfAcceptingAreLogged(t *testing.T) {
	t.Parallel()

	var lines log
	bound := must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	r := run(t, noContent, Options{Listener: &exhausted{bound, 3}, Logger: newLogger(&lines)})
	if status, err := r.get(t, newClient(t, nil)); err != nil || status != http.StatusNoContent {
		t.Errorf("answer %d (%v), want 204 when the server can accept again", status, err)
	}

	have := lines.lines()
	if len(have) != 1 || !strings.Contains(have[0], "level=WARN") || !strings.Contains(have[0], "too many open files") {
		t.Errorf("log %v, want one warning with the error", have)
	}
}

// hoarder keeps its connections, so that no finalizer closes one.
type hoarder struct {
	net.Listener

	kept []net.Conn
}

func (h *hoarder) Accept() (net.Conn, error) {
	conn, err := h.Listener.Accept()
	h.kept = append(h.kept, conn)
	return conn, err
}

// Beyond the limit, a new connection closes an idle one, and gets no slot if there is none.
func TestMaxConnections(t *testing.T) {
	t.Parallel()

	closed := make(chan string, 10)
	inside := make(chan struct{})
	free := make(chan struct{})
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-free })
	bound := must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	r := run(t, handler, Options{
		MaxConnections: 2, ConnectionClosed: func(reason string) { closed <- reason }, Listener: &hoarder{Listener: bound},
	})
	idle := r.dial(t)
	busy := [2]net.Conn{r.dial(t), nil}
	_, _ = io.WriteString(busy[0], "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-inside
	busy[1] = r.dial(t)

	if reason := <-closed; reason != reasonDisplaced {
		t.Errorf("an idle connection was closed as %q, want %q", reason, reasonDisplaced)
	}
	if n, err := idle.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes from a connection that was displaced, want its end", n)
	}

	_, _ = io.WriteString(busy[1], "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-inside
	third := r.dial(t)
	_ = third.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := third.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a third connection: %d bytes and %v, want its end", n, err)
	}
	if reason := <-closed; reason != reasonNoSlot {
		t.Errorf("a new connection was closed as %q, want %q", reason, reasonNoSlot)
	}

	close(free)
}

// distant gives each connection the next remote address.
type distant struct {
	net.Listener

	addresses chan string
}

func (d *distant) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &from{conn, &net.TCPAddr{IP: net.ParseIP(<-d.addresses), Port: 1}}, nil
}

type from struct {
	net.Conn

	remote net.Addr
}

func (f *from) RemoteAddr() net.Addr { return f.remote }

// Strangers at many addresses displace no client that has proved itself, although that client has
// the most connections of one address. Clients that prove themselves do, which is the control.
func TestStrangersDisplaceNoProvedClient(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t)
	good := ca.issue(t)
	for name, test := range map[string]struct {
		client    func(*testing.T, net.Conn)
		displaces bool
	}{
		"silence":        {func(*testing.T, net.Conn) {}, false},
		"half a hello":   {func(_ *testing.T, c net.Conn) { _, _ = io.WriteString(c, "\x16\x03\x01") }, false},
		"proved clients": {connects(ca, good), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			const limit, own, strangers = 8, 3, 40
			bound := must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
			addresses := make(chan string, own+strangers)
			closed := make(chan string, own+strangers)
			inside := make(chan struct{})
			free := make(chan struct{})
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					inside <- struct{}{}
					<-free
				}
				w.WriteHeader(http.StatusNoContent)
			})

			r := run(t, handler, Options{
				Listener: &distant{bound, addresses}, MaxConnections: limit,
				ConnectionClosed: func(reason string) { closed <- reason },
				TLS: &tls.Config{
					Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
				},
			})

			var clients []*tls.Conn
			for range own {
				addresses <- "10.0.0.1"
				client := tls.Client(r.dial(t), &tls.Config{
					RootCAs: ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{good},
				})
				_ = client.SetDeadline(time.Now().Add(time.Minute))
				clients = append(clients, client)

				if err := asks(client, "/"); err != nil {
					t.Fatal(err)
				}
			}

			slow := make(chan error, 1)
			go func() { slow <- asks(clients[0], "/slow") }()
			<-inside

			for n := range strangers {
				addresses <- "10.0.1." + strconv.Itoa(n+1)
				test.client(t, r.dial(t))
			}

			for range own + strangers - limit { // Each of them has taken a slot.
				if reason := <-closed; reason != reasonDisplaced {
					t.Errorf("a connection was closed as %q, want %q", reason, reasonDisplaced)
				}
			}

			close(free)
			errs := []error{<-slow, asks(clients[1], "/"), asks(clients[2], "/")}
			if err := errors.Join(errs...); (err != nil) != test.displaces {
				t.Errorf("requests of the client that came first: %v", errs)
			}
		})
	}
}

// asks sends one request and reads its answer.
func asks(conn net.Conn, path string) error {
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		return err
	}

	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// A connection counts to the first origin that is set, and no more to its address.
func TestSetOrigin(t *testing.T) {
	t.Parallel()

	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		SetOrigin(r.Context(), "runtime a")
		SetOrigin(r.Context(), "runtime b")
	})
	r := run(t, handler, Options{})

	for range 2 {
		if _, err := r.get(t, newClient(t, nil)); err != nil {
			t.Fatal(err)
		}
	}

	r.limiter.mu.Lock()
	defer r.limiter.mu.Unlock()

	if o := r.limiter.settled.origins["runtime a"]; len(r.limiter.settled.origins) != 1 || o == nil || o.size() != 2 {
		t.Errorf("origins %v, want the two connections of runtime a", r.limiter.settled.origins)
	}
}
