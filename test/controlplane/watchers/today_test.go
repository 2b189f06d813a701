package watchers

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
			return object
		}
	}
	t.Fatalf("today's fleet has no %s", kind)
	return nil
}

// plainGateway returns today's Gateway without the server that has tls.
func plainGateway(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	gateway := todaysObject(t, "Gateway")
	servers, _, _ := unstructured.NestedSlice(gateway.Object, "spec", "servers")
	if err := unstructured.SetNestedSlice(gateway.Object, servers[:1], "spec", "servers"); err != nil {
		t.Fatal(err)
	}
	return gateway
}

// todays is a Watcher of today's fleet and its route.
type todays struct{ *routes }

func (r todays) key() types.NamespacedName {
	return types.NamespacedName{Namespace: today.PlaneNamespace, Name: todaysWatcher}
}

func (r todays) stored() *v1beta2.Watcher {
	r.t.Helper()
	w := &v1beta2.Watcher{}
	if err := r.plane.Client.Get(r.t.Context(), r.key(), w); err != nil {
		r.must(client.IgnoreNotFound(err))
		return nil
	}
	return w
}

func (r todays) hosts() []string {
	route := r.empty(r.key().Name)
	route.SetNamespace(r.key().Namespace)
	if err := r.plane.Client.Get(r.t.Context(), client.ObjectKeyFromObject(route), route); err != nil {
		r.must(client.IgnoreNotFound(err))
		return nil
	}
	hosts, _, _ := unstructured.NestedStringSlice(route.Object, "spec", "hosts")
	return hosts
}

// todaysWatcherIsLetGo takes its finalizer off, also when it came while no controller ran.
func todaysWatcherIsLetGo(of *routes) {
	r := todays{of}
	createNamespace(r.t, r.plane, today.PlaneNamespace)
	r.must(apply(r.t, r.plane, plainGateway(r.t)))
	w := todaysObject(r.t, "Watcher")
	w.SetFinalizers([]string{today.Finalizer, "example.com/foreign"})
	r.must(r.plane.Client.Create(r.t.Context(), w))
	rig.Eventually(r.t, patience, "plain HTTP is routed", func() bool {
		return len(r.hosts()) == 1 && r.hosts()[0] == today.Host
	})
	rig.Eventually(r.t, patience, "the finalizer is taken off", func() bool {
		finalizers := r.stored().Finalizers
		return len(finalizers) == 1 && finalizers[0] == "example.com/foreign"
	})
	r.must(r.plane.Client.Delete(r.t.Context(), r.stored()))
	rig.Eventually(r.t, patience, "the route ends with the deletion", func() bool { return r.hosts() == nil })
	rig.Eventually(r.t, patience, "it is held no longer", func() bool {
		held := r.stored()
		held.Finalizers = nil
		return r.plane.Client.Update(r.t.Context(), held) == nil
	})
	rig.Eventually(r.t, patience, "the Watcher is gone", func() bool { return r.stored() == nil })
	r.end()
	w = todaysObject(r.t, "Watcher")
	r.must(r.plane.Client.Create(r.t.Context(), w))
	r.must(r.plane.Client.Delete(r.t.Context(), w))
	r.start()
	rig.Eventually(r.t, patience, "the other Watcher is gone, too", func() bool { return r.stored() == nil })
}
