package runtimes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const conflictPause = time.Second

// reconciler installs the agents of runtimes. Several workers use it in parallel, and its fields do
// not change after set-up. The book has its own lock.
type reconciler struct {
	client       client.Client
	watchers     client.Reader // it knows the Go type of Watchers
	prototype    client.Object
	gvk          schema.GroupVersionKind
	identify     func(ctx context.Context, object client.Object) (Identity, error)
	connect      func(ctx context.Context, object client.Object) (client.Client, error)
	certificates Certificates
	installer    *installation.Installer
	opts         Options
	names        names.Names // of the installer
	book         *book
	events       events.EventRecorder // gets an Event about an object when its runtime fails, waits, or is ready again
	secrets      client.Reader
	pulled       *cache.Expiring // the content of the pull secret, by its name

	lanes     *remote.Lanes[reconcile.Request]
	authority wakeup // of the controller of the CA
}

// reconcile tries again after a conflict: the cache has not seen the last write yet.
func (r *reconciler) reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcileObject(ctx, request)
	if apierrors.IsConflict(err) && !isFailure(err) {
		return reconcile.Result{RequeueAfter: conflictPause}, nil
	}
	return result, err
}

func (r *reconciler) reconcileObject(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	// The work in a runtime has a bound of its own, which leaves time to report the result.
	ctx, cancel := context.WithTimeout(ctx, 2*r.opts.Timeout)
	defer cancel()
	object, _ := r.prototype.DeepCopyObject().(client.Object) // It is one.
	err := r.client.Get(ctx, request.NamespacedName, object)
	if apierrors.IsNotFound(err) {
		r.forget(r.end(ctx, request.NamespacedName))
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if object.GetDeletionTimestamp() != nil {
		return r.remove(ctx, object)
	}
	return r.keep(ctx, object)
}

// end forgets an object. It returns its runtime, if that is known and has no other object.
func (r *reconciler) end(ctx context.Context, object client.ObjectKey) core.RuntimeID {
	id := r.book.forget(object)
	if id != "" {
		_, _ = r.installer.Uninstall(ctx, installation.Runtime{ID: id}) // Without client, nothing can fail.
	}
	return id
}

// forget removes a runtime from the fleet, which drops late heartbeats of its agents.
func (r *reconciler) forget(id core.RuntimeID) {
	if id != "" && r.opts.Fleet != nil {
		r.opts.Fleet.Forget(id)
	}
}

func (r *reconciler) keep(ctx context.Context, object client.Object) (reconcile.Result, error) {
	identity, err := r.identify(ctx, object)
	if err == nil && identity.ID == "" && controllerutil.ContainsFinalizer(object, r.names.Finalizer) {
		err = errNoID
	}
	if err != nil {
		return r.fail(ctx, object, "", because(ReasonIdentityUnknown, err))
	}
	if identity.ID == "" {
		return reconcile.Result{}, nil
	}
	skipped := r.skips(object)
	if identity.Remove && !skipped {
		return r.remove(ctx, object)
	}
	if err := r.edit(ctx, object, func() { r.setRemoval(object, "") }); err != nil {
		return reconcile.Result{}, err
	}
	if skipped {
		return reconcile.Result{}, r.report(ctx, object, identity.ID,
			awaiting(ReasonSkipped, "waiting for the end of an opt-out"), contents{})
	}
	r.book.begin(client.ObjectKeyFromObject(object), identity.ID)
	r.book.noteJoins(client.ObjectKeyFromObject(object), identity.Joins)
	has, err := r.contents(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if identity.Joins {
		return r.keepJoined(ctx, object, identity.ID, has.managers)
	}
	status, err := r.install(ctx, object, identity, has.watches)
	r.book.noteFormer(client.ObjectKeyFromObject(object), has.managers, status.Former)
	if err != nil {
		return r.fail(ctx, object, identity.ID, err)
	}
	if err := r.report(ctx, object, identity.ID, status, has); err != nil {
		return reconcile.Result{}, err
	}
	return r.again(client.ObjectKeyFromObject(object), identity.ID, has.managers, status), nil
}

// again returns when to reconcile a runtime again. One that is ready comes after those that wait.
func (r *reconciler) again(
	object client.ObjectKey, id core.RuntimeID, managers []core.Manager, status installation.Status,
) reconcile.Result {
	if status.State != installation.Ready {
		after, _ := r.waits(object)
		return reconcile.Result{RequeueAfter: after}
	}
	return reconcile.Result{
		RequeueAfter: spread(r.forgetFormer(object, id, managers)), Priority: new(handler.LowPriority),
	}
}

// waits returns the time to the next attempt for a runtime that is not ready, and for how long it
// has not been. The time is a quarter of that age, from Retry to Interval.
func (r *reconciler) waits(object client.ObjectKey) (after, age time.Duration) {
	const part = 4
	r.book.edit(object, func(e *entry) {
		if e.waiting.IsZero() {
			e.waiting = time.Now()
		}
		age = time.Since(e.waiting)
	})
	return min(max(age/part, r.opts.Retry), r.opts.Interval), age
}

// spread adds up to a tenth, so that runtimes that came at the same moment do not stay together.
func spread(d time.Duration) time.Duration {
	const part = 10
	return d + rand.N(d/part+1) //nolint:gosec // It is no secret.
}

func (r *reconciler) install(
	ctx context.Context, object client.Object, identity Identity, watches []watch.Watch,
) (installation.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	if err := r.edit(ctx, object, func() { controllerutil.AddFinalizer(object, r.names.Finalizer) }); err != nil {
		return installation.Status{}, err
	}
	own, next := r.runtimeOf(object, identity), &installation.Runtime{ID: identity.ID, Watches: watches}
	version := "" // if the objects that EnsureRuntime reads are not followed
	if followed, ok := r.certificates.(followed); ok {
		version = followed.Version(own)
	}
	if r.book.isInstalled(client.ObjectKeyFromObject(object), version) {
		status, unchanged, err := r.glance(ctx, object, next)
		if unchanged || err != nil {
			return status, err
		}
	}
	issued, err := r.certificates.EnsureRuntime(ctx, own)
	if err != nil {
		return installation.Status{}, because(certificateReason(err), fmt.Errorf("issue certificates: %w", err))
	}
	if !issued.Ready {
		waiting := awaiting(reasonCertificate+installation.Reason(issued.Reason), issued.Message)
		if waiting.Reason == ReasonCertificateFailed {
			waiting.State = installation.Failed
		}
		return waiting, nil
	}
	if waiting, err := r.prepare(ctx, object, next); err != nil || next.Client == nil {
		return waiting, err
	}
	next.Secret = issued.Secret
	return r.apply(ctx, client.ObjectKeyFromObject(object), *next, version)
}

// glance reads no certificates. It reports whether the agent is still as it was installed.
func (r *reconciler) glance(
	ctx context.Context, object client.Object, next *installation.Runtime,
) (status installation.Status, unchanged bool, err error) {
	if status, err = r.prepare(ctx, object, next); err != nil || next.Client == nil {
		return status, true, err
	}
	status, unchanged, err = r.installer.Unchanged(ctx, *next)
	return status, unchanged, because(installReason(err), err)
}

// wayAwaited is how long a new runtime may have no kubeconfig before that is a failure.
const wayAwaited = time.Hour

// prepare sets no client without a way to the runtime.
func (r *reconciler) prepare(
	ctx context.Context, object client.Object, next *installation.Runtime,
) (waiting installation.Status, err error) {
	if next.Client, err = r.reach(ctx, object, next.ID); next.Client == nil {
		waiting = awaiting(ReasonUnreachable, "waiting for a way to the runtime, such as the Secret with its kubeconfig")
		if time.Since(object.GetCreationTimestamp().Time) > wayAwaited {
			waiting.State = installation.Failed
		}
		return waiting, err
	}
	if next.ControlPlane, err = r.opts.ControlPlane(ctx, object); err != nil {
		return waiting, because(ReasonNoAddress, fmt.Errorf("address of the control plane: %w", err))
	}
	next.PullSecret, err = r.pullSecret(ctx)
	return waiting, because(ReasonInvalidSecret, err)
}

func (r *reconciler) apply(
	ctx context.Context, object client.ObjectKey, next installation.Runtime, version string,
) (installation.Status, error) {
	least, begun := time.Duration(0), time.Now()
	if next.Verify = r.book.beginRepair(object); next.Verify {
		least = r.pause()
		ctrl.LoggerFrom(ctx).V(1).Info("watch path is broken, so all objects are applied", "runtime", next.ID)
	}
	status, err := r.installer.Install(ctx, next)
	r.book.endRepair(object, time.Since(begun), least)
	if err == nil && status.State == installation.Ready {
		r.book.edit(object, func(e *entry) { e.installed = version })
	}
	return status, because(installReason(err), err)
}

func (r *reconciler) reach(ctx context.Context, object client.Object, id core.RuntimeID) (client.Client, error) {
	there, err := r.connect(ctx, object)
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err == nil {
		return there, nil
	}
	reason := ReasonUnreachable
	if errors.Is(err, remote.ErrInvalidKubeconfig) {
		reason = ReasonInvalidKubeconfig
	}
	return nil, because(reason, fmt.Errorf("connect to runtime %q: %w", id, err))
}

// runtimeOf names the owner with its kind, so that the schemes of others need not know it. The
// garbage collector removes the certificates with the owner, even without the finalizer.
func (r *reconciler) runtimeOf(object client.Object, identity Identity) certificates.Runtime {
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
	}}
	owner.SetGroupVersionKind(r.gvk)
	return certificates.Runtime{ID: identity.ID, Domain: identity.Domain, Owner: owner}
}

func awaiting(reason installation.Reason, message string) installation.Status {
	return installation.Status{State: installation.Progressing, Reason: reason, Message: message}
}

// edit conflicts with concurrent changes, as it replaces the whole list of finalizers.
func (r *reconciler) edit(ctx context.Context, object client.Object, change func()) error {
	before, _ := object.DeepCopyObject().(client.Object) // It is one.
	change()
	if slices.Equal(before.GetFinalizers(), object.GetFinalizers()) &&
		maps.Equal(before.GetAnnotations(), object.GetAnnotations()) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	err := r.client.Patch(ctx, object, patch)
	return option.Unless(err == nil, "patch the object: %w", err)
}

// contents returns the watches of all valid Watchers, without their invalid conditions. The status
// of a Watcher reports both.
func (r *reconciler) contents(ctx context.Context) (contents, error) {
	list := &v1beta2.WatcherList{}
	if err := r.watchers.List(ctx, list); err != nil {
		return contents{}, fmt.Errorf("list Watchers: %w", err)
	}
	watches, err := watcher.Watches(list.Items, r.names)
	if err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("Watchers, or conditions of Watchers, are left out", "problem", err.Error())
	}
	return contents{watches, r.installer.Managers(watches), r.book.share(generations(list.Items, watches))}, nil
}

func generations(items []v1beta2.Watcher, watches []watch.Watch) watchers {
	all := make(watchers, len(watches))
	for n := range watches {
		all[watches[n].Name] = 0
	}
	for n := range items {
		key := client.ObjectKeyFromObject(&items[n])
		if _, valid := all[key]; valid {
			all[key] = items[n].Generation
		}
	}
	return all
}

func (r *reconciler) remove(ctx context.Context, object client.Object) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(object, r.names.Finalizer) {
		return reconcile.Result{}, nil
	}
	removed, status, err := r.uninstall(ctx, object)
	if err != nil || status.State != installation.Removed {
		since, noteErr := r.sinceRemoval(ctx, object)
		if noteErr != nil {
			return reconcile.Result{}, errors.Join(err, noteErr)
		}
		if since > r.opts.GiveUp {
			ctrl.LoggerFrom(ctx).Error(err, "giving up the removal: the object is released, and its agent stays in the runtime",
				"awaiting", status.Message)
			status, err = installation.Status{State: installation.Removed}, nil
		}
	}
	// Certificates go after the agent, which needs them while it runs. One that is left would hold
	// up each rotation, which waits for all runtimes.
	if err == nil && status.State == installation.Removed && removed.ID != "" {
		err = because(ReasonCertificateFailed, r.certificates.RemoveRuntime(ctx, removed))
	}
	if err != nil {
		return r.fail(ctx, object, removed.ID, err)
	}
	if err := r.report(ctx, object, removed.ID, status, contents{}); err != nil {
		if status.State != installation.Removed || object.GetDeletionTimestamp() == nil {
			return reconcile.Result{}, err
		}
		ctrl.LoggerFrom(ctx).Error(err, "removing the finalizer of a deleted object, although its last status was not written")
	}
	if status.State != installation.Removed {
		after, _ := r.waits(client.ObjectKeyFromObject(object))
		return reconcile.Result{RequeueAfter: after}, nil
	}
	return r.release(ctx, object, removed.ID)
}

// annotationRemoval is the time of the first failed removal, on an object that is held. It outlives
// this process, so that an operator that restarts often gives up, too.
const annotationRemoval = "removal-failing-since"

func (r *reconciler) sinceRemoval(ctx context.Context, object client.Object) (time.Duration, error) {
	first, err := time.Parse(time.RFC3339, object.GetAnnotations()[r.names.Key(annotationRemoval)])
	if since := time.Since(first); err == nil && since >= 0 {
		return since, nil
	}
	now := time.Now().UTC().Format(time.RFC3339)
	return 0, r.edit(ctx, object, func() { r.setRemoval(object, now) })
}

func (r *reconciler) setRemoval(object client.Object, first string) {
	annotations := r.othersOf(object)
	if first != "" {
		annotations[r.names.Key(annotationRemoval)] = first
	}
	object.SetAnnotations(annotations)
}

func (r *reconciler) release(ctx context.Context, object client.Object, id core.RuntimeID) (reconcile.Result, error) {
	err := r.edit(ctx, object, func() {
		controllerutil.RemoveFinalizer(object, r.names.Finalizer)
		r.setRemoval(object, "")
	})
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	r.end(ctx, client.ObjectKeyFromObject(object))
	r.forget(id)
	return reconcile.Result{}, nil
}

// errNoID means that an object with an agent in its runtime has lost its ID, as by the removal of a
// label. The agent would get no new certificates.
var errNoID = errors.New("want the ID of a runtime with an agent, have none")

// uninstall returns no runtime that belongs to another object: there is nothing to remove.
func (r *reconciler) uninstall(
	ctx context.Context, object client.Object,
) (certificates.Runtime, installation.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	identity, err := r.identify(ctx, object)
	if err == nil && identity.ID == "" {
		err = errNoID
	}
	if err != nil {
		return certificates.Runtime{}, installation.Status{}, because(ReasonIdentityUnknown, err)
	}
	own := r.runtimeOf(object, identity)
	owned, err := r.certificates.OwnsRuntime(ctx, own)
	if err != nil {
		return own, installation.Status{}, because(ReasonCertificateFailed, err)
	}
	if !owned {
		return certificates.Runtime{}, installation.Status{State: installation.Removed}, nil
	}
	there, err := r.reach(ctx, object, identity.ID)
	if err != nil {
		return own, installation.Status{}, err
	}
	status, err := r.installer.Uninstall(ctx, installation.Runtime{ID: identity.ID, Client: there})
	return own, status, because(ReasonInstallationFailed, err)
}
