package lifecyclemanager

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// The agent may come before the modules. It must not leave their namespace unwatched, or remove it.
func TestTheNamespaceOfModulesIsNotOfTheAgent(t *testing.T) {
	namespace := &unstructured.Unstructured{}
	adjusted := false
	namespace.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
	namespace.SetAnnotations(map[string]string{"operator.kyma-project.io/created-by": "runtime-watcher-installation"})

	own := installation.Options{Adjust: func(*unstructured.Unstructured) { adjusted = true }}
	if adjust := (Options{Agent: own}).agent().Adjust; adjust != nil {
		adjust(namespace)
	}
	if have := namespace.GetAnnotations(); len(have) > 0 || !adjusted {
		t.Errorf("annotations %v, adjusted by the options: %t, want none, and true", have, adjusted)
	}
}

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
		kymas, err := newKymas(objects, 5)
		if err != nil {
			t.Fatal(err)
		}
		if err := kymas.Track(watched, operator); err != nil {
			t.Fatal(err)
		}

		objects.Set(object("installed", "other", ours))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		taken := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
		go func() { ended <- watched.Receiver().Start(ctx, map[core.Manager]core.Handler{operator: taken}) }()
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
