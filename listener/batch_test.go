package listener_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

const runtimeA, runtimeB = core.RuntimeID("runtime-a"), core.RuntimeID("runtime-b")

// encode returns the body of a request with a batch.
func encode(tb testing.TB, batch core.Batch) []byte {
	tb.Helper()
	request, err := contract.V3.Encode(&batch)
	if err != nil || request.Failed != nil {
		tb.Fatal(err, request.Failed)
	}
	return request.Body
}

// change is a batch with one event. Its object is named by the sequence.
func change(runtime core.RuntimeID, sequence uint64) core.Batch {
	name := strconv.FormatUint(sequence, 10)
	event := core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "kyma-system", Name: name},
		WatchedGVK: schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"},
	}
	return core.Batch{
		Source: runtime, Epoch: "e", Events: []core.Numbered{{WatchEvent: event, ID: name, Sequence: sequence}},
	}
}

func changes(runtime core.RuntimeID, count int) core.Batch {
	batch := core.Batch{Source: runtime, Epoch: "e"}
	for i := range count {
		batch.Events = append(batch.Events, change(runtime, uint64(i+1)).Events...)
	}
	return batch
}

// wantPartial expects that an answer to so many elements names the refused ones.
func wantPartial(tb testing.TB, w *httptest.ResponseRecorder, elements int, want map[int]contract.Refusal) {
	tb.Helper()
	if after := w.Header().Get("Retry-After"); w.Code != http.StatusUnprocessableEntity || after != "" {
		tb.Errorf("answer %d with Retry-After %q, want 422 without", w.Code, after)
	}
	have := contract.DecodeAnswer(w.Code, w.Body.Bytes(), elements)
	if diff := cmp.Diff(want, have.Failed); diff != "" || have.Reason != reasons.Partial {
		tb.Errorf("reason %q, want partial; refused elements (-want +have):\n%s", have.Reason, diff)
	}
}

func newFleet(tb testing.TB, opts fleet.Options) *fleet.Fleet {
	tb.Helper()
	f, err := fleet.New(opts)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}
