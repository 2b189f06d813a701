package multicluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Objects are the objects that [Complete] reconciles. Source, Kind and Reconciler are required. The
// zero value of each other field is its documented default.
type Objects struct {
	// Source delivers the events of the clusters. Its map function must be [Enqueue].
	Source *controllerruntime.Source[mcreconcile.Request]
	// Kind is the kind of the objects.
	Kind schema.GroupVersionKind
	// Reconciler gets requests for objects. Within a reconcile, the cluster from [Provider.Get]
	// uses the client of [controllerruntime.Source.Client].
	Reconciler mcreconcile.Reconciler
	// Select are options of each list, such as a namespace. Default: all objects of the kind.
	Select []client.ListOption
	// Lanes share the workers among clusters. Complete sets Replace. Default: see
	// [remote.LanesOptions].
	Lanes remote.LanesOptions[mcreconcile.Request]
	// Remembered is the number of names of each cluster that are remembered, so that a list shows
	// which of these objects no longer exist. A name known only from an event is forgotten before a
	// name known from a list or from a read with the client of [Provider.Get]. Each name takes
	// about 100 bytes. Default: 1,000.
	Remembered int
	// MostListed is the largest number of objects in one list. Default: 100,000.
	MostListed int
}

func (o Objects) withDefaults() Objects {
	const remembered, listed = 1000, 100_000
	return option.WithDefaults(o, Objects{Remembered: remembered, MostListed: listed})
}

func (o Objects) validate() error {
	return errors.Join(
		option.Unless(o.Source != nil, "multicluster: want Objects.Source, have none"),
		option.Unless(!o.Kind.Empty(), "multicluster: want Objects.Kind, have none"),
		option.Unless(!option.IsNil(o.Reconciler), "multicluster: want Objects.Reconciler, have none"),
		option.NotNegative("multicluster: Objects.Remembered", o.Remembered),
		option.NotNegative("multicluster: Objects.MostListed", o.MostListed))
}

// objects reconciles objects, and for a request without a name it requests the objects of a
// cluster.
type objects struct {
	Objects

	cluster func(ctx context.Context, name multicluster.ClusterName) (cluster.Cluster, error)
	lanes   *remote.Lanes[mcreconcile.Request]

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[mcreconcile.Request] // nil before the first cluster
	// listed is the time of the last list.
	listed time.Time
	lists  map[multicluster.ClusterName]*list
}

// listOf returns the list of a cluster. The caller holds the lock.
func (o *objects) listOf(name multicluster.ClusterName) *list {
	l := o.lists[name]
	if l == nil {
		l = &list{
			page:    mostPage,
			known:   newKnown(),
			waiting: make(map[types.NamespacedName]struct{}),
			failing: make(map[types.NamespacedName]struct{}),
		}

		o.lists[name] = l
	}
	return l
}

func (o *objects) forgetCluster(name multicluster.ClusterName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.lists, name)
}
