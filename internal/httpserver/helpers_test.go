package httpserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// authority issues certificates for 127.0.0.1, for both usages.
type authority struct{ *testpki.CA }

func newAuthority(t testing.TB) *authority {
	t.Helper()
	return &authority{must(testpki.NewCA("ca", testpki.Options{}))(t)}
}

func (a *authority) issue(t testing.TB) tls.Certificate {
	t.Helper()
	return must(a.Server("127.0.0.1", testpki.Options{Usages: []x509.ExtKeyUsage{}}))(t).TLS
}

// running is a server that serves until the test ends, or stop is called.
type running struct {
	*Server

	cancel context.CancelFunc
	ended  chan error
}

func run(t testing.TB, handler http.Handler, opts Options) *running {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	server := must(Bind(t.Context(), "127.0.0.1:0", handler, opts))(t)
	r := &running{Server: server, cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- r.Serve(ctx); close(r.ended) }()
	t.Cleanup(func() { _ = r.stop() })

	return r
}

func (r *running) stop() error {
	r.cancel()
	return <-r.ended
}

func (r *running) dial(t testing.TB) net.Conn {
	t.Helper()

	conn := must(new(net.Dialer).DialContext(t.Context(), "tcp", r.Addr().String()))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// get returns the status of an answer.
func (r *running) get(t testing.TB, client *http.Client) (int, error) {
	t.Helper()

	scheme := "http://"
	if r.opts.TLS != nil {
		scheme = "https://"
	}

	request := must(http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+r.Addr().String(), http.NoBody))(t)
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()

	return response.StatusCode, nil
}

func newClient(t testing.TB, config *tls.Config) *http.Client {
	t.Helper()

	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

var noContent = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		check(tb, err)
		return value
	}
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
