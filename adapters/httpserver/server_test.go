package httpserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// authority issues certificates for 127.0.0.1 that are valid for an hour.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	key := newKey(t)

	return &authority{parse(t, template, template, key, key), key}
}

func (a *authority) issue(t *testing.T) tls.Certificate {
	t.Helper()

	key := newKey(t)
	leaf := parse(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, a.cert, key, a.key)

	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)

	return pool
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	return key
}

func parse(t *testing.T, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()

	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}

	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}

	return cert
}

// running is a server that serves until the test ends, or stop is called.
type running struct {
	*Server

	cancel context.CancelFunc
	ended  chan error
}

func run(t *testing.T, handler http.Handler, opts Options) *running {
	t.Helper()

	r := &running{ended: make(chan error, 1)}

	var err error
	if r.Server, err = Bind(t.Context(), "127.0.0.1:0", handler, opts); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel

	go func() { r.ended <- r.Serve(ctx); close(r.ended) }()

	t.Cleanup(func() { _ = r.stop() })

	return r
}

func (r *running) stop() error {
	r.cancel()

	return <-r.ended
}

func (r *running) dial(t *testing.T) net.Conn {
	t.Helper()

	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = conn.Close() })

	return conn
}

// get returns the status of an answer.
func (r *running) get(t *testing.T, client *http.Client) (int, error) {
	t.Helper()

	scheme := "http://"
	if r.opts.TLS != nil {
		scheme = "https://"
	}

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+r.Addr().String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()

	return response.StatusCode, nil
}

func newClient(t *testing.T, config *tls.Config) *http.Client {
	t.Helper()

	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)

	return &http.Client{Transport: transport}
}

var noContent = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

func TestBindReturnsErrors(t *testing.T) {
	t.Parallel()

	r := run(t, noContent, Options{})
	if _, err := Bind(t.Context(), r.Addr().String(), noContent, Options{}); err == nil {
		t.Error("an address was bound twice")
	}

	_, err := Bind(t.Context(), "127.0.0.1:0", noContent, Options{MaxConnections: -1, IdleTimeout: -1})
	if err == nil || !strings.Contains(err.Error(), "MaxConnections") || !strings.Contains(err.Error(), "IdleTimeout") {
		t.Errorf("error %v, want one that names both negative options", err)
	}
}

func TestCloseReleasesTheAddress(t *testing.T) {
	t.Parallel()

	s, err := Bind(t.Context(), "127.0.0.1:0", noContent, Options{})
	if err != nil {
		t.Fatal(err)
	}

	if err := s.Close(); err != nil {
		t.Error(err)
	}

	if err := s.Serve(t.Context()); !errors.Is(err, errEnded) {
		t.Errorf("a closed server returned %v, want %v", err, errEnded)
	}
}

// failure is a call of HandshakeFailed.
type failure struct {
	cause, remote string
	err           error
}

// failures collects calls of HandshakeFailed.
type failures chan failure

func (f failures) add(cause string, remote net.Addr, err error) {
	f <- failure{cause, remote.String(), err}
}

func TestHandshakeCauses(t *testing.T) {
	t.Parallel()

	ca, other := newAuthority(t), newAuthority(t)
	good, foreign := ca.issue(t), other.issue(t)
	refused := errors.New("refused")
	refuse := func(tls.ConnectionState) error { return refused }

	server := func(change func(*tls.Config)) *tls.Config {
		config := &tls.Config{
			Certificates: []tls.Certificate{ca.issue(t)},
			ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.pool(),
		}
		change(config)

		return config
	}
	client := func(cert *tls.Certificate, change func(*tls.Config)) func(*testing.T, net.Conn) {
		return func(t *testing.T, conn net.Conn) {
			t.Helper()

			config := &tls.Config{RootCAs: ca.pool(), ServerName: "127.0.0.1"}
			if cert != nil {
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					return cert, nil
				}
			}

			change(config)

			_ = tls.Client(conn, config).HandshakeContext(t.Context()) // The server's result counts.
			_, _ = io.Copy(io.Discard, conn)
		}
	}
	unchanged := func(*tls.Config) {}
	version12 := func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }
	allow12 := func(c *tls.Config) { c.MinVersion = tls.VersionTLS12 }
	refusing := func(c *tls.Config) { c.VerifyConnection = refuse }
	otherCA := func(c *tls.Config) { c.RootCAs = other.pool() }
	otherName := func(c *tls.Config) { c.ServerName = "other" }

	tests := []struct {
		name   string
		server *tls.Config
		client func(*testing.T, net.Conn)
		want   string
	}{
		{"no certificate", server(unchanged), client(nil, unchanged), CauseNoCertificate},
		{"no certificate, TLS 1.2", server(allow12), client(nil, version12), CauseNoCertificate},
		{"certificate of another CA", server(unchanged), client(&foreign, unchanged), CauseUntrusted},
		{"refused by VerifyConnection", server(refusing), client(&good, unchanged), CauseUntrusted},
		{
			"refused by VerifyPeerCertificate",
			server(func(c *tls.Config) {
				c.VerifyPeerCertificate = func([][]byte, [][]*x509.Certificate) error { return refused }
			}),
			client(&good, unchanged), CauseUntrusted,
		},
		{"server of another CA", server(unchanged), client(&good, otherCA), CauseBadCertificate},
		{"server of another name", server(unchanged), client(&good, otherName), CauseBadCertificate},
		{"no common version", server(unchanged), client(&good, version12), CauseProtocol},
		{"plain HTTP", server(unchanged), sends("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), CauseProtocol},
		{"noise", server(unchanged), sends("\x16\x03\x01\x00\x05hello"), CauseProtocol},
		{"no key material", server(func(c *tls.Config) {
			c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, refused }
		}), client(&good, unchanged), CauseOther},
		{"half a hello", server(unchanged), leaves("\x16\x03\x01"), CauseClosed},
		{"silence after a byte", server(unchanged), sends("\x16"), CauseTimeout},
		{"silence", server(unchanged), sends(""), CauseTimeout},
		{"a probe", server(unchanged), leaves(""), ""},
		{"a probe that resets", server(unchanged), resets, ""},
		{"a good client", server(unchanged), connects(ca, good), ""},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			seen := make(failures, 2)
			r := run(t, noContent, Options{
				TLS: test.server, HandshakeFailed: seen.add, ReadHeaderTimeout: 300 * time.Millisecond,
			})
			conn := r.dial(t)
			test.client(t, conn)
			_ = conn.Close()

			if test.want != "" {
				have := <-seen
				if have.cause != test.want || have.err == nil || have.remote != conn.LocalAddr().String() {
					t.Errorf("failed: %+v, want %s from %s", have, test.want, conn.LocalAddr())
				}
			}

			// Connections are accepted in order, and Serve waits for all callbacks: nothing else
			// follows.
			last := r.dial(t)
			sends("noise")(t, last)

			if have := <-seen; have.remote != last.LocalAddr().String() {
				t.Errorf("unexpected failure: %+v", have)
			}

			if err := r.stop(); err != nil {
				t.Error(err)
			}

			if len(seen) > 0 {
				t.Errorf("unexpected failure: %+v", <-seen)
			}
		})
	}
}

// connects returns a client with a certificate that completes its handshake.
func connects(ca *authority, cert tls.Certificate) func(*testing.T, net.Conn) {
	return func(t *testing.T, conn net.Conn) {
		t.Helper()

		config := &tls.Config{RootCAs: ca.pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{cert}}
		if err := tls.Client(conn, config).HandshakeContext(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// sends returns a client that sends text and waits until the server closes the connection.
func sends(text string) func(*testing.T, net.Conn) {
	return func(_ *testing.T, conn net.Conn) {
		_, _ = io.WriteString(conn, text)
		_, _ = io.Copy(io.Discard, conn)
	}
}

// leaves returns a client that sends text and closes the connection.
func leaves(text string) func(*testing.T, net.Conn) {
	return func(_ *testing.T, conn net.Conn) {
		_, _ = io.WriteString(conn, text)
		_ = conn.Close()
	}
}

func resets(_ *testing.T, conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

// log is a writer that may be used concurrently.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text.Write(b)
}

func (l *log) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return strings.Split(strings.TrimSpace(l.text.String()), "\n")
}

func newLogger(l *log) *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// However many handshakes fail, there is one line a minute for each cause.
func TestFailedHandshakesAreLogged(t *testing.T) {
	t.Parallel()

	var lines log

	seen := make(failures, 10)
	ca := newAuthority(t)
	r := run(t, noContent, Options{
		TLS:             &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}},
		HandshakeFailed: seen.add, Logger: newLogger(&lines),
	})

	for range 3 {
		sends("GET / HTTP/1.1\r\n\r\n")(t, r.dial(t))
		<-seen
	}

	leaves("\x16")(t, r.dial(t))
	<-seen

	if err := r.stop(); err != nil {
		t.Error(err)
	}

	have := lines.lines()
	if len(have) != 2 {
		t.Fatalf("%d lines, want one for each of two causes:\n%s", len(have), strings.Join(have, "\n"))
	}

	line := have[slices.IndexFunc(have, func(l string) bool { return !strings.Contains(l, "cause=closed") })]

	for _, want := range []string{"level=WARN", "cause=protocol", "remote=127.0.0.1:", "error=", "suppressed=0"} {
		if !strings.Contains(line, want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
}

// network is a [net.Listener] in memory, for the bubble of synctest.
type network struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newNetwork() *network {
	return &network{accepted: make(chan net.Conn), closed: make(chan struct{})}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case conn := <-n.accepted:
		return conn, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error {
	n.once.Do(func() { close(n.closed) })

	return nil
}

func (n *network) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443} }

// The callbacks of TLS run inside the slot of the handshake, so that few verify certificates at
// once.
func TestCallbacksOfTLSHaveASlot(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		const clients, slots, work = 20, 2, time.Second

		var (
			inside, most atomic.Int64
			group        sync.WaitGroup
			ca, incoming = newAuthority(t), newNetwork()
			began        = time.Now()
		)

		r := run(t, noContent, Options{
			Listener: incoming, MaxHandshakes: slots, ReadHeaderTimeout: time.Minute,
			TLS: &tls.Config{
				Certificates: []tls.Certificate{ca.issue(t)}, ClientAuth: tls.RequestClientCert,
				VerifyConnection: func(tls.ConnectionState) error {
					most.Store(max(most.Load(), inside.Add(1)))
					time.Sleep(work)
					inside.Add(-1)

					return nil
				},
			},
		})

		for range clients {
			group.Go(func() {
				near, far := net.Pipe()
				incoming.accepted <- far

				client := tls.Client(near, &tls.Config{RootCAs: ca.pool(), ServerName: "127.0.0.1"})
				if err := client.HandshakeContext(t.Context()); err != nil {
					t.Error(err)
				}

				_, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
				_, _ = io.Copy(io.Discard, client)
			})
		}

		group.Wait()

		if most.Load() != slots || time.Since(began) != clients/slots*work {
			t.Errorf("%d callbacks at once, and all took %v, want %d and %v",
				most.Load(), time.Since(began), slots, clients/slots*work)
		}

		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
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

	bound, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	r := run(t, noContent, Options{Listener: &exhausted{bound, 3}, Logger: newLogger(&lines)})
	if status, err := r.get(t, newClient(t, nil)); err != nil || status != http.StatusNoContent {
		t.Errorf("answer %d (%v), want 204 when the server can accept again", status, err)
	}

	have := lines.lines()
	if len(have) != 1 || !strings.Contains(have[0], "level=WARN") || !strings.Contains(have[0], "too many open files") {
		t.Errorf("log %v, want one warning with the error", have)
	}
}

// A handshake that this server ends for its limit has not failed.
func TestDisplacedHandshakeHasNotFailed(t *testing.T) {
	t.Parallel()

	seen, closed := make(failures, 2), make(chan string, 2)
	r := run(t, noContent, Options{
		TLS:            &tls.Config{Certificates: []tls.Certificate{newAuthority(t).issue(t)}},
		MaxConnections: 1, HandshakeFailed: seen.add, ConnectionClosed: func(reason string) { closed <- reason },
	})

	displaced := r.dial(t)
	_, _ = io.WriteString(displaced, "\x16")

	other := r.dial(t)
	if reason := <-closed; reason != Displaced {
		t.Errorf("the first connection was closed as %q, want %q", reason, Displaced)
	}

	sends("noise")(t, other)

	if have := <-seen; have.remote != other.LocalAddr().String() {
		t.Errorf("unexpected failure: %+v", have)
	}

	if err := r.stop(); err != nil || len(seen) > 0 {
		t.Errorf("Serve returned %v, and %d more handshakes failed, want none", err, len(seen))
	}
}

func TestMaxConnections(t *testing.T) {
	t.Parallel()

	closed := make(chan string, 10)
	inside, free := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-free })
	r := run(t, handler, Options{MaxConnections: 2, ConnectionClosed: func(reason string) { closed <- reason }})

	idle := r.dial(t)
	busy := [2]net.Conn{r.dial(t), nil}
	_, _ = io.WriteString(busy[0], "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-inside

	busy[1] = r.dial(t)
	if reason := <-closed; reason != Displaced {
		t.Errorf("an idle connection was closed as %q, want %q", reason, Displaced)
	}

	if n, err := idle.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes from a connection that was displaced, want its end", n)
	}

	_, _ = io.WriteString(busy[1], "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-inside

	if _, err := r.dial(t).Read(make([]byte, 1)); err == nil {
		t.Error("a third connection was answered")
	}

	if reason := <-closed; reason != NoSlot {
		t.Errorf("a new connection was closed as %q, want %q", reason, NoSlot)
	}

	close(free)
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

	if o := r.limiter.origins["runtime a"]; len(r.limiter.origins) != 1 || o == nil || o.size() != 2 {
		t.Errorf("origins %v, want the two connections of runtime a", r.limiter.origins)
	}
}

func TestProtocols(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t)

	for name, test := range map[string]struct {
		http1Only bool
		want      int
	}{
		"both":          {false, 2},
		"HTTP/1.1 only": {true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			versions := make(chan int, 1)
			handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { versions <- r.ProtoMajor })
			config := &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}}
			r := run(t, handler, Options{TLS: config, HTTP1Only: test.http1Only})

			if _, err := r.get(t, newClient(t, &tls.Config{RootCAs: ca.pool()})); err != nil {
				t.Fatal(err)
			}

			if have := <-versions; have != test.want {
				t.Errorf("HTTP/%d, want HTTP/%d", have, test.want)
			}
		})
	}
}

// At the end, requests in flight are waited for, then cancelled, then cut off.
func TestEnd(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name    string
		timeout time.Duration
		handler func(ctx context.Context, free <-chan struct{})
		status  int
		err     error
	}{
		{"waits", time.Minute, func(_ context.Context, free <-chan struct{}) { <-free }, http.StatusOK, nil},
		{
			"cancels", time.Millisecond,
			func(ctx context.Context, _ <-chan struct{}) { <-ctx.Done() },
			http.StatusOK, nil,
		},
		{"cuts off", time.Millisecond, func(_ context.Context, free <-chan struct{}) { <-free }, 0, errAborted},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			inside, free, status := make(chan struct{}), make(chan struct{}), make(chan int, 1)
			handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				close(inside)
				test.handler(r.Context(), free)
			})
			r := run(t, handler, Options{ShutdownTimeout: test.timeout})

			go func() {
				answer, _ := r.get(t, newClient(t, nil))
				status <- answer
			}()

			<-inside
			r.cancel()

			if test.timeout == time.Minute {
				close(free)
			}

			if err := <-r.ended; !errors.Is(err, test.err) {
				t.Errorf("Serve returned %v, want %v", err, test.err)
			}

			if have := <-status; have != test.status {
				t.Errorf("the request in flight was answered %d, want %d", have, test.status)
			}

			if test.err != nil {
				close(free)
			}
		})
	}
}

func TestPanicIsLogged(t *testing.T) {
	t.Parallel()

	var lines log

	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			panic("broken")
		}
	})
	r := run(t, handler, Options{Logger: newLogger(&lines)})

	if _, err := r.get(t, newClient(t, nil)); err == nil {
		t.Error("a panic was answered")
	}

	if err := r.stop(); err != nil {
		t.Error(err)
	}

	have := lines.lines()
	if len(have) != 1 || !strings.Contains(have[0], "level=ERROR") || !strings.Contains(have[0], "error=broken") {
		t.Errorf("log %v, want one line of the panic", have)
	}
}
