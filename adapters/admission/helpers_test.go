package admission_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

const testUID = "705ab4f5-6393-11e8-b7cc-42010a800002"

// noon is the time of all reviews.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// inbox is an acceptor that stores its events.
type inbox struct {
	mu       sync.Mutex
	managers []core.Manager
	events   []core.WatchEvent
	outcome  core.Outcome
}

func (i *inbox) Accept(manager core.Manager, event core.WatchEvent) core.Outcome {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.managers = append(i.managers, manager)
	i.events = append(i.events, event)
	return i.outcome
}

// resyncs reports whether a resync was accepted.
func (i *inbox) resyncs() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.ContainsFunc(i.events, func(e core.WatchEvent) bool { return e.Resync })
}

func newInbox() *inbox { return &inbox{outcome: core.Accepted} }

func newHandler(t testing.TB, acceptor core.Acceptor, opts admission.Options) http.Handler {
	t.Helper()

	if opts.Now == nil {
		opts.Now = func() time.Time { return noon }
	}

	h, err := admission.New(acceptor, opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}

	return h
}

// reviewOf returns a review with all fields that an API server sets.
func reviewOf(t testing.TB, change func(*admissionv1.AdmissionRequest)) []byte {
	t.Helper()

	request := &admissionv1.AdmissionRequest{
		UID:             testUID,
		Kind:            metav1.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Widget"},
		Resource:        metav1.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"},
		RequestKind:     &metav1.GroupVersionKind{Group: "example.org", Version: "v1beta1", Kind: "Widget"},
		RequestResource: &metav1.GroupVersionResource{Group: "example.org", Version: "v1beta1", Resource: "widgets"},
		Name:            "one",
		Namespace:       "default",
		UserInfo: authenticationv1.UserInfo{
			Username: "admin", UID: "014fbff9a07c", Groups: []string{"system:authenticated", "my-admin-group"},
			Extra: map[string]authenticationv1.ExtraValue{"some-key": {"some-value1", "some-value2"}},
		},
		DryRun: new(false),
	}

	change(request)
	return marshal(t, &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request:  request,
	})
}

func update(t testing.TB, before, after string) []byte {
	t.Helper()
	return reviewOf(t, func(q *admissionv1.AdmissionRequest) {
		q.Operation = admissionv1.Update
		q.OldObject = raw(before)
		q.Object = raw(after)
		q.Options = raw(`{"kind":"UpdateOptions","apiVersion":"meta.k8s.io/v1","fieldManager":"kubectl"}`)
	})
}

// change returns the review of an object with two states. "" means that it did not exist.
func change(t testing.TB, before, after string) []byte {
	t.Helper()
	switch {
	case before == "":
		return reviewOf(t, func(q *admissionv1.AdmissionRequest) {
			q.Operation = admissionv1.Create
			q.Object = raw(after)
		})
	case after == "":
		return reviewOf(t, func(q *admissionv1.AdmissionRequest) {
			q.Operation = admissionv1.Delete
			q.OldObject = raw(before)
		})
	default:
		return update(t, before, after)
	}
}

// specChange returns the review of an update of the spec.
func specChange(t testing.TB) []byte {
	t.Helper()
	return update(t, widget("", `"spec":1`), widget("", `"spec":2`))
}

// widget returns an object with the given members, and those that every object has.
func widget(metadata string, fields ...string) string {
	text := `{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"one","namespace":"default",` +
		`"uid":"9d6ba5a4","resourceVersion":"42","generation":3,"creationTimestamp":"2026-01-01T00:00:00Z"`
	if metadata != "" {
		text += "," + metadata
	}
	return strings.Join(append([]string{text + "}"}, fields...), ",") + "}"
}

func compare(t *testing.T, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func raw(text string) runtime.RawExtension { return runtime.RawExtension{Raw: []byte(text)} }

func marshal(t testing.TB, value any) []byte {
	t.Helper()

	text, err := json.Marshal(value)
	if err != nil {
		t.Fatalf("Marshal: %v", err)
	}
	return text
}

func post(h http.Handler, path string, body []byte) *httptest.ResponseRecorder {
	return serve(h, request(path, bytes.NewReader(body)))
}

// request is the call of an API server.
func request(path string, body io.Reader) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, body)
	r.Header.Set("Content-Type", "application/json")
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// decisionOf checks an answer, and returns its decision.
func decisionOf(t testing.TB, w *httptest.ResponseRecorder, uid types.UID) admission.Decision {
	t.Helper()

	if w.Code != http.StatusOK {
		t.Fatalf("answered %d %s, want 200", w.Code, w.Body)
	}

	review := readAnswer(t, w.Body.Bytes())
	word, _, found := strings.Cut(review.Response.Result.Message, ":")
	if !found || len(review.Response.Result.Message) > 120 {
		t.Errorf("message %q, want a short one that begins with the decision", review.Response.Result.Message)
	}
	if review.Response.UID != uid {
		t.Errorf("uid %q, want %q", review.Response.UID, uid)
	}
	if contentType := w.Header().Get("Content-Type"); contentType != "application/json" {
		t.Errorf("Content-Type %q, want application/json", contentType)
	}

	return admission.Decision(word)
}

// readAnswer fails if a field of an answer is missing or unknown.
func readAnswer(t testing.TB, body []byte) *admissionv1.AdmissionReview {
	t.Helper()

	var review admissionv1.AdmissionReview
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&review); err != nil {
		t.Fatalf("answer %s: %v", body, err)
	}

	switch {
	case review.APIVersion != "admission.k8s.io/v1" || review.Kind != "AdmissionReview":
		t.Fatalf("answered %s %s, want admission.k8s.io/v1 AdmissionReview", review.APIVersion, review.Kind)
	case review.Response == nil || review.Response.Result == nil:
		t.Fatalf("answered %s, want a response with a status", body)
	case !review.Response.Allowed:
		t.Fatalf("denied: %s", body)
	}

	return &review
}
