package core_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func TestKeyIsWhatAnEventAsksToLookAt(t *testing.T) {
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
		"kind":       {func(e *core.WatchEvent) { e.Kind = core.KindResync }, false},
		"owner":      {func(e *core.WatchEvent) { e.Owner.Name = "x" }, false},
		"watched":    {func(e *core.WatchEvent) { e.Watched.Namespace = "" }, false},
		"gvk":        {func(e *core.WatchEvent) { e.WatchedGVK.Version = "x" }, false},
		"operation":  {func(e *core.WatchEvent) { e.Operation = core.OperationDelete }, true},
		"field":      {func(e *core.WatchEvent) { e.Field = core.FieldStatus }, true},
		"generation": {func(e *core.WatchEvent) { e.Generation = 7 }, true},
		"time":       {func(e *core.WatchEvent) { e.Time = time.Unix(1, 0) }, true},
		"sequence":   {func(e *core.WatchEvent) { e.Epoch, e.Sequence, e.ID = "x", 7, "y" }, true},
		"source":     {func(e *core.WatchEvent) { e.Source = "x" }, true},
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

func TestKindsHaveWords(t *testing.T) {
	t.Parallel()

	for kind, want := range map[core.Kind]string{
		core.KindChanged: "changed", core.KindResync: "resync", core.KindHeartbeat: "heartbeat", 200: "unknown",
	} {
		if got := kind.String(); got != want {
			t.Errorf("Kind %d is %q, want %q", kind, got, want)
		}
	}
}
