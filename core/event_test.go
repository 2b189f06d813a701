package core_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func TestKeyIdentifiesTheObjectToLookAt(t *testing.T) {
	t.Parallel()
	base := core.WatchEvent{
		Owner:      types.NamespacedName{Namespace: "a", Name: "b"},
		Watched:    types.NamespacedName{Namespace: "c", Name: "d"},
		WatchedGVK: schema.GroupVersionKind{Group: "e", Version: "f", Kind: "g"},
	}
	tests := map[string]struct {
		change func(e *core.WatchEvent)
		same   bool
	}{
		"resync":     {func(e *core.WatchEvent) { e.Resync = true }, false},
		"owner":      {func(e *core.WatchEvent) { e.Owner.Name = "x" }, false},
		"watched":    {func(e *core.WatchEvent) { e.Watched.Namespace = "" }, false},
		"gvk":        {func(e *core.WatchEvent) { e.WatchedGVK.Version = "x" }, false},
		"operation":  {func(e *core.WatchEvent) { e.Operation = core.OperationDelete }, true},
		"field":      {func(e *core.WatchEvent) { e.Field = core.FieldStatus }, true},
		"generation": {func(e *core.WatchEvent) { e.Generation = 7 }, true},
		"time":       {func(e *core.WatchEvent) { e.Time = time.Unix(1, 0) }, true},
		"trace":      {func(e *core.WatchEvent) { e.TraceParent = "x" }, true},
	}
	for name, tt := range tests {
		other := base
		tt.change(&other)
		if got := base.Key() == other.Key(); got != tt.same {
			t.Errorf("another %s: equal keys = %v, want %v", name, got, tt.same)
		}
	}
}

func TestNewBatchHasNoNumbers(t *testing.T) {
	t.Parallel()
	batch := core.NewBatch(core.WatchEvent{Generation: 1}, core.WatchEvent{Resync: true})
	want := core.Batch{Events: []core.Numbered{{WatchEvent: core.WatchEvent{Generation: 1}}, {WatchEvent: core.WatchEvent{Resync: true}}}}
	if diff := cmp.Diff(want, batch); diff != "" {
		t.Errorf("NewBatch (-want +got):\n%s", diff)
	}
	if words := batch.Events[0].KindWord() + " " + batch.Events[1].KindWord(); words != "changed resync" {
		t.Errorf("KindWords %q", words)
	}
	beat := core.Batch{Heartbeat: &core.Heartbeat{}}
	if claims := (core.Batch{Source: "r", Epoch: "e"}); !claims.IsEmpty() || batch.IsEmpty() || beat.IsEmpty() {
		t.Error("a batch with events or a heartbeat is empty, or one with claims is not")
	}
}
