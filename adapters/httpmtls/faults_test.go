package httpmtls_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// silentListener accepts connections and sends nothing.
func silentListener(t *testing.T, accepted chan<- struct{}) (address string) {
	t.Helper()

	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				break
			}
			conns = append(conns, conn)
			accepted <- struct{}{}
		}

		for _, conn := range conns {
			_ = conn.Close()
		}
	}()

	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String()
}

// Each failure of the transport has its reason, and another attempt can succeed.
func TestTransportFailures(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	strangers := newPKI(t)
	plain := httptest.NewServer(http.HandlerFunc(accept))
	t.Cleanup(plain.Close)
	old := httptest.NewUnstartedServer(http.HandlerFunc(accept))
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*ends.server.Certificate}}
	old.Config.ErrorLog = newFarEnd(t, ends.server, accept).Config.ErrorLog
	old.StartTLS()
	t.Cleanup(old.Close)
	silent := silentListener(t, make(chan struct{}, 100))
	otherClients := &keys.Material{Certificate: ends.server.Certificate, Roots: strangers.server.Roots}
	other := must(ends.ca.Server("kcp", testpki.Options{DNSNames: []string{"elsewhere"}}))
	served := func(server *keys.Material) string { return newFarEnd(t, server, accept).address() }
	failing := func(err error) httpmtls.Options {
		return httpmtls.Options{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
		}}
	}

	for name, tc := range map[string]struct {
		address string
		opts    httpmtls.Options
		reason  string
	}{
		"refused":                       {"127.0.0.1:1", httpmtls.Options{}, "dial"},
		"untrusted":                     {served(strangers.server), httpmtls.Options{}, "tls_verify"},
		"for another":                   {served(material(t, other, ends.ca)), httpmtls.Options{}, "tls_verify"},
		"another name":                  {served(ends.server), httpmtls.Options{ServerName: "elsewhere"}, "tls_verify"},
		"refuses us":                    {served(otherClients), httpmtls.Options{}, "tls_refused"},
		"plain HTTP":                    {plain.Listener.Addr().String(), httpmtls.Options{}, "tls"},
		"old TLS":                       {old.Listener.Addr().String(), httpmtls.Options{}, "tls_refused"},
		"no handshake":                  {silent, httpmtls.Options{DialTimeout: time.Second}, "timeout"},
		"no handshake, request timeout": {silent, httpmtls.Options{Timeout: time.Second, DialTimeout: 2 * time.Second}, "timeout"},
		"no such name":                  {"kcp:443", failing(&net.DNSError{Err: "no such host", Name: "kcp", IsNotFound: true}), "dns"},
		"no route":                      {"kcp:443", failing(os.ErrDeadlineExceeded), "dial"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachProtocol(t, func(t *testing.T, protocol string) {
				t.Helper()

				var retried atomic.Int64
				opts := tc.opts
				opts.Protocol = protocol
				opts.Hooks.Retried = func(hook.Retry) { retried.Add(1) }
				forwarder := newForwarder(t, ends.client, tc.address, opts)
				err := forward(t, forwarder, event("object"))
				// With TLS 1.3, a server refuses a client after the handshake. The transport of
				// HTTP/2 may lose that alert when it arrives before the first settings, or while it
				// writes.
				for attempt := 1; isLostAlert(err); attempt++ {
					if attempt == mostAttempts {
						t.Fatalf("the alert was lost in each of %d attempts: %v", attempt, err)
					}
					err = forward(t, forwarder, event("object"))
				}

				if string(core.ReasonOf(err)) != tc.reason || core.IsPermanent(err) || core.RetryAfter(err) != 0 {
					t.Errorf("reason %s, permanent %v: %v; want %s, retryable", core.ReasonOf(err), core.IsPermanent(err),
						err, tc.reason)
				}
				if _, ok := errors.AsType[core.EventErrors](err); ok {
					t.Errorf("%v blames the event", err)
				}
				// The alert of a refusal may be lost, which is a connection that broke.
				if n, want := retried.Load(), map[string]int64{"refused": 2}[name]; n != want && tc.reason != "tls_refused" {
					t.Errorf("%d retries, want %d", n, want)
				}
				if strings.Contains(err.Error(), "deadline") {
					t.Errorf("%v: want plain words", err)
				}
			})
		})
	}
}

// mostAttempts bounds the repeats of a call whose alert was lost. One loss in a row of calls is
// rare, so ten of them are another fault.
const mostAttempts = 10

func isLostAlert(err error) bool {
	return strings.Contains(err.Error(), "http2: client conn could not be established") || errors.Is(err, syscall.EPIPE)
}

// The end of the context ends a call in each of its phases.
func TestCancelWhile(t *testing.T) {
	t.Parallel()

	type place func(t *testing.T, reached chan<- struct{}) (address string, ends pki, opts httpmtls.Options)
	// serving reaches the place in a handler.
	serving := func(handle func(w http.ResponseWriter, r *http.Request, reach func())) place {
		return func(t *testing.T, reached chan<- struct{}) (string, pki, httpmtls.Options) {
			t.Helper()
			ends := newPKI(t)
			return newFarEnd(t, ends.server, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				handle(w, r, func() { reached <- struct{}{} })
			}).address(), ends, httpmtls.Options{}
		}
	}

	for name, reach := range map[string]place{
		"there is no connection": func(t *testing.T, reached chan<- struct{}) (string, pki, httpmtls.Options) {
			t.Helper()
			return "kcp:443", newPKI(t), httpmtls.Options{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				reached <- struct{}{}
				// net/http continues a dial for the next request. The timeout of the dialer ends
				// it.
				ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
				<-ctx.Done()
				return nil, ctx.Err()
			}}
		},
		"in the handshake": func(t *testing.T, reached chan<- struct{}) (string, pki, httpmtls.Options) {
			t.Helper()
			return silentListener(t, reached), newPKI(t), httpmtls.Options{}
		},
		"waiting for headers": serving(func(_ http.ResponseWriter, r *http.Request, reach func()) {
			reach()
			<-r.Context().Done()
		}),
		"reading the body": serving(func(w http.ResponseWriter, r *http.Request, reach func()) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			reach()
			<-r.Context().Done()
			// A return would complete the answer, which may arrive before the connection is closed.
			panic(http.ErrAbortHandler)
		}),
		"waiting for a retry": func(t *testing.T, reached chan<- struct{}) (string, pki, httpmtls.Options) {
			t.Helper()
			ends := newPKI(t)
			return newFarEnd(t, ends.server, answerWith(http.StatusServiceUnavailable)).address(), ends,
				httpmtls.RetryWait(httpmtls.Options{Hooks: httpmtls.Hooks{Retried: func(hook.Retry) { reached <- struct{}{} }}}, time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachProtocol(t, func(t *testing.T, protocol string) {
				t.Helper()

				reached := make(chan struct{}, 100)
				address, ends, opts := reach(t, reached)
				opts.Protocol = protocol
				opts.Timeout = time.Minute
				opts.InFlight = 1
				forwarder := newForwarder(t, ends.client, address, opts)
				ctx, cancel := context.WithCancel(t.Context())
				result := make(chan error, 1)
				go func() { result <- forwarder.Forward(ctx, manager, core.NewBatch(event("object"))) }()
				receive(t, reached)
				if name == "waiting for headers" { // Another request waits for this one.
					ended, end := context.WithCancel(t.Context())
					end()
					if err := forwarder.Forward(ended, manager, core.NewBatch(event("second"))); !errors.Is(err, context.Canceled) {
						t.Errorf("beside another one: %v, want that it was cancelled", err)
					}
				}

				cancel()
				if err := receive(t, result); !errors.Is(err, context.Canceled) || core.IsPermanent(err) {
					t.Errorf("have %v, want that it was cancelled", err)
				}
			})
		})
	}
}

func TestAcknowledgementIsFinalWithItsStatus(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()
		_, forwarder := connect(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, httpmtls.Options{Protocol: protocol, Timeout: 5 * time.Second})
		mustForward(t, forwarder, event("object")) // It was acknowledged.
	})
}

func TestEndlessBodyIsCapped(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		_, forwarder := connect(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusNotFound)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 8<<10)); err != nil {
					return
				}
			}
		}, httpmtls.Options{Protocol: protocol})
		failure := failureOf(t, forward(t, forwarder, event("object")))
		if failure.Status != http.StatusNotFound || len(failure.Body) != 1<<10 {
			t.Errorf("status %d with %d bytes, want 404 with 1 KiB", failure.Status, len(failure.Body))
		}
	})
}

func TestSwitchedConnectionHoldsUpNothing(t *testing.T) {
	t.Parallel()

	answered := make(chan net.Conn, 1)
	_, forwarder := connect(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, out, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = out.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: none\r\n\r\n")
			_ = out.Flush()
			answered <- conn
		}
	}, httpmtls.Options{Protocol: http1})
	result := make(chan error, 1)
	go func() { result <- forward(t, forwarder, event("object")) }()
	conn := receive(t, answered)
	defer conn.Close()
	failure := failureOf(t, receive(t, result))
	if failure.Status != http.StatusSwitchingProtocols || core.IsPermanent(failure) {
		t.Errorf("%v, want status 101, retryable", failure)
	}
}

// hole is a network that can drop all packets of its connections, like a firewall that has lost its
// state.
type hole struct {
	mu    sync.Mutex
	conns []*holeConn
}

type holeConn struct {
	net.Conn

	swallows atomic.Bool
	closed   chan struct{}
	once     sync.Once
}

func (h *hole) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}

	holed := &holeConn{Conn: conn, closed: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, holed)
	return holed, nil
}

func (h *hole) swallow() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, conn := range h.conns {
		conn.swallows.Store(true)
	}
}

func (h *hole) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, conn := range h.conns {
		_ = conn.Conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Conn.Close()
	}

	h.conns = nil
}

func (c *holeConn) Write(p []byte) (int, error) {
	if c.swallows.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *holeConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.swallows.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *holeConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func TestPingsNoticeAHalfOpenConnection(t *testing.T) {
	t.Parallel()

	network := &hole{}
	ends := newPKI(t)
	end := newFarEnd(t, ends.server, accept)
	opts := unhurried(http2)
	opts.DialContext = network.dial
	opts.PingTimeout = 5 * time.Second
	forwarder := newForwarder(t, ends.client, end.address(), httpmtls.PingAfter(opts, 100*time.Millisecond))
	mustForward(t, forwarder, event("before"))
	network.swallow()
	// Pings are faster than the timeout of the request, so a retry may succeed.
	if err := forward(t, forwarder, event("lost")); errors.Is(err, context.DeadlineExceeded) || core.IsPermanent(err) {
		t.Errorf("%v: the pings did not notice, or the event is condemned", err)
	}
	if err := forward(t, forwarder, event("after")); err != nil {
		t.Errorf("the dead connection is still in use: %v", err)
	}
}

// A dead connection costs one request its time. Other requests do not wait for a ping.
func TestConnectionIsLeftAfterATimeout(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		network := &hole{}
		ends := newPKI(t)
		given := atomic.Int64{}
		end := newFarEnd(t, ends.server, accept)
		forwarder := newForwarder(t, ends.client, end.address(), httpmtls.PingAfter(httpmtls.Options{
			Protocol: protocol, Timeout: 5 * time.Second, DialContext: network.dial,
			Hooks: httpmtls.Hooks{Disconnected: func(hook.Disconnection) { given.Add(1) }},
		}, time.Hour))
		// On a busy machine, a handshake may take longer than the timeout.
		arrives := func(name string) {
			err := forward(t, forwarder, event(name))
			for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); {
				err = forward(t, forwarder, event(name))
			}

			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}

		var lost error
		for tries := 0; lost == nil && tries < 100; tries++ { // One, unless the connection is not kept: see fewConnections.
			arrives("before")
			network.swallow()
			lost = forward(t, forwarder, event("lost"))
		}

		if lost == nil || core.IsPermanent(lost) {
			t.Errorf("have %v, want a timeout that condemns no event", lost)
		}
		if given.Load() == 0 {
			t.Error("the end of the connection is not reported")
		}

		arrives("after") // Not on the dead connection.
		const more = 20
		before := end.connections.Load()
		for range more {
			arrives("on the new connection")
		}

		if n := end.connections.Load() - before; n >= more/2 {
			t.Errorf("%d events took %d connections, want one that is kept", more, n)
		}
	})
}

// A gateway that has moved answers for the control plane as long as a connection is open.
func TestRefusingGatewayIsLeft(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		ends := newPKI(t)
		var fails atomic.Bool
		former := newFarEnd(t, ends.server, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if fails.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		present := newFarEnd(t, ends.server, accept)
		var address atomic.Value
		address.Store(former.address())
		opts := unhurried(protocol)
		opts.Retries = -1
		opts.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			name, _ := address.Load().(string)
			return new(net.Dialer).DialContext(ctx, network, name)
		}

		forwarder := newForwarder(t, ends.client, former.address(), httpmtls.LeaveAfter(opts, 200*time.Millisecond))
		check(t, forward(t, forwarder, event("before")))
		fails.Store(true)
		address.Store(present.address())
		for deadline := time.Now().Add(patience); forward(t, forwarder, event("moved")) != nil; {
			if time.Now().After(deadline) {
				t.Fatal("the former gateway is still in use")
			}
		}

		if n := former.connections.Load(); n != 1 {
			t.Errorf("%d connections to the former gateway, want 1", n)
		}
	})
}

// The server closes an idle connection at the moment of the next request.
func TestStaleConnectionCostsNoRetry(t *testing.T) {
	t.Parallel()

	var (
		requests atomic.Int64
		closed   atomic.Bool
		known    sync.Map // the connections
	)
	_, forwarder := connect(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if _, again := known.LoadOrStore(r.RemoteAddr, true); again && closed.CompareAndSwap(false, true) {
			panic(http.ErrAbortHandler)
		}
		accept(w, r)
	}, httpmtls.Options{Protocol: http1, Retries: -1})
	events := int64(0)
	for ; !closed.Load() && events < 100; events++ { // Two, unless a connection is not kept: see fewConnections.
		mustForward(t, forwarder, event("object"))
	}

	if n := requests.Load(); n != events+1 {
		t.Errorf("%d requests for %d events, want the last of them once more", n, events)
	}
}

// TestCutsUnderLoad resets all connections repeatedly. Every request gets its answer soon, and none
// blocks.
func TestCutsUnderLoad(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		network := &hole{}
		ends := newPKI(t)
		end := newFarEnd(t, ends.server, accept)
		forwarder := newForwarder(t, ends.client, end.address(), httpmtls.Options{
			Protocol: protocol, DialContext: network.dial, Timeout: patience / 2, DialTimeout: patience / 2,
		})
		var (
			group            sync.WaitGroup
			failed, answered atomic.Int64
		)
		const workers, each, cuts = 32, 20, 20
		for range workers {
			group.Go(func() {
				for range each {
					err := forward(t, forwarder, event("object"))
					answered.Add(1)
					if err == nil {
						continue
					}

					failed.Add(1)
					if reason := core.ReasonOf(err); reason == "timeout" {
						t.Errorf("a request hung: %v", err)
					}
				}
			})
		}

		for cut := range cuts {
			for answered.Load() < int64(cut*workers*each/cuts) && !t.Failed() {
				_ = forward(t, forwarder, event("pace"))
			}
			network.cut()
		}

		group.Wait()
		if err := forward(t, forwarder, event("after")); err != nil {
			t.Errorf("after the cuts: %v", err)
		}
		if n := end.connections.Load(); n < 2 {
			t.Errorf("%d connections, want a new one after a cut", n)
		}

		t.Logf("%d of %d requests failed over %d connections", failed.Load(), answered.Load(), end.connections.Load())
	})
}
