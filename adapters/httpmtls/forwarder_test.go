package httpmtls_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func TestOneConnectionForAThousandEvents(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		var major atomic.Int64
		end, forwarder := connect(t, func(w http.ResponseWriter, r *http.Request) {
			major.Store(int64(r.ProtoMajor))
			accept(w, r)
		}, unhurried(protocol))
		for i := range 1000 {
			mustForward(t, forwarder, event(fmt.Sprint("object-", i)))
		}

		if n := end.connections.Load(); n > fewConnections(protocol) {
			t.Errorf("1000 events took %d connections, want at most %d", n, fewConnections(protocol))
		}
		if want := map[string]int64{http2: 2, http1: 1}[protocol]; major.Load() != want {
			t.Errorf("spoke HTTP/%d, want HTTP/%d", major.Load(), want)
		}
	})
}

// fewConnections is the most for requests in sequence. With HTTP/1.1, net/http closes a connection
// if the answer arrives 50 ms before its writing goroutine runs, which happens on busy machines.
func fewConnections(protocol string) int64 { return map[string]int64{http2: 1, http1: 10}[protocol] }

func TestConnectionsAreBoundedWhenManyForwardAtOnce(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		end, forwarder := connect(t, accept, unhurried(protocol))
		var group sync.WaitGroup
		for i := range 400 {
			group.Go(func() {
				if err := forward(t, forwarder, event(fmt.Sprint("object-", i))); err != nil {
					t.Error(err)
				}
			})
		}

		group.Wait()
		// The far end may notice the end of a connection after the next one has begun.
		limit := map[string]int{
			http2: 1, http1: 2 * 8,
		}[protocol]
		end.mu.Lock()
		defer end.mu.Unlock()
		if n := end.most; n > limit {
			t.Errorf("%d connections at once, want at most %d", n, limit)
		}
	})
}

func TestConnectionSurvivesRefusals(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		end, forwarder := connect(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, strings.Repeat("x", 32<<10))
		}, unhurried(protocol))
		for range 10 {
			failure := failureOf(t, forward(t, forwarder, event("object")))
			if failure.Status != http.StatusServiceUnavailable || len(failure.Body) != 1<<10 {
				t.Fatalf("status %d with %d bytes of its body, want 503 with 1 KiB", failure.Status, len(failure.Body))
			}
		}

		if n := end.connections.Load(); n > fewConnections(protocol) {
			t.Errorf("30 refusals took %d connections, want at most %d", n, fewConnections(protocol))
		}
	})
}

// A request has the method, the path and the header of its contract, and a body of known length.
func TestRequest(t *testing.T) {
	t.Parallel()
	for _, version := range contract.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()

			got := make(chan string, 1)
			ends := newPKI(t)
			end := newFarEnd(t, ends.server, func(w http.ResponseWriter, r *http.Request) {
				body := must(io.ReadAll(r.Body))
				batch, err := version.Decode(body)
				defer w.WriteHeader(version.Status())
				got <- fmt.Sprint(r.Method, " ", r.URL.Path, " ", r.Header.Get("Content-Type"), " ",
					r.Header.Get("User-Agent"), " ",
					r.Header.Values("Idempotency-Key"), " ", r.ContentLength == int64(len(body)), " ",
					r.TLS.PeerCertificates[0].Subject.CommonName, " ",
					batch.Events[0].Watched.Name, err)
			})
			forwarder := newForwarderOf(t, ends.client, "https://"+end.address()+"/", version,
				httpmtls.Options{UserAgent: "agent/1"})
			mustForward(t, forwarder, event("object"))
			want := fmt.Sprintf("POST %s %s agent/1 [] true skr-1 object<nil>", version.Path(manager),
				version.ContentType())
			if diff := cmp.Diff(want, <-got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Invalid managers and malformed events are not sent.
func TestNothingIsSent(t *testing.T) {
	t.Parallel()

	end, forwarder := connect(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("reached %s", r.URL) }, httpmtls.Options{})
	for _, name := range []core.Manager{
		"", "..", "a/b", "%2F", "a?b", "A", "ä", "a\r\nHost: b",
		core.Manager(strings.Repeat("a", 300)),
	} {
		err := forwarder.Forward(t.Context(), name, core.NewBatch(event("object")))
		if !core.IsPermanent(err) || core.ReasonOf(err) != "invalid_manager" {
			t.Errorf("manager %q: %v, want a permanent error with the reason invalid_manager", name, err)
		}
	}

	for _, e := range []core.WatchEvent{{}, event(strings.Repeat("x", 300))} {
		failure := failureOf(t, forward(t, forwarder, e))
		if !core.IsPermanent(failure) || core.ReasonOf(failure) != "unsendable" || !strings.Contains(failure.Error(), "malformed event") {
			t.Errorf("have %v, want a permanent error about a malformed event", failure)
		}
	}

	if n := end.connections.Load(); n != 0 {
		t.Errorf("%d connections, want none", n)
	}
}

// A batch without key material is the sender's fault and not that of its events, which are kept.
func TestBatchWithoutIdentityIsKept(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	end := newFarEnd(t, ends.server, accept)
	for _, version := range []contract.Version{contract.V2, contract.V3} {
		source := newSwitch(ends.client)
		forwarder := newForwarderOf(t, source, end.address(), version, httpmtls.Options{})
		source.set(nil)
		failure := failureOf(t, forward(t, forwarder, event("a")))
		if core.IsPermanent(failure) || core.ReasonOf(failure) != "material" {
			t.Errorf("%s: have %v with reason %s, want one that passes, with reason material", version, failure, core.ReasonOf(failure))
		}

		source.set(ends.client)
		if err := forward(t, forwarder, event("a")); err != nil {
			t.Errorf("%s, with key material again: %v", version, err)
		}
	}
}

func TestRetriesEndWithDeadline(t *testing.T) {
	t.Parallel()

	var retried atomic.Int64
	_, forwarder := connect(t, answerWith(http.StatusServiceUnavailable), httpmtls.RetryWait(httpmtls.Options{
		Hooks: httpmtls.Hooks{Retried: func(hook.Retry) { retried.Add(1) }},
	}, time.Hour))
	failure := failureOf(t, forward(t, forwarder, event("object")))
	if failure.Status != http.StatusServiceUnavailable {
		t.Errorf("have %v, want the 503 rather than the wait", failure)
	}
	if retried.Load() != 0 {
		t.Error("a retry that cannot end in time must not begin")
	}
}

func TestShortRetrySucceeds(t *testing.T) {
	t.Parallel()
	for _, first := range []int{http.StatusBadGateway, http.StatusServiceUnavailable, 0} {
		t.Run(strconv.Itoa(first), func(t *testing.T) {
			t.Parallel()
			eachProtocol(t, func(t *testing.T, protocol string) {
				t.Helper()

				var (
					requests atomic.Int64
					retried  = make(chan int, 10)
				)
				_, forwarder := connect(t, func(w http.ResponseWriter, r *http.Request) {
					_ = must(io.ReadAll(r.Body))
					switch {
					case requests.Add(1) > 1:
					case first == 0:
						panic(http.ErrAbortHandler)
					default:
						w.WriteHeader(first)
					}
				}, httpmtls.Options{
					Protocol: protocol,
					Hooks:    httpmtls.Hooks{Retried: func(r hook.Retry) { retried <- r.Status }},
				})
				mustForward(t, forwarder, event("object"))
				if status := <-retried; status != first || len(retried) != 0 {
					t.Errorf("retried after %d and %d more, want once after %d", status, len(retried), first)
				}
			})
		})
	}
}

func TestProxyOnlyIfConfigured(t *testing.T) {
	proxy := must(net.Listen("tcp", "127.0.0.1:0"))
	defer proxy.Close()
	t.Setenv("HTTPS_PROXY", "http://"+proxy.Addr().String())
	t.Setenv("https_proxy", "http://"+proxy.Addr().String())
	ends := newPKI(t)
	end := newFarEnd(t, ends.server, accept)
	if err := forward(t, newForwarder(t, ends.client, end.address(), httpmtls.Options{}), event("object")); err != nil {
		t.Errorf("without the option: %v", err)
	}

	asked := errors.New("asked")
	err := forward(t, newForwarder(t, ends.client, end.address(), httpmtls.Options{
		Retries: -1, Proxy: func(*http.Request) (*url.URL, error) { return nil, asked },
	}), event("object"))
	if !errors.Is(err, asked) {
		t.Errorf("with the option: %v, want that it was asked", err)
	}
}

// Close ends the connections and may be called twice. A later request fails with its reason.
func TestClosed(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		end, forwarder := connect(t, accept, httpmtls.Options{Protocol: protocol})
		mustForward(t, forwarder, event("object"))
		for range 2 {
			check(t, forwarder.Close())
		}

		end.awaitOpen(t, 0)
		if err := forward(t, forwarder, event("object")); core.ReasonOf(err) != "closed" || core.IsPermanent(err) {
			t.Errorf("have %v, want that it is closed", err)
		}
	})
}

// An invalid argument or option is an error, which names it.
func TestNewForwarderRefuses(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	bundle := must(keys.NewMaterial(ends.ca.PEM, nil, nil))
	for name, tc := range map[string]struct {
		source  keys.Source
		address string
		version contract.Version
		opts    httpmtls.Options
		want    string
	}{
		"no address":     {ends.client, "", contract.V2, httpmtls.Options{}, `address ""`},
		"http":           {ends.client, "http://kcp:80", contract.V2, httpmtls.Options{}, "want host:port or https://"},
		"path":           {ends.client, "kcp:443/v2", contract.V2, httpmtls.Options{}, "without user, path or query"},
		"query":          {ends.client, "kcp:443?a", contract.V2, httpmtls.Options{}, "without user, path or query"},
		"credentials":    {ends.client, "https://me:secret@kcp", contract.V2, httpmtls.Options{}, "(with credentials)"},
		"port":           {ends.client, "kcp:70000", contract.V2, httpmtls.Options{}, "kcp:70000"},
		"empty port":     {ends.client, "kcp:", contract.V2, httpmtls.Options{}, "kcp:"},
		"no host":        {ends.client, ":443", contract.V2, httpmtls.Options{}, ":443"},
		"space":          {ends.client, "kc p:443", contract.V2, httpmtls.Options{}, "kc p"},
		"contract":       {ends.client, "kcp:443", "v0", httpmtls.Options{}, "unknown contract"},
		"protocol":       {ends.client, "kcp:443", contract.V2, httpmtls.Options{Protocol: "h3"}, `Protocol is "h3"`},
		"timeout":        {ends.client, "kcp:443", contract.V2, httpmtls.Options{Timeout: -1}, "Timeout is -1"},
		"bundle only":    {bundle, "kcp:443", contract.V2, httpmtls.Options{}, "want a certificate with its key"},
		"no source":      {nil, "kcp:443", contract.V2, httpmtls.Options{}, "no key material"},
		"two options":    {ends.client, "kcp:443", contract.V2, httpmtls.Options{Timeout: -1, InFlight: -2}, "InFlight is -2"},
		"nothing at all": {(*keys.Material)(nil), "kcp:443", contract.V2, httpmtls.Options{}, "no key material"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := httpmtls.NewForwarder(tc.source, tc.address, tc.version, tc.opts)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("have %v, want an error with %q", err, tc.want)
			}
		})
	}

	for _, address := range []string{
		"kcp", "kcp:443", "https://kcp", "https://kcp:8443/", "192.0.2.1:443",
		"[2001:db8::1]:443",
	} {
		if _, err := httpmtls.NewForwarder(ends.client, address, contract.V1, httpmtls.Options{}); err != nil {
			t.Errorf("address %q: %v", address, err)
		}
	}
}

// switchSource is material that a test replaces.
type switchSource struct {
	atomic.Pointer[keys.Material]
}

func newSwitch(material *keys.Material) *switchSource {
	s := &switchSource{}
	s.set(material)
	return s
}

func (s *switchSource) set(material *keys.Material) { s.Store(material) }

func (s *switchSource) Material() (*keys.Material, error) { return s.Load().Material() }

func ExampleForwarder() {
	ca := must(testpki.NewCA("example", testpki.Options{}))
	leaf := must(ca.Client("skr-1", testpki.Options{}))
	ends := must(keys.NewMaterial(ca.PEM, leaf.CertPEM, leaf.KeyPEM))
	forwarder, err := httpmtls.NewForwarder(ends, "kcp.invalid:443", contract.V2, httpmtls.Options{})
	if err != nil {
		panic(err)
	}
	defer forwarder.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err = forwarder.Forward(ctx, "lifecycle-manager", core.NewBatch(event("object")))
	fmt.Println("reason:", core.ReasonOf(err), "permanent:", core.IsPermanent(err))
	// Output: reason: canceled permanent: false
}

// A receiver grants 16 requests at a time to one runtime, and refuses more. An agent with more
// managers must not throttle itself, and uses what is granted: 16 requests are there, and none
// follows until they have answers.
func TestRequestsInFlightFitTheReceiver(t *testing.T) {
	t.Parallel()

	const managers, granted = 100, 16
	var inFlight, most atomic.Int64
	full := make(chan struct{})
	answer := make(chan struct{})
	isFull := sync.OnceFunc(func() { close(full) })
	_, forwarder := connect(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := inFlight.Add(1)
		defer inFlight.Add(-1)
		for {
			if seen := most.Load(); n <= seen || most.CompareAndSwap(seen, n) {
				break
			}
		}

		if n == granted {
			isFull()
		}

		<-answer
	}, httpmtls.Options{})
	var all sync.WaitGroup
	for i := range managers {
		all.Go(func() {
			if err := forwarder.Forward(t.Context(), core.Manager("m-"+strconv.Itoa(i)), core.NewBatch(event("a"))); err != nil {
				t.Error(err)
			}
		})
	}

	select {
	case <-full:
	case <-time.After(time.Minute):
		t.Errorf("%d requests at a time", most.Load())
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := forwarder.Forward(ctx, "one-more", core.NewBatch(event("a"))); err == nil {
		t.Error("a request is answered beyond those that are granted")
	}

	close(answer)
	all.Wait()
	if most.Load() != granted {
		t.Errorf("%d requests at a time, want %d", most.Load(), granted)
	}
}

func TestBatchesClaimTheIdentityOfTheCertificate(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	for identity, want := range map[core.RuntimeID]core.RuntimeID{"": "skr-1", "spiffe://a/b": "spiffe://a/b"} {
		arrived := make(chan core.Batch, 1)
		end := newFarEnd(t, ends.server, func(w http.ResponseWriter, r *http.Request) {
			arrived <- must(contract.V3.Decode(must(io.ReadAll(r.Body))))
			w.WriteHeader(http.StatusAccepted)
		})
		forwarder := newForwarderOf(t, ends.client, end.address(), contract.V3, httpmtls.Options{Identity: identity})
		check(t, forward(t, forwarder, event("a"), event("b"), event("c")))
		got := receive(t, arrived)
		ids := map[string]bool{}
		for i := range got.Events {
			ids[got.Events[i].ID] = true
		}

		if got.Source != want || len(got.Events) != 3 || len(ids) != 3 {
			t.Errorf("batch of %q with %d events and %d IDs, want one of %q with 3", got.Source, len(got.Events), len(ids), want)
		}
	}
}

func TestForwarderConformance(t *testing.T) {
	t.Parallel()
	for _, version := range contract.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			eachProtocol(t, func(t *testing.T, protocol string) {
				t.Helper()
				coretest.TestForwarder(t, func(t *testing.T, far *coretest.Recorder) coretest.ForwarderHarness {
					t.Helper()

					pki := newPKI(t)
					end := newFarEnd(t, pki.server, contractHandler(version, far))
					opts := unhurried(protocol)
					opts.RefusedRetryAfter = -1 // The suite expects the Retry-After of the far end only.
					forwarder := newForwarderOf(t, pki.client, end.address(), version, opts)
					return coretest.ForwarderHarness{Forwarder: forwarder, Disconnect: func() {
						_ = end.Listener.Close()
						end.CloseClientConnections()
					}}
				}, conformanceOptions(version))
			})
		})
	}
}

func conformanceOptions(version contract.Version) coretest.ForwarderOptions {
	unsendable := event("object")
	if version.NeedsOwner() {
		unsendable.Owner.Name = ""
	} else {
		unsendable.Watched.Name = ""
	}

	return coretest.ForwarderOptions{
		WithoutOwner:   version == contract.V2,
		WithoutNumbers: !version.Numbered(),
		Unsendable:     &unsendable,
	}
}

// contractHandler answers as the contracts require.
func contractHandler(version contract.Version, far *coretest.Recorder) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := must(io.ReadAll(r.Body))
		var to core.Manager
		for _, candidate := range []core.Manager{"manager-a", "manager-b"} {
			if r.URL.Path == version.Path(candidate) {
				to = candidate
			}
		}

		batch, err := version.Decode(body)
		if err == nil {
			err = far.Forward(r.Context(), to, batch)
		}
		// An answer could arrive before the caller notices that its context has ended.
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}

		answer := version.AnswerTo(err)
		if answer.RetryAfter > 0 && answer.Failed == nil {
			w.Header().Set("Retry-After", strconv.FormatInt(contract.Seconds(answer.RetryAfter), 10))
		}

		w.WriteHeader(answer.Status)
		if err != nil {
			_, _ = w.Write(must(answer.Body()))
		}
	}
}
