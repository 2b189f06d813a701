package lifecyclemanager

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// After a restart, a runtime with our agent is stale if it is silent. One with a former agent, which
// sends no heartbeats, and one that is left must not become stale.
func TestExpectedRuntimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watched, err := fleet.New(fleet.Options{})
		if err != nil {
			t.Fatal(err)
		}
		object := func(id string, finalizers ...string) *metav1.PartialObjectMetadata {
			o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Name: id, Namespace: plane, Labels: map[string]string{runtimeID: id}, Finalizers: finalizers,
			}}
			o.SetGroupVersionKind(kyma)
			return o
		}
		objects := controllerruntimetest.NewCache(object("ours", ours), object("former", "other"), object("installed"))
		if err := expect(objects, watched); err != nil {
			t.Fatal(err)
		}
		objects.Set(object("installed", "other", ours))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		taken := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
		go func() { ended <- watched.Start(ctx, map[core.Manager]core.Handler{operator: taken}) }()
		time.Sleep(65 * time.Second)
		states := map[core.RuntimeID]fleet.State{}
		watched.Range(func(s fleet.Status) bool {
			states[s.Runtime] = s.State
			return true
		})
		if want := (map[core.RuntimeID]fleet.State{"ours": fleet.Stale, "installed": fleet.Stale}); !maps.Equal(states, want) {
			t.Errorf("the fleet knows %v, want %v", states, want)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
