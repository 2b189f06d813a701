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
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

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

// answerCase is a row of the table of answers in DESIGN §5.
type answerCase struct {
	name    string
	request func() *http.Request
	peers   func(*http.Request) (core.Peer, error)
	verify  core.VerifierFunc
	handle  core.HandlerFunc
	want    answered
	// sent is the reason in the body, when it is not that of the hook.
	sent string
	// event means that the event was refused for itself: the body names it by its index.
	event bool
	// closes means that the connection must end, so that the sender finds another replica.
	closes bool
	// after is the value of Retry-After, when it is not between 1 and 3.
	after string
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	const target = "/v2/lifecycle/event"
	var (
		good     = func() *http.Request { return post(target, bodyV2) }
		stranger = func(*http.Request) (core.Peer, error) {
			return core.Peer{}, fmt.Errorf("inside: %w", core.ErrUnauthenticated)
		}
		unknown = func(err error) core.VerifierFunc {
			return func(context.Context, core.Peer, *core.WatchEvent) error { return err }
		}
		refuse    = func(err error) core.HandlerFunc { return func(context.Context, core.Delivery) error { return err } }
		errInside = errors.New("inside")
	)
	tests := []answerCase{
		{name: "taken", request: good, want: answered{"v2", manager, 200, ""}},
		{
			name:    "media type with parameter",
			request: func() *http.Request { return withType(good(), "Application/JSON; charset=utf-8") },
			want:    answered{"v2", manager, 200, ""},
		},
		{name: "not JSON", request: func() *http.Request { return post(target, "{") }, want: answered{"v2", manager, 400, "malformed"}},
		{name: "empty", request: func() *http.Request { return post(target, "") }, want: answered{"v2", manager, 400, "malformed"}},
		{name: "nothing watched", request: func() *http.Request { return post(target, "{}") }, want: answered{"v2", manager, 400, "malformed"}},
		{
			name:    "v1 without owner",
			request: func() *http.Request { return post("/v1/lifecycle/event", bodyV2) },
			want:    answered{"v1", manager, 400, "malformed"},
		},
		{
			name:    "too large, announced",
			request: func() *http.Request { return post(target, strings.Repeat(" ", 16<<10+1)) },
			want:    answered{"v2", manager, 413, "too_large"}, closes: true,
		},
		{
			name:    "too large, not announced",
			request: func() *http.Request { return unannounced(post(target, strings.Repeat(" ", 16<<10)+bodyV2)) },
			want:    answered{"v2", manager, 413, "too_large"}, closes: true,
		},
		{
			name:    "just small enough",
			request: func() *http.Request { return post(target, strings.Repeat(" ", 16<<10-len(bodyV2))+bodyV2) },
			want:    answered{"v2", manager, 200, ""},
		},
		{
			name:    "cut off on the way",
			request: func() *http.Request { return broken(good()) },
			want:    answered{"v2", manager, 503, "unreadable_body"},
		},
		{name: "no media type", request: func() *http.Request { return withType(good(), "") }, want: answered{"v2", manager, 415, "unsupported_media_type"}},
		{
			name:    "wrong media type",
			request: func() *http.Request { return withType(good(), "text/plain") },
			want:    answered{"v2", manager, 415, "unsupported_media_type"},
		},
		{
			name: "stranger", request: good, peers: stranger,
			want: answered{"v2", "", 401, "unauthenticated"},
		},
		{
			name: "stranger, wrong in every other way", peers: stranger,
			request: func() *http.Request { return httptest.NewRequest(http.MethodGet, "/v2/other/event", http.NoBody) },
			want:    answered{"v2", "", 401, "unauthenticated"},
		},
		{
			name: "peer that is not known yet", request: good,
			peers: func(*http.Request) (core.Peer, error) { return core.Peer{}, core.ErrNotReady },
			want:  answered{"v2", "", 503, "not_ready"}, sent: "not_ready",
		},
		{
			name: "source of peers that panics", request: good,
			peers: func(*http.Request) (core.Peer, error) { panic("inside") },
			want:  answered{"v2", "", 503, "panic"}, sent: "not_ready",
		},
		{
			name: "verifier that refuses the certificate", request: good,
			verify: unknown(listener.Unauthenticated("revoked", "inside")), want: answered{"v2", manager, 401, "revoked"},
		},
		{
			name: "verifier that forbids", request: good,
			verify: unknown(listener.Forbidden("san_mismatch", "inside")), want: answered{"v2", manager, 403, "san_mismatch"},
		},
		{name: "verifier that is not ready", request: good, verify: unknown(core.ErrNotReady), want: answered{"v2", manager, 503, "not_ready"}},
		{name: "verifier that is broken", request: good, verify: unknown(errInside), want: answered{"v2", manager, 503, "other"}},
		{
			name: "verifier that panics", request: good,
			verify: func(context.Context, core.Peer, *core.WatchEvent) error { panic("inside") },
			want:   answered{"v2", manager, 500, "panic"}, event: true,
		},
		{name: "handler that is not ready", request: good, handle: refuse(core.ErrNotReady), want: answered{"v2", manager, 503, "not_ready"}, closes: true},
		{name: "handler that is broken", request: good, handle: refuse(errInside), want: answered{"v2", manager, 500, "other"}, event: true},
		{
			name: "handler that forbids: that is for verifiers to do", request: good,
			handle: refuse(core.ErrForbidden), want: answered{"v2", manager, 500, "forbidden"}, event: true,
		},
		{
			name: "handler that panics", request: good,
			handle: func(context.Context, core.Delivery) error { panic("inside") },
			want:   answered{"v2", manager, 500, "panic"}, event: true,
		},
		{
			name: "handler that asks to wait", request: good,
			handle: refuse(waitError(1500 * time.Millisecond)), want: answered{"v2", manager, 500, "other"}, event: true, after: "2",
		},
		{
			name: "handler that asks to wait for ever", request: good,
			handle: refuse(waitError(1 << 62)), want: answered{"v2", manager, 500, "other"}, event: true, after: "300",
		},
		{
			name: "handler that takes too long", request: good,
			handle: func(ctx context.Context, _ core.Delivery) error {
				<-ctx.Done()
				return ctx.Err()
			},
			want: answered{"v2", manager, 500, "timeout"}, event: true,
		},
		{
			name:    "GET",
			request: func() *http.Request { return httptest.NewRequest(http.MethodGet, target, http.NoBody) },
			want:    answered{"v2", "", 405, "method_not_allowed"},
		},
		{name: "unknown manager", request: func() *http.Request { return post("/v2/other/event", bodyV2) }, want: answered{"v2", "", 404, "unknown_manager"}},
		{name: "unknown contract", request: func() *http.Request { return post("/v0/lifecycle/event", bodyV2) }, want: answered{"", "", 404, "not_found"}},
		{name: "nothing there", request: func() *http.Request { return post("/", bodyV2) }, want: answered{"", "", 404, "not_found"}},
		{name: "behind the path", request: func() *http.Request { return post(target+"/", bodyV2) }, want: answered{"", "", 404, "not_found"}},
		{name: "dots", request: func() *http.Request { return post("/v2/x/../lifecycle/event", bodyV2) }, want: answered{"", "", 404, "not_found"}},
		{name: "no manager", request: func() *http.Request { return post("/v2//event", bodyV2) }, want: answered{"", "", 404, "not_found"}},
		{
			name:    "escaped dots",
			request: func() *http.Request { return post("/v2/%2e%2e/event", bodyV2) }, want: answered{"v2", "", 404, "unknown_manager"},
		},
		{
			name:    "escaped slash",
			request: func() *http.Request { return post("/v2/lifecycle%2Fevent/event", bodyV2) }, want: answered{"v2", "", 404, "unknown_manager"},
		},
		{
			name:    "300 characters",
			request: func() *http.Request { return post("/v2/"+strings.Repeat("a", 300)+"/event", bodyV2) },
			want:    answered{"v2", "", 404, "unknown_manager"},
		},
		{
			name:    "not ASCII",
			request: func() *http.Request { return post("/v2/lifecyclé/event", bodyV2) }, want: answered{"v2", "", 404, "unknown_manager"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
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

// A handler that blocks costs its slots, and nothing else.
func TestBlockedHandler(t *testing.T) {
	t.Parallel()
	const slots, flood = 4, 500
	var (
		record recorder
		free   = make(chan struct{})
		inside = make(chan struct{}, slots)
		group  sync.WaitGroup
	)
	handler := core.HandlerFunc(func(context.Context, core.Delivery) error {
		inside <- struct{}{}
		<-free // Without a look at its context: the worst that there is.
		return nil
	})
	inFlight := &gauge{}
	hooks := record.hooks()
	hooks.InFlight = inFlight.add
	run := start(t, listener.PeersFunc(known), listener.InsecureAllowAll(), handler,
		listener.Options{MaxInFlight: slots, RuntimeBurst: 2 * flood, RuntimeRate: 2 * flood, Hooks: hooks})
	client := newClient(t, nil, false)
	for range slots {
		group.Go(func() { mustSend(t, client, run.url+"/v2/lifecycle/event", bodyV2, nil) })
	}
	for range slots {
		<-inside
	}
	before := runtime.NumGoroutine()
	for range flood {
		response, body := mustSend(t, client, run.url+"/v2/lifecycle/event", bodyV2, nil)
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
			t.Fatalf("answer %d %q, want 503 with Retry-After", response.StatusCode, body)
		}
	}
	// Other tests run beside this one; a goroutine for each request would stand out.
	if after := runtime.NumGoroutine(); after-before > flood/2 {
		t.Errorf("%d goroutines after %d refused requests, %d before", after, flood, before)
	}
	if now, _ := inFlight.read(); now != slots {
		t.Errorf("%d in flight, want %d", now, slots)
	}
	close(free)
	group.Wait()
	response, _ := mustSend(t, client, run.url+"/v2/lifecycle/event", bodyV2, nil)
	if response.StatusCode != http.StatusOK {
		t.Errorf("answer %d when there is room again, want 200", response.StatusCode)
	}
	if now, most := inFlight.read(); now != 0 || most != slots {
		t.Errorf("%d in flight, %d at most, want 0 and %d", now, most, slots)
	}
}

// gauge counts the requests in flight, and the most of them.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

func (g *gauge) add(delta int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += delta
	g.most = max(g.most, g.now)
}

func (g *gauge) read() (now, most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now, g.most
}

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
