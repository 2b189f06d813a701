package admission_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
)

// statusOf checks a refusal, and returns its message.
func statusOf(t testing.TB, code int, header http.Header, body []byte) string {
	t.Helper()

	var status metav1.Status
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&status); err != nil {
		t.Fatalf("answer %q: %v, want a Status", body, err)
	}
	if status.Kind != "Status" || status.APIVersion != "v1" || status.Status != metav1.StatusFailure ||
		int(status.Code) != code || status.Reason == "" || status.Message == "" {
		t.Errorf("answered %s, want a complete v1 Status of %d", body, code)
	}

	if contentType := header.Get("Content-Type"); contentType != "application/json" {
		t.Errorf("Content-Type %q, want application/json", contentType)
	}

	return status.Message
}

// call is a request that differs from the one of an API server in what is not empty.
type call struct{ method, path, mediaType, encoding, body string }

func (c call) request() *http.Request {
	r := request(cmp.Or(c.path, "/validate/kyma"), strings.NewReader(c.body))
	r.Method = cmp.Or(c.method, http.MethodPost)

	if c.mediaType != "" {
		r.Header.Set("Content-Type", strings.TrimPrefix(c.mediaType, "-"))
	}

	r.Header.Set("Content-Encoding", c.encoding)
	return r
}

func onlyKyma(manager core.Manager) bool { return manager == "kyma" }

// A request that is not a review gets the status of its fault, and the hook gets the reason.
func TestRefusals(t *testing.T) {
	t.Parallel()

	good := string(specChange(t))
	const begin = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"`
	tests := []struct {
		name    string
		call    call
		code    int
		reason  string
		message string // a part of it
	}{
		{"GET", call{method: "GET"}, 405, "method", `have "GET"`},
		{"PUT", call{method: "PUT", body: good}, 405, "method", "want POST"},
		{"another path", call{path: "/mutate/kyma", body: good}, 404, "unknown_path", "/validate/{manager}"},
		{"the root", call{path: "/", body: good}, 404, "unknown_path", "/validate/{manager}"},
		{"no media type", call{mediaType: "-", body: good}, 415, "media_type", "application/json"},
		{"another media type", call{mediaType: "application/yaml", body: good}, 415, "media_type", "application/yaml"},
		{"a broken media type", call{mediaType: "application/json;;;=", body: good}, 415, "media_type", "application/json"},
		{"a compressed body", call{encoding: "gzip", body: "\x1f\x8b"}, 415, "media_type", "gzip"},
		{"a body beyond the limit", call{body: strings.Repeat(" ", 5000)}, 413, "too_large", "4096 bytes"},
		{"no body", call{}, 400, "malformed_review", "byte 0"},
		{"half a body", call{body: good[:len(good)/2]}, 400, "malformed_review", "ends at"},
		{"two reviews", call{body: good + good}, 400, "malformed_review", "end of the text"},
		{"an array", call{body: "[]"}, 400, "malformed_review", "byte 0"},
		{"another kind", call{body: `{"kind":"Pod","apiVersion":"v1"}`}, 400, "malformed_review", `"Pod"`},
		{
			"v1beta1",
			call{body: strings.Replace(good, "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1)},
			400, "unsupported_version", "admissionReviewVersions",
		},
		{"no request", call{body: begin + "}"}, 400, "malformed_review", "want a request"},
		{"a null request", call{body: begin + `,"request":null}`}, 400, "malformed_review", "uid"},
		{"no uid", call{body: strings.Replace(good, testUID, "", 1)}, 400, "malformed_review", "request.uid"},
		{"an unknown operation", call{body: strings.Replace(good, "UPDATE", "PATCH", 1)}, 400, "malformed_review", `"PATCH"`},
		{
			"an object that is none",
			call{body: begin + `,"request":{"uid":"1","operation":"CREATE","object":"x"}}`},
			400, "malformed_review", "request.object",
		},
		{
			"an old object that is none",
			call{body: begin + `,"request":{"uid":"1","operation":"DELETE","oldObject":7}}`},
			400, "malformed_review", "request.oldObject",
		},
		{"an unknown manager", call{path: "/validate/stranger", body: good}, 404, "manager", `"stranger"`},
		{"a manager that is no label", call{path: "/validate/Kyma", body: good}, 400, "manager", "DNS-1123"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			var refused []string
			got := newInbox()
			h := newHandler(t, got, admission.Options{
				MaxBody: 4096,
				Serves:  onlyKyma,
				Hooks: admission.Hooks{
					Refused: func(r hook.Refusal) {
						refused = append(refused, fmt.Sprint(r.Status, " ", r.Reason))
					},
					Reviewed: func(hook.Review) { t.Error("counted as reviewed") },
				},
			})

			w := serve(h, tt.call.request())
			if w.Code != tt.code {
				t.Fatalf("answered %d %s, want %d", w.Code, w.Body, tt.code)
			}

			message := statusOf(t, w.Code, w.Header(), w.Body.Bytes())
			if !strings.Contains(message, tt.message) || len(message) > 400 {
				t.Errorf("message %q, want a short one with %q", message, tt.message)
			}
			if tt.code == http.StatusMethodNotAllowed && w.Header().Get("Allow") != "POST" {
				t.Errorf("Allow %q, want POST", w.Header().Get("Allow"))
			}

			compare(t, "refused", []string{fmt.Sprint(tt.code, " ", tt.reason)}, refused)
			// A resync replaces a change that could not be read.
			unseen := tt.code == http.StatusRequestEntityTooLarge || tt.reason == "malformed_review" ||
				tt.reason == "unsupported_version"
			if got.resyncs() != unseen || len(got.events) > 1 || !unseen && len(got.events) > 0 {
				t.Errorf("a refused request sent %v, want a resync: %v", got.events, unseen)
			}
		})
	}
}

// TestRawPaths sends request lines that no client library sends. Package core has the names that
// are no labels.
func TestRawPaths(t *testing.T) {
	t.Parallel()

	got := newInbox()
	server := httptest.NewServer(newHandler(t, got, admission.Options{}))
	t.Cleanup(server.Close)
	body := string(specChange(t))

	for target, want := range map[string]int{
		"/validate/kyma":                          200,
		"/validate/kyma?timeout=2s":               200,
		"/validate/%6byma":                        200, // RFC 3986, section 6.2.2.2: the same path.
		"/validate/":                              404,
		"/validate":                               404,
		"/validate/kyma/":                         404,
		"/validate/kyma/Event":                    404,
		"//validate/kyma":                         404,
		"/validate//kyma":                         404,
		"/validate/..":                            404,
		"/validate/../validate/kyma":              404,
		"/validate/./kyma":                        404,
		"/validate/%2e%2e":                        400,
		"/validate/..%2fkyma":                     400,
		"/validate/kyma%2Fevent":                  400,
		"/validate/%2F":                           404,
		"/validate/%00":                           400,
		"/validate/%0d%0aX:%20y":                  400,
		"/validate/kým\u00e4":                     400,
		"/validate/" + strings.Repeat("a", 300):   400,
		"/validate/" + strings.Repeat("%61", 300): 400,
		"*": 404,
	} {
		code, header, answer := rawPost(t, server.Listener.Addr().String(), target, body)
		if code != want {
			t.Errorf("POST %.60q answered %d %s, want %d", target, code, answer, want)
			continue
		}

		if code != http.StatusOK {
			if message := statusOf(t, code, header, answer); len(message) > 300 {
				t.Errorf("POST %.60q: %d bytes of message, want a short one", target, len(message))
			}
		}
	}

	for _, manager := range got.managers {
		if manager != "kyma" {
			t.Errorf("an event for %q, want kyma only", manager)
		}
	}
}

func rawPost(t *testing.T, addr, target, body string) (int, http.Header, []byte) {
	t.Helper()

	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	defer conn.Close()

	if _, err := fmt.Fprintf(conn,
		"POST %s HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json; charset=utf-8\r\n"+
			"Content-Length: %d\r\nConnection: close\r\n\r\n%s", target, len(body), body); err != nil {
		t.Fatalf("write: %v", err)
	}

	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("POST %.60q: %v", target, err)
	}
	defer response.Body.Close()

	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("POST %.60q: %v", target, err)
	}

	return response.StatusCode, response.Header, answer
}

// A body of the limit is read, and one more byte is refused, with an announced length and without
// one.
func TestBodyLimit(t *testing.T) {
	t.Parallel()

	review := specChange(t)
	limit := len(review) + 100
	h := newHandler(t, newInbox(), admission.Options{MaxBody: int64(limit)})
	for _, tt := range []struct {
		name   string
		size   int
		length int64 // as announced, -1 when unknown
		want   int
	}{
		{"at the limit, announced", limit, int64(limit), 200},
		{"at the limit, unknown", limit, -1, 200},
		{"one more, announced", limit + 1, int64(limit) + 1, 413},
		{"one more, unknown", limit + 1, -1, 413},
		{"announced too large, and never sent", 0, 1 << 40, 413},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			body := append(bytes.Clone(review), bytes.Repeat([]byte(" "), max(tt.size-len(review), 0))...)
			r := request("/validate/kyma", bytes.NewReader(body))
			r.ContentLength = tt.length
			w := serve(h, r)
			if w.Code != tt.want {
				t.Errorf("answered %d %s, want %d", w.Code, w.Body, tt.want)
			}
		})
	}
}

// The API server allows the write, so a resync must be accepted.
func TestBodyThatBreaksOff(t *testing.T) {
	t.Parallel()

	got := newInbox()
	w := serve(newHandler(t, got, admission.Options{}), request("/validate/kyma", io.MultiReader(strings.NewReader(`{"kind":`),
		readerFunc(func([]byte) (int, error) { return 0, errors.New("secret detail") }))))
	if w.Code != http.StatusBadRequest || !got.resyncs() {
		t.Fatalf("answered %d %s and a resync: %t, want 400 and one", w.Code, w.Body, got.resyncs())
	}
	if message := statusOf(t, w.Code, w.Header(), w.Body.Bytes()); strings.Contains(message, "secret") {
		t.Errorf("message %q says something about the inside", message)
	}
}

// Long names must not fill the outbox with large keys.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("x", 3000)
	for _, change := range []func(*admissionv1.AdmissionRequest){
		func(q *admissionv1.AdmissionRequest) { q.Name = long },
		func(q *admissionv1.AdmissionRequest) { q.Namespace = long },
		func(q *admissionv1.AdmissionRequest) { q.Kind.Group = long },
		func(q *admissionv1.AdmissionRequest) { q.Kind.Version = long },
		func(q *admissionv1.AdmissionRequest) { q.Kind.Kind = long },
	} {
		got := newInbox()
		review := reviewOf(t, func(q *admissionv1.AdmissionRequest) {
			q.Operation = admissionv1.Delete
			change(q)
		})
		have := decisionOf(t, post(newHandler(t, got, admission.Options{}), "/validate/kyma", review), testUID)
		if have != "no_name" {
			t.Errorf("decision %q, want %q", have, "no_name")
		}
		if len(got.events) > 0 {
			t.Error("an event of more than 3000 bytes")
		}
	}
}

// The review of docs/reference/agent.md has the answer and the event that the document shows.
func TestDocumentedReview(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile(testcache.Path("../../docs/reference/agent.md"))
	shown := regexp.MustCompile("(?s)(/validate/\\S+) --json '\n(.*?)'\n```\n\n```json\n(.*?)\n```").FindSubmatch(text)
	if err != nil || shown == nil {
		t.Fatalf("the document shows no review (%v)", err)
	}

	got := newInbox()
	answer := post(newHandler(t, got, admission.Options{}), string(shown[1]), shown[2])
	if have := strings.TrimSpace(answer.Body.String()); have != string(shown[3]) || len(got.events) != 1 {
		t.Errorf("answer %s and events %v, want %s and one", have, got.events, shown[3])
	}
}

func TestUnusualUIDsAreEchoed(t *testing.T) {
	t.Parallel()

	h := newHandler(t, newInbox(), admission.Options{})

	for _, uid := range []types.UID{`a"b\c`, "<script>", "\u2028ü\x00", "a/b:c", types.UID(strings.Repeat("u", 4000))} {
		review := reviewOf(t, func(q *admissionv1.AdmissionRequest) {
			q.UID = uid
			q.Operation = admissionv1.Delete
		})
		decisionOf(t, post(h, "/validate/kyma", review), uid)
	}
}

func TestPanicsDoNotReachTheAPIServer(t *testing.T) {
	t.Parallel()

	boom := func() { panic("boom") }
	hooks := func(h admission.Hooks) admission.Options {
		return admission.Options{RequireOwner: h.OwnerProblem != nil, Hooks: h}
	}
	tests := []struct {
		name     string
		accept   func()
		opts     admission.Options
		decision admission.Decision
		place    string
	}{
		{
			"in the filter: in doubt the change matters", func() {},
			admission.Options{Filter: func(*core.Change) bool { panic("boom") }},
			admission.Accepted, "filter",
		},
		{"in the acceptor", boom, admission.Options{}, "failed", "acceptor"},
		{
			"in a hook before the answer", func() {},
			hooks(admission.Hooks{OwnerProblem: func(hook.OwnerProblem) { boom() }}), "failed", "acceptor",
		},
		{
			"in a hook before the request is read", func() {},
			hooks(admission.Hooks{InFlight: boomOn(1)}), admission.Accepted, "hooks",
		},
		{
			"in a hook at the end of the request", func() {},
			hooks(admission.Hooks{InFlight: boomOn(-1)}), admission.Accepted, "hooks",
		},
		{
			"in a hook after the answer", func() {},
			hooks(admission.Hooks{Reviewed: func(hook.Review) { boom() }}), admission.Accepted, "hooks",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			var (
				places []string
				log    bytes.Buffer
			)
			tt.opts.Hooks.Panicked = func(p hook.Panic) { places = append(places, string(p.Place)) }
			tt.opts.Logger = slog.New(slog.NewJSONHandler(&log, nil))
			resyncs := 0
			h := newHandler(t, core.AcceptorFunc(func(_ core.Manager, event core.WatchEvent) core.Outcome {
				if event.Resync {
					resyncs++
				} else {
					tt.accept()
				}
				return core.Accepted
			}), tt.opts)

			review := update(t, widget("", `"spec":1`), widget("", `"spec":"confidential"`))
			if have := decisionOf(t, post(h, "/validate/kyma", review), testUID); have != tt.decision {
				t.Errorf("decision %q, want %q", have, tt.decision)
			}

			compare(t, "places", []string{tt.place}, places)
			if (resyncs == 1) != (tt.decision == "failed") {
				t.Errorf("%d resyncs, want one for a change that was not decided, and none otherwise", resyncs)
			}
			if text := log.String(); !strings.Contains(text, `"stack":"goroutine`) ||
				!strings.Contains(text, `"cause":"boom"`) {
				t.Errorf("log %s, want the cause and the stack", text)
			}

			if strings.Contains(log.String(), "confidential") {
				t.Errorf("log %s has the object in it", log.String())
			}
		})
	}
}

// boomOn is a hook that panics when it is called with n.
func boomOn(n int) func(int) {
	return func(delta int) {
		if delta == n {
			panic("boom")
		}
	}
}

func TestPanicBeforeTheReviewIsReadIsAnswered500(t *testing.T) {
	t.Parallel()

	var refused, places []string
	accepted := newInbox()
	h := newHandler(t, accepted, admission.Options{Hooks: admission.Hooks{
		Panicked: func(p hook.Panic) { places = append(places, string(p.Place)) },
		Refused: func(r hook.Refusal) {
			refused = append(refused, fmt.Sprint(r.Status, " ", r.Reason))
		},
	}})

	w := serve(h, request("/validate/kyma", readerFunc(func([]byte) (int, error) { panic("boom") })))
	if w.Code != http.StatusInternalServerError {
		t.Fatalf("answered %d %s, want 500", w.Code, w.Body)
	}
	if message := statusOf(t, w.Code, w.Header(), w.Body.Bytes()); strings.Contains(message, "boom") {
		t.Errorf("message %q says something about the inside", message)
	}

	compare(t, "counted", []string{"500 internal", "request"}, append(refused, places...))
	if !accepted.resyncs() {
		t.Error("no resync stands in for the change that was not read, want one")
	}
}

// sink is a log that is called with each message.
type sink func(message string)

func (sink) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (s sink) Handle(_ context.Context, r slog.Record) error  { s(r.Message); return nil }
func (s sink) WithAttrs([]slog.Attr) slog.Handler             { return s }
func (s sink) WithGroup(string) slog.Handler                  { return s }

func TestBrokenLogDoesNotReachTheAPIServer(t *testing.T) {
	t.Parallel()

	var (
		mu    sync.Mutex
		lines []string
	)
	h := newHandler(t, newInbox(), admission.Options{
		RequireOwner: true,
		Filter:       func(*core.Change) bool { panic("boom") },
		Logger: slog.New(sink(func(message string) {
			mu.Lock()
			lines = append(lines, message)
			mu.Unlock()
			panic("no disk")
		})),
	})

	review := update(t, widget(""), widget(""))
	if have := decisionOf(t, post(h, "/validate/kyma", review), testUID); have != "no_owner" {
		t.Errorf("decision %q, want %q", have, "no_owner")
	}

	mu.Lock()
	defer mu.Unlock()

	// The panic of the filter, the object without an owner, and the panic of that line.
	if caught := strings.Count(strings.Join(lines, "\n"), "caught a panic"); caught != 2 || len(lines) != 3 {
		t.Errorf("control: the log was called with %q, want three lines, two of them about panics", lines)
	}
}

func TestStalledLogDoesNotDelayTheAnswer(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"an object without owner": "/validate/kyma",
		"an unknown manager":      "/validate/nobody",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			released := make(chan struct{})
			server := httptest.NewServer(newHandler(t, newInbox(), admission.Options{
				RequireOwner: true, Serves: onlyKyma, Logger: slog.New(sink(func(string) { <-released })),
			}))
			defer server.Close()
			defer close(released)

			review := specChange(t)
			client := http.Client{Timeout: 2 * time.Minute}
			answer, err := client.Post(server.URL+path, "application/json", bytes.NewReader(review))
			if err != nil {
				t.Fatalf("no answer while the log is stalled: %v", err)
			}

			_ = answer.Body.Close()
		})
	}
}

// The hooks are called once for each review, after its answer, with the duration.
func TestHooksOfAReview(t *testing.T) {
	t.Parallel()

	var told []string
	clock := noon
	h := newHandler(t, core.AcceptorFunc(func(core.Manager, core.WatchEvent) core.Outcome {
		clock = clock.Add(time.Millisecond)
		told = append(told, "accept")
		return core.Coalesced
	}), admission.Options{
		Now: func() time.Time { return clock },
		Hooks: admission.Hooks{
			InFlight: func(delta int) { told = append(told, fmt.Sprint("in flight ", delta)) },
			Reviewed: func(r hook.Review) {
				told = append(told, fmt.Sprint(r.Manager, " ", r.Decision, " ", r.Took))
			},
		},
	})

	decisionOf(t, post(h, "/validate/kyma", specChange(t)), testUID)
	post(h, "/elsewhere", nil)
	want := []string{"in flight 1", "accept", "in flight -1", "kyma coalesced 1ms", "in flight 1", "in flight -1"}
	compare(t, "hooks", want, told)
}

func TestForeignRequestsCannotFloodTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testFlood)
}

func testFlood(t *testing.T) {
	var log bytes.Buffer
	h := newHandler(t, newInbox(), admission.Options{
		RequireOwner: true,
		Logger:       slog.New(slog.NewTextHandler(&log, nil)),
	})
	ownerless := specChange(t)
	flood := func() (lines int) {
		log.Reset()
		for range 100 {
			post(h, "/elsewhere", nil)
			post(h, "/validate/kyma", ownerless)
		}
		return strings.Count(log.String(), "\n")
	}

	if lines := flood(); lines != 2 {
		t.Errorf("%d lines, want one for each kind of warning:\n%s", lines, log.String())
	}

	time.Sleep(59 * time.Second)
	if lines := flood(); lines != 0 {
		t.Errorf("%d lines within the minute, want none:\n%s", lines, log.String())
	}

	time.Sleep(time.Second)
	if lines := flood(); lines != 2 || strings.Count(log.String(), "suppressed=199") != 2 {
		t.Errorf("%d lines after a minute, want two that say how many were suppressed:\n%s", lines, log.String())
	}
}

func TestOneDebugLineForEachReview(t *testing.T) {
	t.Parallel()

	var log bytes.Buffer
	h := newHandler(t, newInbox(), admission.Options{
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	decisionOf(t, post(h, "/validate/kyma", update(t, widget("", `"spec":1`), widget("", `"spec":"confidential"`))),
		testUID)

	if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "decision=accepted") {
		t.Errorf("log %q, want one line with the decision", log.String())
	}
	if strings.Contains(log.String(), "confidential") {
		t.Errorf("log %q has the object in it", log.String())
	}
}

// An event must not keep a slice of a buffer, because another request reuses the buffer.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()

	const writers, writes = 8, 50
	var (
		inFlight, reviewed atomic.Int64
		group              sync.WaitGroup
	)
	got := newInbox()
	h := newHandler(t, got, admission.Options{Hooks: admission.Hooks{
		InFlight: func(delta int) { inFlight.Add(int64(delta)) },
		Reviewed: func(hook.Review) { reviewed.Add(1) },
	}})
	var want []core.WatchEvent

	for writer := range writers {
		var reviews [][]byte
		var uids []string

		for i := range writes {
			id := fmt.Sprintf("%d-%02d", writer, i)
			kind := metav1.GroupVersionKind{Group: "group-" + id, Version: "v" + id, Kind: "Kind" + id}
			owner := types.NamespacedName{Namespace: "space-" + id, Name: "owner-" + id}
			uids = append(uids, `"`+id+`"`)
			reviews = append(reviews, reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.UID = types.UID(id)
				q.Operation = admissionv1.Create
				q.Kind = kind
				q.Object = raw(fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"default","annotations":{%q:%q}},"spec":%q}`,
					"object-"+id, core.OwnerAnnotation, owner.String(), strings.Repeat(id, i*10)))
			}))

			want = append(want, core.WatchEvent{
				Owner: owner, Watched: types.NamespacedName{Namespace: "default", Name: "object-" + id},
				WatchedGVK: schema.GroupVersionKind(kind), Operation: core.OperationCreate, Field: core.FieldSpec, Time: noon,
			})
		}

		group.Go(func() {
			for i, review := range reviews {
				if w := post(h, "/validate/kyma", review); !strings.Contains(w.Body.String(), uids[i]) {
					t.Errorf("%s answered with %s", uids[i], w.Body)
				}
			}
		})
	}

	group.Wait()
	byName := func(a, b core.WatchEvent) int { return strings.Compare(a.Watched.Name, b.Watched.Name) }
	slices.SortFunc(got.events, byName)

	if diff := gocmp.Diff(want, got.events); diff != "" || inFlight.Load() != 0 || reviewed.Load() != writers*writes {
		t.Errorf("%d in flight, %d reviewed; events (-want +got):\n%s", inFlight.Load(), reviewed.Load(), diff)
	}
}

func TestNewNamesAllProblems(t *testing.T) {
	t.Parallel()

	for _, acceptor := range []core.Acceptor{nil, core.AcceptorFunc(nil)} {
		if _, err := admission.New(acceptor, admission.Options{}); err == nil {
			t.Error("a nil acceptor was taken")
		}
	}

	_, err := admission.New(newInbox(), admission.Options{
		MaxBody: -1, MaxBodies: -1,
	})
	if err == nil {
		t.Fatal("wrong options were taken")
	}

	for _, want := range []string{"Options.MaxBody is", "Options.MaxBodies is"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
}

// A list of managers may change while reviews come.
func TestServesDecidesForEachReview(t *testing.T) {
	t.Parallel()

	var served atomic.Bool
	handler := newHandler(t, newInbox(), admission.Options{
		Serves: func(manager core.Manager) bool { return manager == "widgets" && served.Load() },
	})
	for _, test := range []struct {
		served  bool
		manager string
		want    int
	}{
		{false, "widgets", http.StatusNotFound},
		{true, "widgets", http.StatusBadRequest}, // The body is no review.
		{true, "other", http.StatusNotFound},
		{false, "widgets", http.StatusNotFound},
	} {
		served.Store(test.served)
		if response := post(handler, "/validate/"+test.manager, []byte("{}")); response.Code != test.want {
			t.Errorf("%+v: status %d", test, response.Code)
		}
	}
}

const traceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// An event has the trace parent of the call. Other texts are not kept, as an outbox would have to
// bound them.
func TestTraceParent(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		traceParent: traceParent, "": "", "01" + traceParent[2:]: "", traceParent + "-more": "", strings.Repeat("0", 1<<16): "",
	} {
		got := newInbox()
		r := request("/validate/kyma", bytes.NewReader(specChange(t)))
		r.Header.Set("Traceparent", header)
		serve(newHandler(t, got, admission.Options{}), r)

		if len(got.events) != 1 || got.events[0].TraceParent != want {
			t.Errorf("header %.80q: events %+v, want the trace parent %q", header, got.events, want)
		}
	}
}
