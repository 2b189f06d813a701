package main

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// myOperator is the name of the operator in the runtimes.
const myOperator core.Manager = "my-operator"

// kymas is the kind of the objects that represent runtimes.
func kymas() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// verifierFor makes a verifier from the registered domains.
type verifierFor func(now listener.Domains) core.Verifier

// setUp adds the listener and the controller to a controller manager, as in a cluster. It ends TLS
// itself. It checks the certificate of each request, so that a removed CA loses its open
// connections. Every replica listens, and the leader takes events.
func setUp(
	ctx context.Context, mgr manager.Manager, material keys.Source, verify verifierFor,
	reconciler *reconciler, opts listener.Options,
) (ready func() error, err error) {
	reconciler.runtimes, err = controllerruntime.NewRuntimes(ctx, mgr.GetCache(), kymas(), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{})
	if err != nil {
		return nil, err
	}
	opts.TLS = keys.ServerTLSConfig(material)
	events, source, err := controllerruntime.RegisterListenerComponent("", string(myOperator),
		listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}), verify(reconciler.runtimes),
		controllerruntime.EnqueueByRuntime(reconciler.runtimes), controllerruntime.ComponentOptions{
			Listener: opts, Source: controllerruntime.SourceOptions{Elected: mgr.Elected()},
		})
	if err != nil {
		return nil, err
	}
	return source.Ready, errors.Join(mgr.Add(events), reconciler.setUp(mgr, source))
}

// reconciler is the work of the operator: it reports the runtime of an object.
type reconciler struct {
	replica    string
	runtimes   *controllerruntime.Runtimes
	reconciled chan<- reconciled
}

// reconciled is one reconcile of the controller.
type reconciled struct {
	replica string
	runtime core.RuntimeID
}

// setUp registers the controller. Events are its only source, so that the output shows them alone.
// An operator would add For(kyma).
func (r *reconciler) setUp(mgr manager.Manager, source *controllerruntime.Source[reconcile.Request]) error {
	return builder.ControllerManagedBy(mgr).Named("events").WatchesRawSource(source).Complete(r)
}

// Reconcile implements [reconcile.Reconciler]. An event is a hint: an operator would look at the
// runtime now.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	runtime, err := r.runtimes.ID(ctx, request.NamespacedName)
	if err == nil {
		r.reconciled <- reconciled{r.replica, runtime}
	}
	return reconcile.Result{}, err
}

// kyma returns the object of a runtime with its registered domain.
func kyma(runtime core.RuntimeID, domain string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kymas())
	name := ownerOf(runtime)
	object.Namespace, object.Name = name.Namespace, name.Name
	object.Annotations = map[string]string{controllerruntime.DomainAnnotation: domain}
	return object
}
