package runtimes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// Finalizer holds an object until the agent is removed from its runtime.
const Finalizer = "operator.kyma-project.io/runtime-watcher"

type reconciler struct {
	client       client.Client
	scheme       *runtime.Scheme
	prototype    client.Object
	gvk          schema.GroupVersionKind
	identify     Identify
	connect      Connect
	certificates Certificates
	installer    *installation.Installer
	opts         Options
	forgetter    *forgetter
	// confirming makes the controller look at all runtimes.
	confirming chan event.GenericEvent
}

// Reconcile brings one runtime nearer to what is wanted.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	// What is done for a runtime has its own bound, so that time is left to tell of it.
	ctx, cancel := context.WithTimeout(ctx, 2*r.opts.Timeout)
	defer cancel()

	object, _ := r.prototype.DeepCopyObject().(client.Object) // It is one.

	err := r.client.Get(ctx, request.NamespacedName, object)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{RequeueAfter: r.forgetter.forgetAgain(request.NamespacedName)}, nil
	}

	if err != nil {
		return reconcile.Result{}, err //nolint:wrapcheck // The request is logged beside it.
	}

	if object.GetDeletionTimestamp() != nil {
		return r.remove(ctx, object)
	}

	identity, err := r.identify(ctx, object)
	if err != nil || identity.ID == "" {
		return reconcile.Result{}, err
	}

	watches, err := r.watches(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}

	status, err := r.install(ctx, object, identity, watches)
	r.forgetter.noteFormer(status.Former)

	if err != nil {
		return reconcile.Result{}, err
	}

	if err := r.opts.Report(ctx, object, status); err != nil {
		return reconcile.Result{}, err
	}

	if status.State != installation.Ready {
		return reconcile.Result{RequeueAfter: r.opts.Retry}, nil
	}

	again := r.forgetter.forgetFormer(identity.ID, r.installer.Managers(watches), r.opts.Interval)

	return reconcile.Result{RequeueAfter: spread(again)}, nil
}

// spread keeps runtimes apart that came at the same moment.
func spread(d time.Duration) time.Duration {
	const part = 10

	return d + rand.N(d/part+1) //nolint:gosec // Nobody gains by guessing it.
}

func (r *reconciler) install(
	ctx context.Context, object client.Object, identity Identity, watches []admission.Watch,
) (installation.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()

	if err := r.hold(ctx, object); err != nil {
		return installation.Status{}, err
	}

	issued, err := r.certificates.EnsureRuntime(ctx, certificates.Runtime{ID: identity.ID, Domain: identity.Domain, Owner: r.owner(object)})
	if err != nil {
		return installation.Status{}, fmt.Errorf("issue a certificate: %w", err)
	}

	if !issued.Ready {
		return awaiting("the certificate: " + issued.Message), nil
	}

	there, err := r.connect(ctx, object)
	if errors.Is(err, ErrGone) {
		return awaiting("a way to the runtime"), nil
	}

	if err != nil {
		return installation.Status{}, fmt.Errorf("connect to runtime %q: %w", identity.ID, err)
	}

	return r.installer.Install(ctx, installation.Runtime{ //nolint:wrapcheck // It names the runtime.
		ID: identity.ID, Client: there, Secret: issued.Secret, Watches: watches,
	})
}

// owner takes the certificate along if somebody takes the finalizer away. It says its kind itself, which others' schemes need not know.
func (r *reconciler) owner(object client.Object) client.Object {
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
	}}
	owner.SetGroupVersionKind(r.gvk)

	return owner
}

func awaiting(what string) installation.Status {
	return installation.Status{State: installation.Progressing, Awaiting: what}
}

// hold makes sure that the object does not go before what is made for it.
func (r *reconciler) hold(ctx context.Context, object client.Object) error {
	before, _ := object.DeepCopyObject().(client.Object) // It is one.
	if !controllerutil.AddFinalizer(object, Finalizer) {
		return nil
	}

	return r.patch(ctx, object, before)
}

// patch is refused when somebody else was faster: a list of finalizers is replaced as a whole.
func (r *reconciler) patch(ctx context.Context, object, before client.Object) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, object, patch); err != nil {
		return fmt.Errorf("change the finalizers: %w", err)
	}

	return nil
}

// watches are those of all Watchers that can be watched. What is wrong with the others is in their status.
func (r *reconciler) watches(ctx context.Context) ([]admission.Watch, error) {
	list := &v1beta2.WatcherList{}
	if err := r.client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list Watchers: %w", err)
	}

	watches, err := watcher.Watches(list.Items)
	if err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("watchers are left out", "problem", err.Error())
	}

	r.forgetter.note(watches)

	return watches, nil
}

// remove takes the agent and the certificate away, and lets the object go.
func (r *reconciler) remove(ctx context.Context, object client.Object) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(object, Finalizer) {
		return reconcile.Result{RequeueAfter: r.forgetter.forgetAgain(client.ObjectKeyFromObject(object))}, nil
	}

	id, status, err := r.uninstall(ctx, object)
	if late := time.Since(object.GetDeletionTimestamp().Time) > r.opts.GiveUp; late && (err != nil || status.State != installation.Removed) {
		ctrl.LoggerFrom(ctx).Error(err, "runtime is let go, with the agent in it", "awaiting", status.Awaiting)

		status, err = installation.Status{State: installation.Removed}, nil
	}

	// A certificate that is left would hold up each rotation, waiting for a runtime that nobody can remove any more.
	if err == nil && status.State == installation.Removed {
		err = r.removeCertificate(ctx, id)
	}

	if err != nil {
		return reconcile.Result{}, err
	}

	if err := r.opts.Report(ctx, object, status); err != nil {
		return reconcile.Result{}, err
	}

	if status.State != installation.Removed {
		return reconcile.Result{RequeueAfter: r.opts.Retry}, nil
	}

	before, _ := object.DeepCopyObject().(client.Object) // It is one.
	controllerutil.RemoveFinalizer(object, Finalizer)

	if err := client.IgnoreNotFound(r.patch(ctx, object, before)); err != nil {
		return reconcile.Result{}, err
	}

	return reconcile.Result{RequeueAfter: r.forgetter.forget(client.ObjectKeyFromObject(object), id)}, nil
}

// uninstall takes the agent away, and returns whose it was, as far as that is known.
func (r *reconciler) uninstall(ctx context.Context, object client.Object) (core.RuntimeID, installation.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()

	identity, err := r.identify(ctx, object)
	if err == nil && identity.ID == "" {
		err = errors.New("want the ID of a runtime that is deleted, have none any more")
	}

	if err != nil {
		return "", installation.Status{}, err
	}

	there, err := r.connect(ctx, object)
	if errors.Is(err, ErrGone) {
		there, err = nil, nil
	}

	if err != nil {
		return identity.ID, installation.Status{}, fmt.Errorf("connect to runtime %q: %w", identity.ID, err)
	}

	status, err := r.installer.Uninstall(ctx, installation.Runtime{ID: identity.ID, Client: there})

	return identity.ID, status, err //nolint:wrapcheck // It names the runtime.
}

// removeCertificate comes after the agent, which needs it while it is there.
func (r *reconciler) removeCertificate(ctx context.Context, id core.RuntimeID) error {
	if err := r.certificates.RemoveRuntime(ctx, id); err != nil {
		return fmt.Errorf("remove the certificate: %w", err)
	}

	return nil
}
