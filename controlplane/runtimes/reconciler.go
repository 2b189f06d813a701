package runtimes

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// reconciler installs the agents of runtimes. Several workers use it in parallel, and its fields do
// not change after set-up. The book has its own lock.
type reconciler struct {
	// The control plane:
	client    client.Client
	watchers  client.Reader // It knows the Go type of Watchers.
	secrets   client.Reader
	shared    *cache.Expiring // the content of Secrets for all runtimes, by sharedKey
	prototype client.Object
	gvk       schema.GroupVersionKind
	events    events.EventRecorder // gets an Event about an object when its runtime fails, waits, or is ready again

	// The parts of SetUp:
	identify     func(ctx context.Context, object client.Object) (Identity, error)
	connect      func(ctx context.Context, object client.Object) (client.Client, error)
	certificates Certificates
	installer    *installation.Installer
	opts         Options
	names        names.Names // of the installer

	book      *book
	lanes     *remote.Lanes[reconcile.Request]
	authority wakeup // of the controller of the CA
}

// reconcilerOf lacks the kind, the reader of Watchers and the lanes.
func reconcilerOf(mgr ctrl.Manager, parts Parts, opts Options) *reconciler {
	r := &reconciler{
		client: mgr.GetClient(), secrets: mgr.GetAPIReader(), shared: cache.NewExpiring(),
		prototype: parts.Object, events: mgr.GetEventRecorder(opts.Name),
		identify: parts.Identify, connect: parts.Connect, certificates: parts.Certificates,
		installer: parts.Installer, opts: opts, names: parts.Installer.Names(),
		book: opts.Overview.newBook(),
	}

	_, heartbeats := r.installer.Agents()
	if heartbeats && opts.Fleet != nil {
		r.book.status = opts.Fleet.Get
	}
	return r
}

// reconcileAll enqueues all runtimes after a change that concerns all, behind those that changed
// themselves. Runtimes of a controller that does not run yet are enqueued when it starts.
func (r *reconciler) reconcileAll() {
	r.lanes.Regular.Add(0, handler.LowPriority, r.book.allRequests()...)
}

// spread adds up to a tenth, so that runtimes that came at the same moment do not stay together.
func spread(d time.Duration) time.Duration {
	const part = 10
	return d + rand.N(d/part+1) //nolint:gosec // It is no secret.
}

// retryAfter is the time to the next attempt for a runtime that has not been ready for some time: a
// quarter of that, from Retry to Interval.
func (r *reconciler) retryAfter(age time.Duration) time.Duration {
	const part = 4
	return min(max(age/part, r.opts.Retry), r.opts.Interval)
}

// repairPause is the least time to the next early reconcile of a runtime, by default a minute. By
// then, all managers have got a heartbeat from after the reconcile.
func (r *reconciler) repairPause() time.Duration { return 20 * r.opts.Retry }

// forgetObject forgets an object. It returns its runtime, if that is known and has no other object.
func (r *reconciler) forgetObject(object client.ObjectKey) core.RuntimeID {
	id := r.book.forgetObject(object)
	if id != "" {
		r.installer.Forget(id)
	}
	return id
}

// forgetRuntime removes a runtime from the fleet, which drops late heartbeats of its agents.
func (r *reconciler) forgetRuntime(id core.RuntimeID) {
	if id != "" && r.opts.Fleet != nil {
		r.opts.Fleet.Forget(id)
	}
}

// forgetFormer removes former managers from the fleet. It reports whether to call it again soon,
// because former agents still send heartbeats for a manager.
func (r *reconciler) forgetFormer(object client.ObjectKey, id core.RuntimeID, current []core.Manager) (soon bool) {
	r.book.withEntry(object, func(e *entry) { soon = e.former.forgetLeft(r.opts.Fleet, id, current) })
	return soon
}

// pauseOfReady is the time to the next reconcile of a runtime that is ready. It is short while
// former agents may end.
func (r *reconciler) pauseOfReady(soon bool) time.Duration {
	if soon {
		return min(r.opts.Interval, drain)
	}
	return r.opts.Interval
}

// readContents returns the watches of all valid Watchers, without their invalid conditions. The
// status of a Watcher reports both.
func (r *reconciler) readContents(ctx context.Context) (contents, error) {
	list := &v1beta2.WatcherList{}
	if err := r.watchers.List(ctx, list); err != nil {
		return contents{}, fmt.Errorf("list Watchers: %w", err)
	}

	watches, err := watcher.Watches(list.Items, r.names)
	if err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("Watchers, or conditions of Watchers, are left out", "problem", err.Error())
	}
	return contents{
		watches:  watches,
		managers: r.installer.Managers(watches),
		watchers: r.book.shareWatchers(generations(list.Items, watches)),
	}, nil
}

func generations(items []v1beta2.Watcher, watches []watch.Watch) watchers {
	all := make(watchers, len(watches))
	for n := range watches {
		all[watches[n].Name] = 0
	}

	for n := range items {
		key := client.ObjectKeyFromObject(&items[n])
		_, isValid := all[key]
		if isValid {
			all[key] = items[n].Generation
		}
	}
	return all
}

// annotationRemoval is the time of the first failed removal, on an object that is held. It outlives
// this process, so that an operator that restarts often gives up, too.
const annotationRemoval = "removal-failing-since"

// othersOf returns the annotations without the annotation of the removal.
func (r *reconciler) othersOf(object client.Object) map[string]string {
	annotations := make(map[string]string)
	maps.Copy(annotations, object.GetAnnotations())
	delete(annotations, r.names.Key(annotationRemoval))
	return annotations
}
