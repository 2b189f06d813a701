package core_test

import (
	"testing"
	"time"

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

func TestKindWord(t *testing.T) {
	t.Parallel()
	for want, event := range map[string]core.WatchEvent{"changed": {}, "resync": {Resync: true}} {
		if got := event.KindWord(); got != want {
			t.Errorf("KindWord of %+v = %q, want %q", event, got, want)
		}
	}
}

func TestNewBatchHasNoNumbers(t *testing.T) {
	t.Parallel()
	batch := core.NewBatch(core.WatchEvent{Generation: 1}, core.WatchEvent{Resync: true})
	if len(batch.Events) != 2 || batch.Events[0].Generation != 1 || !batch.Events[1].Resync {
		t.Errorf("NewBatch has the events %+v", batch.Events)
	}
	if batch.Source != "" || batch.Epoch != "" || batch.Heartbeat != nil ||
		batch.Events[0].Sequence != 0 || batch.Events[0].ID != "" {
		t.Errorf("NewBatch = %+v, want a batch without numbers", batch)
	}
}

func TestIsEmpty(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		batch core.Batch
		want  bool
	}{
		"zero value": {core.Batch{}, true},
		"claims":     {core.Batch{Source: "r", Epoch: "e"}, true},
		"events":     {core.NewBatch(core.WatchEvent{}), false},
		"heartbeat":  {core.Batch{Heartbeat: &core.Heartbeat{}}, false},
	} {
		if got := tt.batch.IsEmpty(); got != tt.want {
			t.Errorf("%s: IsEmpty = %v, want %v", name, got, tt.want)
		}
	}
}
