package multicluster

import (
	"context"
	"errors"
	"strings"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// Enqueue requests the object that an event names, in the cluster with the name of the runtime. For
// a resync, it requests the cluster itself, without the name of an object. Use it as the
// [controllerruntime.MapFunc] of a source for [Complete].
func Enqueue(_ context.Context, d core.Delivery) ([]mcreconcile.Request, error) {
	return []mcreconcile.Request{{
		Request:     reconcile.Request{NamespacedName: d.Event.Watched},
		ClusterName: multicluster.ClusterName(d.Runtime),
	}}, nil
}

// Complete builds a controller that the events of a source trigger, in place of For and Complete of
// the builder. It fails if an argument is missing.
//
// A request for a cluster requests each of its objects. Such a request follows when the cluster is
// engaged, for example after a restart of the operator, and for each resync. The list has only the
// metadata of objects, in pages of at most 250. A page with an answer that is too large is read
// again in smaller pages. At most 500 names of a list wait in the queue. The list continues when
// half of these names are reconciled. A list ends after MostListed objects, 10,000 pages or 1 h,
// and a log line says so. While more than 1,000 requests are ready, one list is read in a second.
//
// A list also requests the objects that were deleted since their last reconcile, because their
// deletions may have been missed. If a cluster has more names than Remembered, a line is logged
// once for the cluster.
//
// No cluster takes more than its share of the workers, and slow clusters use a separate lane: see
// [remote.Lanes]. If more than 1,000 changes of a cluster wait for its share, a list replaces the
// rest. If more than 1,000 objects of a cluster fail, a list after 10 min replaces the retries of
// the rest.
func Complete(mgr mcmanager.Manager, controller *mcbuilder.Builder, of Objects) error {
	if mgr == nil || controller == nil {
		return errors.New("multicluster: want a controller manager and a builder")
	}
	if err := of.validate(); err != nil {
		return err
	}

	o := newObjects(of.withDefaults(), mgr.GetCluster)
	built, err := controller.WatchesRawSource(of.Source).WatchesRawSource(o.lanes.Regular).Build(o.lanes.Regular)
	if err != nil {
		return err
	}
	if err := o.lanes.SetUpSlow(mgr.GetLocalManager(), strings.ToLower(of.Kind.Kind)); err != nil {
		return err
	}

	return built.MultiClusterWatch(o)
}

func newObjects(
	of Objects, get func(ctx context.Context, name multicluster.ClusterName) (cluster.Cluster, error),
) *objects {
	o := &objects{Objects: of, cluster: get, lists: make(map[multicluster.ClusterName]*list)}
	of.Lanes.Replace = o.replaceByResync
	clusterOf := func(r mcreconcile.Request) string { return string(r.ClusterName) }
	o.lanes = remote.NewLanes(clusterOf, mcreconcile.Func(o.reconcileRequest), of.Lanes)

	return o
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

// reconcileRequest reconciles an object, or reads a part of a list. The workers of both lanes call
// it.
func (o *objects) reconcileRequest(ctx context.Context, r mcreconcile.Request) (reconcile.Result, error) {
	of, err := o.cluster(ctx, r.ClusterName)
	if errors.Is(err, multicluster.ErrClusterNotFound) {
		o.forgetCluster(r.ClusterName)
		return reconcile.Result{}, nil
	}

	if err != nil {
		return reconcile.Result{}, err
	}

	switch {
	case r == continuation(r.ClusterName):
		return o.listPart(ctx, r.ClusterName, of.GetAPIReader())
	case r.Name == "":
		o.beginList(r.ClusterName)
		return reconcile.Result{}, nil
	}

	number, gone := o.takeRequest(ctx, r)
	reads := &objectRead{kind: o.Kind, name: r.NamespacedName}

	// Only a cluster without cache reads the newest version.
	if own, ok := of.(*live); ok {
		reads.Client = own.client
		read := o.Source.Client(r, core.RuntimeID(r.ClusterName), reads)
		ctx = context.WithValue(ctx, reconciled{r.ClusterName}, &live{Provider: own.Provider, client: read})
	}

	result, err := o.Reconciler.Reconcile(ctx, r)
	o.noteRead(ctx, r, number, gone, reads)
	return result, o.noteEnd(r, err)
}
