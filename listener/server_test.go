package listener_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// A listener is a Runnable of controller-runtime, which this module does not import.
var _ interface {
	Start(ctx context.Context) error
	NeedLeaderElection() bool
} = (*listener.Listener)(nil)

func TestNewNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()

	good := listener.PeersFunc(known)
	verifier := listener.InsecureAllowAll()
	handler := core.Handler(&recorder{})
	everyone := listener.InsecureAnyProxy()
	roots := newAuthority(t, "ca").roots()

	tests := []struct {
		name     string
		peers    listener.Peers
		verifier core.Verifier
		handlers map[core.Manager]core.Handler
		opts     listener.Options
		want     []string
	}{
		{"nothing", listener.Peers{}, nil, nil, listener.Options{}, []string{"peers are nil", "verifier is nil", "no handler"}},
		{
			"handlers", good, verifier,
			map[core.Manager]core.Handler{"Not a label": handler, "good": nil},
			listener.Options{},
			[]string{`"Not a label"`, `handler is nil: that of manager "good"`},
		},
		{
			"options", good, verifier, handlers(handler),
			listener.Options{
				MaxInFlight: -1, MaxConnections: -1, RuntimeRate: -1, RuntimeBurst: -1, RuntimeInFlight: -1, HandleTimeout: -1, ReadTimeout: -1, IdleTimeout: -1, ShutdownTimeout: -1,
			},
			[]string{"MaxInFlight", "MaxConnections", "RuntimeRate", "RuntimeBurst", "RuntimeInFlight", "HandleTimeout", "ReadTimeout", "IdleTimeout", "ShutdownTimeout"},
		},
		{
			"header", listener.FromXFCC(nil, nil, listener.PeerOptions{CacheSize: -1}), verifier, handlers(handler),
			listener.Options{},
			[]string{"proxy is nil", "CA bundle is nil", "CacheSize"},
		},
		{
			"header with all but the CA bundle", listener.FromXFCC(everyone, nil, listener.PeerOptions{}), verifier, handlers(handler),
			listener.Options{},
			[]string{"CA bundle is nil"},
		},
		{
			"connection", listener.FromTLS(nil, listener.PeerOptions{CacheSize: -1}), verifier, handlers(handler),
			listener.Options{},
			[]string{"CA bundle is nil", "CacheSize"},
		},
		{
			"verifiers inside", good, listener.AllOf(core.VerifierFunc(nil), listener.AnyOf(listener.SANPinning(listener.DomainsFunc(nil)))), handlers(handler),
			listener.Options{},
			[]string{"verifier is nil", "domains for SAN pinning"},
		},
		{"verifier to observe", good, listener.ObserveOnly(nil, nil), handlers(handler), listener.Options{}, []string{"verifier is nil"}},
		{
			"options that would serve no runtime", listener.FromTLS(roots, listener.PeerOptions{}),
			listener.SANPinning((*noDomains)(nil)), handlers(handler),
			listener.Options{Addr: "localhost", TLS: &tls.Config{MinVersion: tls.VersionTLS13}},
			[]string{"want a ClientAuth", "domains for SAN pinning are nil", "want host:port"},
		},
		{
			"nothing wrong", listener.FromXFCC(everyone, roots, listener.PeerOptions{}), listener.AllOf(verifier), handlers(handler),
			listener.Options{},
			nil,
		},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			_, err := listener.New(test.peers, test.verifier, test.handlers, test.opts)
			if (err == nil) != (test.want == nil) {
				t.Fatalf("error %v, want one: %v", err, test.want != nil)
			}

			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error has no %q: %v", want, err)
				}
			}
		})
	}
}

type noDomains struct{ listener.Domains }

// Each reason is a line at warn for each runtime, and again after 10 min.
func TestRefusalsAreLogged(t *testing.T) {
	t.Parallel()

	var log bytes.Buffer
	now := time.Now()
	refuse := core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error {
		return listener.Forbidden(reasons.SANMismatch, errors.New("not yours"))
	})
	l := newListener(t, listener.PeersFunc(known), refuse, &recorder{}, listener.Options{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Now: func() time.Time { return now },
	})
	lines := func() int { return strings.Count(log.String(), "level=WARN msg=\"request refused\"") }

	for i, want := range []int{1, 1, 2} {
		serve(l, post("/v2/"+string(manager)+"/event", bodyV2))
		if lines() != want || !strings.Contains(log.String(), "reason=san_mismatch") {
			t.Errorf("request %d: %d lines, want %d:\n%s", i, lines(), want, &log)
		}
		now = now.Add(6 * time.Minute)
	}

	misspelt := strings.Repeat("misspelt", 8) // It is longer than a name, and cut.
	serve(l, post("/v2/"+misspelt+"/event", bodyV2))
	if want := core.ErrUnknownManager.Error() + `: \"` + misspelt[:63] + `\"`; !strings.Contains(log.String(), want) {
		t.Errorf("no %s in:\n%s", want, &log)
	}
}

// A listener that cannot serve returns an error, is not ready, and cannot be started again.
func TestStartReturnsErrors(t *testing.T) {
	t.Parallel()

	taken := listen(t)
	t.Cleanup(func() { taken.Close() })
	tests := []struct {
		name  string
		peers listener.Peers
		opts  listener.Options
		want  string
	}{
		{"address is taken", listener.PeersFunc(known), listener.Options{Addr: taken.Addr().String()}, "bind"},
		{"address is none", listener.PeersFunc(known), listener.Options{Addr: "127.0.0.1:nowhere"}, "bind"},
		{"peers of the handshake without TLS", listener.FromTLS(newAuthority(t, "ca").roots(), listener.PeerOptions{}), listener.Options{}, "Options.TLS is nil"},
		{
			"TLS without certificate", listener.PeersFunc(known),
			listener.Options{Addr: "127.0.0.1:0", TLS: &tls.Config{MinVersion: tls.VersionTLS13}},
			"server ended",
		},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			l := newListener(t, test.peers, listener.InsecureAllowAll(), &recorder{}, test.opts)
			if err := l.Start(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
			if err := l.Ready(); !errors.Is(err, core.ErrNotReady) {
				t.Errorf("Ready returns %v after a start that failed, want %v", err, core.ErrNotReady)
			}

			if err := l.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "already been started") {
				t.Errorf("second start returns %v", err)
			}
		})
	}
}

// A listener is ready exactly while it serves, on each replica.
func TestLife(t *testing.T) {
	t.Parallel()

	l := newListener(t, listener.PeersFunc(known), listener.InsecureAllowAll(), &recorder{}, listener.Options{Addr: "127.0.0.1:0"})
	if l.Ready() == nil || l.Addr() != nil || l.NeedLeaderElection() {
		t.Errorf("before: ready %v, address %v, needs leader election %v", l.Ready(), l.Addr(), l.NeedLeaderElection())
	}

	run := serving(t, l)
	client := newClient(t, nil, false)
	eventually(t, func() bool { return l.Ready() == nil })
	response, _ := mustSend(t, client, "http://"+l.Addr().String()+"/v2/lifecycle/event", bodyV2, nil)
	if response.StatusCode != http.StatusOK {
		t.Errorf("answer %d, want 200", response.StatusCode)
	}

	run.stop()
	if err := run.stopped(); err != nil {
		t.Errorf("Start returned %v, want nil", err)
	}
	if err := l.Ready(); !errors.Is(err, core.ErrNotReady) {
		t.Errorf("after: Ready returns %v, want %v", err, core.ErrNotReady)
	}
}

// A listener that ends answers the request in its handler, on HTTP/2, and refuses others.
func TestShutdownWaitsForRequests(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	inside := make(chan struct{})
	free := make(chan struct{})
	answer := make(chan int, 1)

	handler := core.HandlerFunc(func(ctx context.Context, _ core.Delivery) error {
		inside <- struct{}{}
		select {
		case <-free:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})

	run := start(t, listener.PeersFunc(known), listener.InsecureAllowAll(), handler, listener.Options{
		TLS: serverConfig(t, ca, tls.NoClientCert, ca), ShutdownTimeout: time.Minute, HandleTimeout: time.Minute,
	})
	client := newClient(t, ca, true)
	go func() {
		status := 0
		if response, _, err := send(t, client, run.url+"/v2/lifecycle/event", bodyV2, nil); err == nil {
			status = response.StatusCode
		}
		answer <- status
	}()

	<-inside
	run.stop()
	eventually(t, func() bool { return strings.Contains(fmt.Sprint(run.Ready()), "shutting down") })
	// A request that still gets here, on a connection that was open.
	w := serve(run, post("/v2/lifecycle/event", bodyV2))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || w.Header().Get("Connection") != "close" {
		t.Errorf("answer %d with %v, want 503, to come back on another connection", w.Code, w.Header())
	}

	close(free)
	if status := <-answer; status != http.StatusOK {
		t.Errorf("request in flight was answered %d, want 200", status)
	}
	if err := run.stopped(); err != nil {
		t.Errorf("Start returned %v, want nil", err)
	}
}

// A sender that must connect again loses its connection, on each protocol. A gateway keeps its own.
func TestWhoseConnectionEnds(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	ready := core.Handler(&recorder{})
	waits := core.HandlerFunc(func(context.Context, core.Delivery) error { return core.ErrNotReady })
	none := listener.ProxyAddresses()
	tests := []struct {
		name    string
		peers   listener.Peers
		handler core.Handler
		status  int
		ends    bool
	}{
		{"taken", listener.PeersFunc(known), ready, http.StatusOK, false},
		{"replica that does not lead", listener.PeersFunc(known), waits, http.StatusServiceUnavailable, true},
		{"stranger", listener.FromTLS(ca.roots(), listener.PeerOptions{}), ready, http.StatusUnauthorized, true},
		{"past the gateway", listener.FromXFCC(none, ca.roots(), listener.PeerOptions{}), ready, http.StatusUnauthorized, true},
		{
			"stranger behind the gateway", listener.FromXFCC(listener.InsecureAnyProxy(), ca.roots(), listener.PeerOptions{}), ready,
			http.StatusUnauthorized, false,
		},
	}

	for _, test := range tests {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, HTTP/%d", test.name, 1+btoi(http2)), func(t *testing.T) {
				t.Parallel()

				counted := &countingListener{Listener: listen(t)}
				run := start(t, test.peers, listener.InsecureAllowAll(), test.handler,
					listener.Options{Listener: counted, TLS: serverConfig(t, ca, tls.RequestClientCert, ca)})
				client := newClient(t, ca, http2)
				for range 3 {
					response, _ := mustSend(t, client, run.url+"/v2/lifecycle/event", bodyV2, nil)
					if response.StatusCode != test.status {
						t.Errorf("answer %d, want %d", response.StatusCode, test.status)
					}
				}

				run.stop()
				if err := run.stopped(); err != nil {
					t.Error(err)
				}

				// A client of HTTP/2 may send on a connection that is ending, and repeats that on
				// another.
				have := counted.count.Load()
				// A client on a busy machine may leave a connection that is kept.
				if test.ends != (have >= 3) {
					t.Errorf("%d connections for 3 requests, which should end them: %t", have, test.ends)
				}
			})
		}
	}
}

type countingListener struct {
	net.Listener

	count atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.count.Add(1)
	}
	return conn, err
}

// Without TLS, a gateway may speak HTTP/2 with prior knowledge.
func TestUnencryptedHTTP2(t *testing.T) {
	t.Parallel()

	run := start(t, listener.PeersFunc(known), listener.InsecureAllowAll(), &recorder{}, listener.Options{})
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	t.Cleanup(transport.CloseIdleConnections)

	response, _ := mustSend(t, &http.Client{Transport: transport}, run.url+"/v2/lifecycle/event", bodyV2, nil)
	if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
		t.Errorf("answer %d by HTTP/%d, want 200 by HTTP/2", response.StatusCode, response.ProtoMajor)
	}
}

// firstLine returns that of the answer to text, "" if the connection is closed without one.
func firstLine(t *testing.T, address, text string) string {
	t.Helper()

	conn := must(new(net.Dialer).DialContext(t.Context(), "tcp", address))(t)
	defer conn.Close()
	_, _ = io.WriteString(conn, text) // The listener may have closed it.
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return line
}

// A slow request, or a header without end, costs one connection for a limited time.
func TestSlowAndEndless(t *testing.T) {
	t.Parallel()

	run := start(t, listener.PeersFunc(known), listener.InsecureAllowAll(), &recorder{},
		listener.Options{ReadTimeout: 3 * time.Second}) // Each row takes less, or is cut off.
	tests := []struct{ name, text, want string }{
		{"half a header", "POST /v2/lifecycle/event HTTP/1.1\r\nHost: a\r\n", ""},
		{
			"half a body", "POST /v2/lifecycle/event HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
			"HTTP/1.1 503 ",
		},
		{"header of 80 KiB", "POST / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 80<<10) + "\r\n\r\n", "HTTP/1.1 431 "},
		{"every server's options", "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 404 "},
		{"a tunnel", "CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n", "HTTP/1.1 404 "},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			line := firstLine(t, run.address(), test.text)
			// On a busy machine, the time may be over before a request is read.
			for began := time.Now(); line == "" && test.want != "" && time.Since(began) < 2*time.Minute; {
				line = firstLine(t, run.address(), test.text)
			}

			if !strings.HasPrefix(line, test.want) || (test.want == "" && line != "") {
				t.Errorf("answer %q, want %q", line, test.want)
			}
		})
	}
}

// MaxHandshakes compute in parallel, here more than by default. Package httpserver has the order in
// which others follow.
func TestMaxHandshakes(t *testing.T) {
	t.Parallel()

	slots := runtime.GOMAXPROCS(0) + 1
	ca := newAuthority(t, "ca")
	config := serverConfig(t, ca, tls.RequireAndVerifyClientCert, ca)
	var inside, clients sync.WaitGroup
	inside.Add(slots)

	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		inside.Done()
		inside.Wait()
		return nil, nil
	}

	run := start(t, listener.FromTLS(ca.roots(), listener.PeerOptions{}), listener.InsecureAllowAll(), &recorder{},
		listener.Options{TLS: config, MaxHandshakes: slots})
	for range slots {
		conn := must(net.Dial("tcp", run.address()))(t)
		clients.Go(func() {
			defer conn.Close()
			client := tls.Client(conn, &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"})
			_ = client.HandshakeContext(t.Context()) // Without a certificate it fails, or later.
		})
	}

	inside.Wait()
	clients.Wait()
}
