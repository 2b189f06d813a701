package watchers

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

const todaysWatcher = "klm-watcher"

// todaysObject returns the object of a kind in the control plane of today's fleet.
func todaysObject(t *testing.T, kind string) *unstructured.Unstructured {
	t.Helper()
	for _, object := range today.Plane() {
		if object.GetKind() == kind {
			object.SetNamespace("default")
			return object
		}
	}
	t.Fatalf("today's fleet has no %s", kind)
	return nil
}

// todaysWatcherIsLetGo takes its finalizer off, also when it came while no controller ran. Its Gateway
// lacks the server that has tls.
func todaysWatcherIsLetGo(r *routes) {
	gateway := todaysObject(r.t, "Gateway")
	servers, _, _ := unstructured.NestedSlice(gateway.Object, "spec", "servers")
	r.must(unstructured.SetNestedSlice(gateway.Object, servers[:1], "spec", "servers"))
	r.must(apply(r.t, r.plane, gateway))
	w := todaysObject(r.t, "Watcher")
	w.SetFinalizers([]string{today.Finalizer, "example.com/foreign"})
	r.must(r.plane.Client.Create(r.t.Context(), w))
	rig.Eventually(r.t, patience, "plain HTTP is routed", func() bool {
		route := r.route(todaysWatcher)
		if route == nil {
			return false
		}
		hosts, _, _ := unstructured.NestedStringSlice(route.Object, "spec", "hosts")
		return len(hosts) == 1 && hosts[0] == today.Host
	})
	rig.Eventually(r.t, patience, "the finalizer is taken off", func() bool {
		finalizers := r.watcher(todaysWatcher).Finalizers
		return len(finalizers) == 1 && finalizers[0] == "example.com/foreign"
	})
	r.deleteWatcher(todaysWatcher)
	r.awaitNoRoute(todaysWatcher)
	r.changeWatcher(todaysWatcher, func(held *v1beta2.Watcher) { held.Finalizers = nil })
	r.isLetGo()
	r.end()
	w = todaysObject(r.t, "Watcher")
	r.must(r.plane.Client.Create(r.t.Context(), w))
	r.must(r.plane.Client.Delete(r.t.Context(), w))
	r.start()
	r.isLetGo()
}

// isLetGo waits until the Watcher is gone.
func (r *routes) isLetGo() {
	r.t.Helper()
	name := types.NamespacedName{Namespace: "default", Name: todaysWatcher}
	rig.Eventually(r.t, patience, "the Watcher is gone", func() bool {
		return apierrors.IsNotFound(r.plane.Client.Get(r.t.Context(), name, &v1beta2.Watcher{}))
	})
}
