package controller_test

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/fleet/fleettest"
	fleetv1 "github.com/runtime-watcher/runtime-watcher/examples/kubebuilder/api/v1"
	"github.com/runtime-watcher/runtime-watcher/examples/kubebuilder/internal/controller"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// fromCache is the client of a controller manager that only reads.
type fromCache struct {
	client.Client

	cache *controllerruntimetest.Cache
}

func (c fromCache) Get(ctx context.Context, name client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return c.cache.Get(ctx, name, object, opts...)
}

// An event is acknowledged also when the add-ons cannot be listed, so each add-on has a poll as well.
// The poll is that of the runtime, and a failed reconcile is tried again instead.
func TestAnAddonIsPolledAsItsCluster(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "fleet-system", Name: name} }
	idOf := func(object client.Object) core.RuntimeID { return core.RuntimeID(object.(*fleetv1.Cluster).Spec.ID) }
	clusters := lab.Must(controllerruntime.NewRuntimes(
		controllerruntimetest.NewCache(&fleetv1.Cluster{ObjectMeta: meta("first"), Spec: fleetv1.ClusterSpec{ID: "id-1"}}),
		&fleetv1.Cluster{}, idOf, controllerruntime.RuntimesOptions{}))
	watched := lab.Must(fleet.New(fleet.Options{PollFresh: 20 * time.Minute, Random: func() float64 { return 0.5 }}))
	fleettest.Set(watched, "id-1", "addons", fleet.Condition{State: fleet.Fresh})

	var worked error
	r := &controller.AddonReconciler{
		Client: fromCache{cache: controllerruntimetest.NewCache(
			&fleetv1.Addon{ObjectMeta: meta("dns"), Spec: fleetv1.AddonSpec{Cluster: "first"}})},
		Fleet: watched, Clusters: clusters,
		Work: func(context.Context, *fleetv1.Addon) error { return worked },
	}
	reconcile := func(name string) (ctrl.Result, error) {
		return r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "fleet-system", Name: name}})
	}

	if result, err := reconcile("dns"); err != nil || result.RequeueAfter != 20*time.Minute {
		t.Errorf("have %v and error %v, want the poll of a fresh runtime", result, err)
	}
	if result, err := reconcile("gone"); err != nil || result != (ctrl.Result{}) {
		t.Errorf("have %v and error %v for an add-on that is gone, want no poll", result, err)
	}
	worked = errors.New("the cluster does not answer")
	if _, err := reconcile("dns"); !errors.Is(err, worked) {
		t.Errorf("error %v, want that of the work", err)
	}
}
