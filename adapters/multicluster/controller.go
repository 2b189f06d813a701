package multicluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// page is the number of objects of one request for a resync.
	page = 250
	// waiting is the length of the queue above which lists wait: it would hold all objects.
	waiting = 1000
	pause   = time.Second
)

// Enqueue requests the object that an event names, in the cluster with the name of the runtime. It
// requests the cluster itself, without the name of an object, for a resync. It is a
// [controllerruntime.MapFunc] of a source for [Complete].
func Enqueue(_ context.Context, d core.Delivery) ([]mcreconcile.Request, error) {
	return []mcreconcile.Request{{
		Request:     reconcile.Request{NamespacedName: d.Event.Watched},
		ClusterName: multicluster.ClusterName(d.Runtime),
	}}, nil
}

// Complete builds a controller that the events of src trigger, in place of For and Complete of the
// builder. reconciler gets requests for objects. The client of [Provider.Get] within a reconcile is
// that of [controllerruntime.Source.Client].
//
// A request for a cluster requests each of its objects of that kind that opts match. There is one
// when the cluster is engaged, as after a restart of the operator, and for each resync. The list
// has only the metadata of objects, in pages of 250. While more than 1,000 requests wait, there is
// one list a second. It fails if an argument is missing.
func Complete(
	mgr mcmanager.Manager, controller *mcbuilder.Builder, src *controllerruntime.Source[mcreconcile.Request],
	kind schema.GroupVersionKind, reconciler mcreconcile.Reconciler, opts ...client.ListOption,
) error {
	if mgr == nil || controller == nil || src == nil || reconciler == nil {
		return errors.New("multicluster: want a controller manager, a builder, a source and a reconciler")
	}
	o := &objects{Reconciler: reconciler, mgr: mgr, source: src, kind: kind, opts: opts}
	built, err := controller.WatchesRawSource(src).Build(o)
	if err != nil {
		return err
	}
	return built.MultiClusterWatch(o)
}

// objects reconciles objects, and requests those of a cluster for a request without a name.
type objects struct {
	mcreconcile.Reconciler

	mgr    mcmanager.Manager
	source *controllerruntime.Source[mcreconcile.Request]
	kind   schema.GroupVersionKind
	opts   []client.ListOption

	mu     sync.Mutex
	queue  workqueue.TypedRateLimitingInterface[mcreconcile.Request]
	listed time.Time
}

// ForCluster implements the source of multicluster-runtime. It requests each cluster when it is
// engaged.
func (o *objects) ForCluster(
	name multicluster.ClusterName, _ cluster.Cluster,
) (source.TypedSource[mcreconcile.Request], bool, error) {
	return source.TypedFunc[mcreconcile.Request](
		func(_ context.Context, queue workqueue.TypedRateLimitingInterface[mcreconcile.Request]) error {
			o.mu.Lock()
			o.queue = queue
			o.mu.Unlock()
			queue.Add(mcreconcile.Request{ClusterName: name})
			return nil
		}), true, nil
}

// waits reports whether a list must wait, because many requests do. One list for each pause need
// not, as a loud cluster could keep the queue long for ever.
func (o *objects) waits() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.queue != nil && o.queue.Len() > waiting && time.Since(o.listed) < pause {
		return true
	}
	o.listed = time.Now()
	return false
}

type reconciled struct{ multicluster.ClusterName }

// Reconcile implements [mcreconcile.Reconciler].
func (o *objects) Reconcile(ctx context.Context, r mcreconcile.Request) (reconcile.Result, error) {
	of, err := o.mgr.GetCluster(ctx, r.ClusterName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.Name == "" {
		if o.waits() {
			return reconcile.Result{RequeueAfter: pause}, nil
		}
		return reconcile.Result{}, o.request(ctx, r.ClusterName, of.GetAPIReader())
	}
	// Only a cluster without cache reads the newest version.
	if own, ok := of.(*live); ok {
		read := o.source.Client(r, core.RuntimeID(r.ClusterName), own.client)
		ctx = context.WithValue(ctx, reconciled{r.ClusterName}, &live{Provider: own.Provider, client: read})
	}
	return o.Reconciler.Reconcile(ctx, r)
}

func (o *objects) request(ctx context.Context, name multicluster.ClusterName, reader client.Reader) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(o.kind.GroupVersion().WithKind(o.kind.Kind + "List"))
	for first := true; first || list.Continue != ""; first = false {
		opts := append([]client.ListOption{client.Limit(page), client.Continue(list.Continue)}, o.opts...)
		if err := reader.List(ctx, list, opts...); err != nil {
			return fmt.Errorf("list %s of cluster %s: %w", o.kind.Kind, name, err)
		}
		requests := make([]mcreconcile.Request, len(list.Items))
		for i := range list.Items {
			key := client.ObjectKeyFromObject(&list.Items[i])
			requests[i] = mcreconcile.Request{Request: reconcile.Request{NamespacedName: key}, ClusterName: name}
		}
		if err := o.source.Resync(requests...); err != nil {
			return err
		}
	}
	return nil
}
