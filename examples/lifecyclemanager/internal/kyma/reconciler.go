package kyma

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

const (
	// Finalizer holds a Kyma until its modules are removed from the runtime.
	Finalizer = "operator.kyma-project.io/kyma"
	// cacheLag is the time after which a cache shows the write that came first.
	cacheLag = 100 * time.Millisecond
)

// Reconciler keeps the modules of runtimes as their users want them.
type Reconciler struct {
	// Client is that of the control plane, with a cache, and Direct reads without it.
	Client client.Client
	Direct client.Reader
	// Connect returns the runtime of a Kyma.
	Connect skr.Connect
	// RequeueAfter returns the time until the next reconcile of a runtime in which all is well.
	RequeueAfter func(core.RuntimeID) time.Duration
	// Events reports edits that are undone.
	Events events.EventRecorder
	// GiveUp is how long after its deletion a Kyma is held by a runtime that does not answer.
	// Default: 1 h.
	GiveUp time.Duration
}

// Reconcile reads the state of one runtime, because an event does not carry a change. A Kyma with
// [v1beta2.SkipLabel] stays as it is.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	kyma := &v1beta2.Kyma{}
	if err := r.Client.Get(ctx, request.NamespacedName, kyma); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if v1beta2.Skipped(kyma) {
		return ctrl.Result{}, nil
	}
	step, state := r.keep, v1beta2.Error
	if !kyma.DeletionTimestamp.IsZero() {
		step, state = r.remove, v1beta2.Deleting
	}
	result, err := skr.Bounded(ctx, kyma, step)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return ctrl.Result{RequeueAfter: cacheLag}, nil
	}
	if err == nil {
		return result, nil
	}
	status := kyma.Status
	status.State, status.Message = state, err.Error()
	return ctrl.Result{}, skr.ShortError(errors.Join(err, r.report(ctx, kyma, status)))
}

// keep gives the runtime its catalog, and the control plane the Manifests that the user asks for.
func (r *Reconciler) keep(ctx context.Context, kyma *v1beta2.Kyma) (ctrl.Result, error) {
	if err := skr.Hold(ctx, r.Client, kyma, Finalizer); err != nil {
		return ctrl.Result{}, err
	}
	there, err := r.connect(ctx, kyma)
	if err != nil {
		return ctrl.Result{}, err
	}
	templates, err := r.visible(ctx, kyma)
	if err != nil {
		return ctrl.Result{}, err
	}
	remote, err := r.syncRuntime(ctx, there, kyma, templates)
	if err != nil {
		return ctrl.Result{}, err
	}
	modules, err := r.syncManifests(ctx, kyma, templates)
	if err != nil {
		return ctrl.Result{}, err
	}
	status := statusOf(kyma, modules)
	if err := errors.Join(r.report(ctx, kyma, status), reportThere(ctx, there, remote, status)); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.RequeueAfter(core.RuntimeID(kyma.Name))}, nil
}

func (r *Reconciler) connect(ctx context.Context, kyma *v1beta2.Kyma) (*skr.Runtime, error) {
	name := client.ObjectKeyFromObject(kyma)
	return r.Connect(ctx, name, name)
}

// syncRuntime makes the catalog of the runtime equal to templates, and returns the Kyma there.
func (r *Reconciler) syncRuntime(
	ctx context.Context, there *skr.Runtime, kyma *v1beta2.Kyma, templates map[string]*v1beta2.ModuleTemplate,
) (remote *v1beta2.Kyma, err error) {
	if err := there.Prepare(ctx); err != nil {
		return nil, err
	}
	err = syncCatalog(ctx, there, templates)
	if err == nil {
		remote, err = r.syncSpec(ctx, there, kyma)
	}
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		there.PrepareAgain() // A definition or the namespace was deleted in the runtime.
	}
	return remote, err
}
