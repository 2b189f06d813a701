package conformance

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestCloudEvents sends a batch of contract v3 through the Go SDK of CloudEvents, which knows nothing of our code. The SDK
// reads it and writes it again, and we read that.
func TestCloudEvents(t *testing.T) {
	at := time.Date(2026, 11, 21, 3, 27, 0, 0, time.UTC)
	changed := core.WatchEvent{
		Time: at, TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Watched:    types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Operation:  core.OperationUpdate, Field: core.FieldSpec, Generation: 7,
	}
	batch := core.Batch{
		Source: "runtime 1/ü", Epoch: "e",
		Events: []core.Numbered{
			{ID: "e-kyma-1", Sequence: 1, WatchEvent: core.WatchEvent{Resync: true, Time: at}},
			{ID: "e-kyma-2", Sequence: 2, WatchEvent: changed},
		},
		Heartbeat: &core.Heartbeat{ID: "e-kyma-heartbeat-1", Time: at, Number: 1, Interval: time.Minute, Sequence: 2},
	}
	body := lab.Must(contract.V3.Encode(&batch)).Body
	request := lab.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost", bytes.NewReader(body)))
	request.Header.Set("Content-Type", contract.V3.ContentType())
	events := lab.Must(cehttp.NewEventsFromHTTPRequest(request))
	if len(events) != 3 {
		t.Fatalf("%d events, want 3", len(events))
	}
	for _, e := range events {
		lab.NoError(t, e.Validate())
	}
	e := events[1]
	lab.Same(t, "extensions", map[string]any{
		"sequence": "00000000000000000002", "epoch": "e", "traceparent": changed.TraceParent,
	}, e.Extensions())
	lab.Same(t, "attributes", []string{"com.github.runtime-watcher.changed", "default/demo", "e-kyma-2", "/runtimes/runtime%201%2F%C3%BC"},
		[]string{e.Type(), e.Subject(), e.ID(), e.Source()})
	request = lab.Must(cehttp.NewHTTPRequestFromEvents(t.Context(), "http://localhost", events))
	lab.Same(t, "content type", contract.V3.ContentType(), request.Header.Get("Content-Type"))
	lab.Same(t, "batch", batch, lab.Must(contract.V3.Decode(lab.Must(io.ReadAll(request.Body)))))
}
