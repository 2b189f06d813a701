package admission_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

const traceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// An event has the trace parent of the call. Other texts are not kept, as an outbox would have to bound them.
func TestTraceParent(t *testing.T) {
	t.Parallel()
	body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"version":"v1","kind":"ConfigMap"},` +
		`"name":"demo","namespace":"default","operation":"CREATE","object":{"metadata":{"name":"demo","namespace":"default"}}}}`
	for header, want := range map[string]string{
		traceParent: traceParent, "": "", "01" + traceParent[2:]: "", traceParent + "-more": "", strings.Repeat("0", 1<<16): "",
	} {
		have := "no event"
		handler, err := admission.New(core.AcceptorFunc(func(_ core.Manager, event core.WatchEvent) core.Outcome {
			have = event.TraceParent
			return core.Accepted
		}), admission.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "/validate/kyma", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Traceparent", header)
		handler.ServeHTTP(httptest.NewRecorder(), r)
		if have != want {
			t.Errorf("header %.80q: the event has %q, want %q", header, have, want)
		}
	}
}
