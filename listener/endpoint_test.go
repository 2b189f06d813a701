package listener_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/listenertest"
)

// The handler gets the event with its verified sender and the time of its arrival, and the sender
// an empty answer.
func TestEventsAreDelivered(t *testing.T) {
	t.Parallel()

	received := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	event := core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "kyma-system", Name: "default"},
		WatchedGVK: schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"},
	}
	owned := event
	owned.Owner = types.NamespacedName{Namespace: "kcp-system", Name: "runtime-a"}

	tests := []struct {
		contract, body string
		want           core.WatchEvent
	}{
		{"v1", bodyV1, owned},
		{"v2", bodyV2, event},
		// An agent that still sends an owner: contract v2 ignores it.
		{"v2", bodyV1, event},
	}

	for _, test := range tests {
		t.Run(test.contract, func(t *testing.T) {
			t.Parallel()

			var record recorder
			l := newListener(t, listener.PeersFunc(known), listener.InsecureAllowAll(), &record, listener.Options{
				Now: func() time.Time { return received }, Hooks: record.hooks(),
			})

			w := serve(l, post("/"+test.contract+"/lifecycle/event", test.body))
			if w.Code != http.StatusOK || w.Body.Len() != 0 {
				t.Errorf("answer %d with body %q, want 200 without", w.Code, w.Body)
			}

			deliveries, answers := record.taken()
			want := []core.Delivery{{Runtime: "runtime-a", Manager: manager, Event: test.want, Received: received}}
			if diff := cmp.Diff(want, deliveries); diff != "" {
				t.Errorf("deliveries (-want +have):\n%s", diff)
			}

			if diff := cmp.Diff([]answered{{test.contract, manager, 200, ""}}, answers); diff != "" {
				t.Errorf("answers (-want +have):\n%s", diff)
			}
		})
	}
}

// answerCase is a row of the table of answers in docs/reference/contract-v3.md#answers, for each
// contract.
type answerCase struct {
	name    string
	request func() *http.Request
	peers   func(*http.Request) (core.Peer, error)
	verify  core.VerifierFunc
	handle  core.HandlerFunc
	want    answered
	// sent is the reason in the body, when it is not that of the hook.
	sent string
	// event means that the event was refused individually: the body names it by its index.
	event bool
	// closes means that the connection must end, so that the sender finds another replica.
	closes bool
	// after is the value of Retry-After, when it is not between 1 and 3.
	after string
}

// Each fault has its status, its reason in the metrics, and an answer without the text of the
// cause.
func TestAnswers(t *testing.T) {
	t.Parallel()

	const target, target3 = "/v2/lifecycle/event", "/v3/lifecycle/events"
	var (
		good  = asks(target, bodyV2)
		batch = func(body, mediaType string) func() *http.Request {
			return func() *http.Request { return withType(post(target3, body), mediaType) }
		}
		typed = func(mediaType string) func() *http.Request {
			return func() *http.Request { return withType(good(), mediaType) }
		}
		type3     = contract.V3.ContentType()
		blank     = func(size int) string { return strings.Repeat(" ", size) }
		v2        = func(status int, reason string) answered { return answered{"v2", manager, status, reason} }
		v3        = func(status int, reason string) answered { return answered{"v3", manager, status, reason} }
		elsewhere = func(contract string, reason string) answered { return answered{contract, "", 404, reason} }
		taken     = v2(200, "")
		stranger  = func(*http.Request) (core.Peer, error) {
			return core.Peer{}, fmt.Errorf("inside: %w", core.ErrUnauthenticated)
		}
		early   = func(*http.Request) (core.Peer, error) { return core.Peer{}, core.ErrNotReady }
		verdict = func(err error) core.VerifierFunc {
			return func(context.Context, core.Peer, *core.WatchEvent) error { return err }
		}
		refuse    = func(err error) core.HandlerFunc { return func(context.Context, core.Delivery) error { return err } }
		errInside = errors.New("inside")
	)

	tests := []answerCase{
		{name: "taken", request: good, want: taken},
		{name: "media type with parameter", request: typed("Application/JSON; charset=utf-8"), want: taken},
		{name: "not JSON", request: asks(target, "{"), want: v2(400, "malformed")},
		{name: "empty", request: asks(target, ""), want: v2(400, "malformed")},
		{name: "nothing watched", request: asks(target, "{}"), want: v2(400, "malformed")},
		{name: "v1 without owner", request: asks("/v1/lifecycle/event", bodyV2), want: answered{"v1", manager, 400, "malformed"}},
		{name: "too large, announced", request: asks(target, blank(16<<10+1)), want: v2(413, "too_large"), closes: true},
		{
			name: "too large, not announced", want: v2(413, "too_large"), closes: true,
			request: func() *http.Request { return unannounced(post(target, blank(16<<10)+bodyV2)) },
		},
		{name: "just small enough", request: asks(target, blank(16<<10-len(bodyV2))+bodyV2), want: taken},
		{name: "cut off on the way", request: func() *http.Request { return broken(good()) }, want: v2(503, "unreadable_body")},
		{name: "no media type", request: typed(""), want: v2(415, "unsupported_media_type")},
		{name: "wrong media type", request: typed("text/plain"), want: v2(415, "unsupported_media_type")},
		{name: "v3, no JSON", request: batch("[", type3), want: v3(400, "malformed")},
		{name: "v3, no events", request: batch("[]", type3), want: v3(400, "malformed")},
		{name: "v3, event of v2", request: batch(bodyV2, type3), want: v3(400, "malformed")},
		{name: "v3, media type of v2", request: batch("[]", "application/json"), want: v3(415, "unsupported_media_type")},
		{name: "v3, media type of one event", request: batch("{}", "application/cloudevents+json"), want: v3(415, "unsupported_media_type")},
		{name: "v3, too large", request: batch(blank(contract.V3.MaxBody()+1), type3), want: v3(413, "too_large"), closes: true},
		{name: "stranger", request: good, peers: stranger, want: answered{"v2", "", 401, "unauthenticated"}},
		{
			name: "stranger, wrong in every other way", peers: stranger, want: answered{"v2", "", 401, "unauthenticated"},
			request: func() *http.Request { return httptest.NewRequest(http.MethodGet, "/v2/other/event", http.NoBody) },
		},
		{name: "peer that is not known yet", request: good, peers: early, want: answered{"v2", "", 503, "not_ready"}},
		{
			name: "source of peers that panics", request: good, want: answered{"v2", "", 503, "panic"}, sent: "not_ready",
			peers: func(*http.Request) (core.Peer, error) { panic("inside") },
		},
		{
			name: "verifier that refuses the certificate", request: good, want: v2(401, "revoked"),
			verify: verdict(listener.Unauthenticated("revoked", errors.New("inside"))),
		},
		{
			name: "verifier that forbids", request: good, want: v2(403, "san_mismatch"),
			verify: verdict(listener.Forbidden("san_mismatch", errors.New("inside"))),
		},
		{name: "verifier that is not ready", request: good, verify: verdict(core.ErrNotReady), want: v2(503, "not_ready")},
		{name: "verifier that is broken", request: good, verify: verdict(errInside), want: v2(503, "other")},
		{name: "handler that is not ready", request: good, handle: refuse(core.ErrNotReady), want: v2(503, "not_ready"), closes: true},
		{name: "handler that is broken", request: good, handle: refuse(errInside), want: v2(500, "other"), event: true},
		// That is for verifiers to do.
		{name: "handler that forbids", request: good, handle: refuse(core.ErrForbidden), want: v2(500, "forbidden"), event: true},
		{
			name: "handler that panics", request: good, want: v2(500, "panic"), event: true,
			handle: func(context.Context, core.Delivery) error { panic("inside") },
		},
		{
			name: "handler that asks to wait", request: good, want: v2(500, "other"), event: true, after: "2",
			handle: refuse(waitError(1500 * time.Millisecond)),
		},
		{
			name: "handler that asks to wait for ever", request: good, want: v2(500, "other"), event: true, after: "300",
			handle: refuse(waitError(1 << 62)),
		},
		{
			name: "handler that takes too long", request: good, want: v2(500, "timeout"), event: true,
			handle: func(ctx context.Context, _ core.Delivery) error { <-ctx.Done(); return ctx.Err() },
		},
		{
			name: "GET", want: answered{"v2", "lifecycle", 405, "method_not_allowed"},
			request: func() *http.Request { return httptest.NewRequest(http.MethodGet, target, http.NoBody) },
		},
		{name: "unknown manager", request: asks("/v2/other/event", bodyV2), want: elsewhere("v2", "unknown_manager")},
		{name: "unknown contract", request: asks("/v0/lifecycle/event", bodyV2), want: elsewhere("", "not_found")},
		{name: "nothing there", request: asks("/", bodyV2), want: elsewhere("", "not_found")},
		{name: "behind the path", request: asks(target+"/", bodyV2), want: elsewhere("", "not_found")},
		{name: "dots", request: asks("/v2/x/../lifecycle/event", bodyV2), want: elsewhere("", "not_found")},
		{name: "no manager", request: asks("/v2//event", bodyV2), want: elsewhere("", "not_found")},
		{name: "escaped dots", request: asks("/v2/%2e%2e/event", bodyV2), want: elsewhere("v2", "unknown_manager")},
		{name: "escaped slash", request: asks("/v2/lifecycle%2Fevent/event", bodyV2), want: elsewhere("v2", "unknown_manager")},
		{name: "300 characters", request: asks("/v2/"+strings.Repeat("a", 300)+"/event", bodyV2), want: elsewhere("v2", "unknown_manager")},
		{name: "not ASCII", request: asks("/v2/lifecyclé/event", bodyV2), want: elsewhere("v2", "unknown_manager")},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}

func asks(target, body string) func() *http.Request {
	return func() *http.Request { return post(target, body) }
}

func (c *answerCase) run(t *testing.T) {
	t.Helper()

	var (
		record   recorder
		peers    = listener.PeersFunc(known)
		verifier = listener.InsecureAllowAll()
		handler  = core.Handler(&record)
	)
	if c.peers != nil {
		peers = listener.PeersFunc(c.peers)
	}
	if c.verify != nil {
		verifier = c.verify
	}
	if c.handle != nil {
		handler = c.handle
	}
	opts := listener.Options{Hooks: record.hooks()}
	if c.want.Reason == "timeout" {
		opts.HandleTimeout = 20 * time.Millisecond
	}
	l := newListener(t, peers, verifier, handler, opts)
	w := serve(l, c.request())

	deliveries, answers := record.taken()
	if diff := cmp.Diff([]answered{c.want}, answers); diff != "" {
		t.Errorf("answers to the hook (-want +have):\n%s", diff)
	}
	if w.Code != c.want.Status {
		t.Errorf("status %d, want %d", w.Code, c.want.Status)
	}

	if taken := c.want.Status == http.StatusOK; taken != (len(deliveries) == 1) {
		t.Errorf("%d deliveries with status %d", len(deliveries), w.Code)
	}

	c.checkBody(t, w)
	c.checkHeaders(t, w.Header())
}

func (c *answerCase) checkBody(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()

	sent := c.sent
	if sent == "" {
		sent = c.want.Reason
	}

	want := ""
	switch {
	case c.event && c.after != "":
		want = fmt.Sprintf(`{"reason":%q,"failed":[{"index":0,"status":503,"reason":%q,"retryAfter":%s}]}`, sent, sent, c.after) + "\n"
	case c.event:
		want = fmt.Sprintf(`{"reason":%q,"failed":[{"index":0,"status":503,"reason":%q}]}`, sent, sent) + "\n"
	case sent != "":
		want = fmt.Sprintf("{\"reason\":%q}\n", sent)
	}

	if have := w.Body.String(); have != want {
		t.Errorf("body %q, want %q", have, want)
	}
}

func (c *answerCase) checkHeaders(t *testing.T, header http.Header) {
	t.Helper()

	after, err := strconv.Atoi(header.Get("Retry-After"))
	switch {
	case c.want.Status != http.StatusServiceUnavailable:
		if header.Get("Retry-After") != "" {
			t.Errorf("Retry-After %q with status %d", header.Get("Retry-After"), c.want.Status)
		}
	case c.after != "":
		if header.Get("Retry-After") != c.after {
			t.Errorf("Retry-After %q, want %q", header.Get("Retry-After"), c.after)
		}
	case err != nil || after < 1 || after > 3:
		t.Errorf("Retry-After %q, want 1 to 3", header.Get("Retry-After"))
	}

	if closes := header.Get("Connection") == "close"; closes != c.closes {
		t.Errorf("closes the connection: %v, want %v", closes, c.closes)
	}
	if c.want.Status == http.StatusMethodNotAllowed && header.Get("Allow") != http.MethodPost {
		t.Errorf("Allow %q, want POST", header.Get("Allow"))
	}
}

type waitError time.Duration

func (e waitError) Error() string { return "wait" }

func (e waitError) RetryAfter() time.Duration { return time.Duration(e) }

func withType(r *http.Request, mediaType string) *http.Request {
	r.Header.Set("Content-Type", mediaType)
	return r
}

func unannounced(r *http.Request) *http.Request {
	r.ContentLength = -1
	return r
}

func broken(r *http.Request) *http.Request {
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader(bodyV2[:10]), errReader{}))
	return r
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// A handler that blocks costs the slots of its runtime, or all that there are, and nothing else.
func TestInFlightIsBoundedForEachRuntime(t *testing.T) {
	t.Parallel()

	const slots = 2
	for name, test := range map[string]struct {
		opts   listener.Options
		status int
		reason string
		other  int // the status of another runtime
	}{
		"of one runtime": {listener.Options{RuntimeInFlight: slots}, 429, reasons.TooFast, 202},
		"of all":         {listener.Options{MaxInFlight: slots}, 503, reasons.Busy, 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var (
				inside, free = make(chan struct{}, 2*slots), make(chan struct{})
				inFlight     atomic.Int64
				group        sync.WaitGroup
			)

			handler := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
				if d.Runtime == runtimeA {
					inside <- struct{}{}
					<-free // A handler that ignores its context holds its slot longest.
				}
				return nil
			})

			test.opts.Hooks.InFlight = func(delta int) { inFlight.Add(int64(delta)) }
			l := newListener(t, listener.PeersFunc(named), listener.InsecureAllowAll(), handler, test.opts)
			send := func(runtime core.RuntimeID, status int) *httptest.ResponseRecorder {
				w := serve(l, batchFrom(t, runtime, change(runtime, 1)))
				if w.Code != status {
					t.Errorf("%s is answered %d, want %d", runtime, w.Code, status)
				}
				return w
			}

			for range slots {
				group.Go(func() { send(runtimeA, 202) })
			}

			for range slots {
				<-inside
			}

			w := send(runtimeA, test.status)
			if !strings.Contains(w.Body.String(), test.reason) || w.Header().Get("Retry-After") == "" {
				t.Errorf("answer %s with %v, want %s with Retry-After", w.Body, w.Header(), test.reason)
			}

			send(runtimeB, test.other)
			if n := inFlight.Load(); n != slots {
				t.Errorf("%d in flight, want %d", n, slots)
			}

			close(free)
			group.Wait()
			send(runtimeA, 202)
			if n := inFlight.Load(); n != 0 {
				t.Errorf("%d in flight, want none", n)
			}
		})
	}
}

// A panic is logged with its stack, and the refusal of the request with the runtime.
func TestLogs(t *testing.T) {
	t.Parallel()

	var text bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	panics := core.HandlerFunc(func(context.Context, core.Delivery) error { panic("the cause") })
	l := newListener(t, listener.PeersFunc(known), listener.InsecureAllowAll(), panics, listener.Options{Logger: logger})
	serve(l, post("/v2/lifecycle/event", bodyV2))

	for _, want := range []string{"level=ERROR", "the cause", "endpoint_test.go", "level=DEBUG", "reason=panic", "runtime=runtime-a"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("log has no %q:\n%s", want, &text)
		}
	}
}

// FuzzServeHTTP looks for a path that reaches the handler of another manager. It also looks for a
// body that is taken although it names no object, and for answers that are not in the table.
func FuzzServeHTTP(f *testing.F) {
	for _, path := range []string{
		"/v1/lifecycle/event", "/v2/lifecycle/event", "/v3/lifecycle/events", "/v2/other/event", "/v2/%2e%2e/event", "/v2/a%2Fb/event",
		"//v2/lifecycle/event", "/v2/lifecycle/../lifecycle/event", "/v2/lifecycle/event/", "*", "/v2/lifecycle%00/event", "/v2/é/event",
	} {
		f.Add(path, bodyV1)
	}

	for _, body := range []string{"", "{", "null", "[]", "{}", bodyV2, bodyV2 + bodyV2, strings.Repeat("[", 5000), strings.Repeat(" ", 17<<10)} {
		f.Add("/v2/lifecycle/event", body)
	}

	allowed := map[int]bool{200: true, 202: true, 400: true, 404: true, 413: true, 415: true}
	f.Fuzz(func(t *testing.T, path, body string) {
		target, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		var record recorder
		l := newListener(t, listener.PeersFunc(known), listener.InsecureAllowAll(), &record, listener.Options{Hooks: record.hooks()})
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.URL = target
		r.RequestURI = path
		r.Header.Set("Content-Type", "application/json")

		w := serve(l, r)
		if !allowed[w.Code] {
			t.Fatalf("answer %d %s", w.Code, w.Body)
		}
		deliveries, answers := record.taken()
		if len(answers) != 1 || answers[0].Status != w.Code || (answers[0].Reason == "") != (w.Code < 300) {
			t.Errorf("answer %d was counted as %+v", w.Code, answers)
		}

		if (len(deliveries) > 0) != (w.Code < 300) {
			t.Errorf("%d deliveries with answer %d", len(deliveries), w.Code)
		}

		for _, d := range deliveries {
			if !d.Event.Resync && (d.Event.Watched.Name == "" || !strings.Contains(target.Path, "/lifecycle/")) {
				t.Errorf("delivery %+v of path %q", d, target.Path)
			}
		}
	})
}

// The listener behaves as every receiver does. The forwarder of package httpmtls is in another
// module; that of listenertest has its meaning of answers.
func TestReceiverConformance(t *testing.T) {
	t.Parallel()
	coretest.TestReceiver(t, func(t *testing.T, parts coretest.ReceiverParts) func(core.RuntimeID) core.Forwarder {
		t.Helper()
		l := must(listener.New(listenertest.Peers(), parts.Verifier, parts.Handlers, listener.Options{Fleet: parts.Fleet}))(t)
		return func(runtime core.RuntimeID) core.Forwarder { return listenertest.Forwarder(l, core.Peer{ID: runtime}) }
	}, coretest.ReceiverOptions{})
}
