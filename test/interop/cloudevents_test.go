// Package interop tests our wire format against the implementations of others.
package interop

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

func batch() core.Batch {
	at := time.Date(2026, 11, 21, 3, 27, 0, 0, time.UTC)
	changed := core.WatchEvent{
		Time: at, TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Watched:    types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Operation:  core.OperationUpdate, Field: core.FieldSpec, Generation: 7,
	}
	return core.Batch{
		Source: "runtime 1/ü", Epoch: "e",
		Events: []core.Numbered{
			{ID: "e-kyma-1", Sequence: 1, WatchEvent: core.WatchEvent{Resync: true, Time: at}},
			{ID: "e-kyma-2", Sequence: 2, WatchEvent: changed},
		},
		Heartbeat: &core.Heartbeat{ID: "e-kyma-heartbeat-1", Time: at, Number: 1, Interval: time.Minute, Sequence: 2},
	}
}

// TestOfficialSDKReadsOurBatches and TestWeReadBatchesOfTheOfficialSDK test contract v3 against the
// Go SDK of CloudEvents.
func TestOfficialSDKReadsOurBatches(t *testing.T) {
	for _, e := range throughSDK(t) {
		if err := e.Validate(); err != nil {
			t.Errorf("event %s is not valid: %v", e.ID(), err)
		}
	}
	got := throughSDK(t)
	if len(got) != 3 {
		t.Fatalf("%d events, want 3", len(got))
	}
	changed := got[1]
	want := map[string]any{
		"sequence": "00000000000000000002", "epoch": "e",
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	if diff := cmp.Diff(want, changed.Extensions()); diff != "" {
		t.Errorf("extensions (-want +got):\n%s", diff)
	}
	if changed.Type() != "com.github.runtime-watcher.changed" || changed.Subject() != "default/demo" || changed.ID() != "e-kyma-2" ||
		changed.Source() != "/runtimes/runtime%201%2F%C3%BC" {
		t.Errorf("event %v", changed)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// throughSDK returns our events as the SDK reads them from a request.
func throughSDK(t *testing.T) []event.Event {
	t.Helper()
	sent := batch()
	body := must(contract.V3.Encode(&sent))
	request := must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost", bytes.NewReader(body.Body)))
	request.Header.Set("Content-Type", contract.V3.ContentType())
	read := must(cehttp.NewEventsFromHTTPRequest(request))
	return read
}

func TestWeReadBatchesOfTheOfficialSDK(t *testing.T) {
	request := must(cehttp.NewHTTPRequestFromEvents(t.Context(), "http://localhost", throughSDK(t)))
	if got := request.Header.Get("Content-Type"); got != contract.V3.ContentType() {
		t.Errorf("content type %s, want %s", got, contract.V3.ContentType())
	}
	body := must(io.ReadAll(request.Body))
	got := must(contract.V3.Decode(body))
	if diff := cmp.Diff(batch(), got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
