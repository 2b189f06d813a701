package main

import (
	"context"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/keysource"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const (
	// component is the name of this operator in the runtimes: spec.manager of its Watchers.
	component = "lifecycle-manager"
	// certificatesName is the prefix of the names of all certificates.
	certificatesName = "watcher"
	// listenerSecret is the Secret with the key material of the listener.
	listenerSecret = certificatesName + "-listener"
)

// newKyma is the kind that represents a runtime. Its metadata is all that is looked at here.
func newKyma() *metav1.PartialObjectMetadata {
	kyma := &metav1.PartialObjectMetadata{}
	kyma.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"})

	return kyma
}

// identify tells which runtime a Kyma represents.
func identify(_ context.Context, kyma client.Object) (runtimes.Identity, error) {
	return runtimes.Identity{ID: controllerruntime.ByName(kyma), Domain: kyma.GetAnnotations()[controllerruntime.DomainAnnotation]}, nil
}

// watchRuntimes is what an operator adds in order to hear of changes in its runtimes, beyond its own reconciler.
func watchRuntimes(ctx context.Context, mgr ctrl.Manager, heard *fleet.Fleet, s settings) error {
	// Not the manager's client, whose cache would hold every Secret that is asked for.
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return err
	}

	set, err := certificates.New(direct, types.NamespacedName{Namespace: s.namespace, Name: certificatesName}, []string{s.host()},
		certificates.FromFleet(heard, certificates.FleetOptions{}), certificates.Options{Logger: controllerruntime.Logger(mgr.GetLogger())})
	if err != nil {
		return err
	}

	kubeconfigs := runtimes.NewKubeconfigs(mgr.GetAPIReader(), "config", client.ObjectKeyFromObject, runtimes.KubeconfigOptions{})

	return errors.Join(
		install(mgr, heard, set, kubeconfigs, s),
		listen(ctx, mgr, heard, set, &kymas{client: mgr.GetClient(), heard: heard}, s),
	)
}

// install brings the agent into every runtime, and has its API server call it about what the Watchers name.
func install(mgr ctrl.Manager, heard *fleet.Fleet, set *certificates.Certificates, kubeconfigs *runtimes.Kubeconfigs, s settings) error {
	installer, err := installation.New(s.image, s.address, installation.Options{})
	if err != nil {
		return err
	}

	return runtimes.SetUp(mgr, newKyma(), identify, kubeconfigs.Connect, set, installer, runtimes.Options{Fleet: heard})
}

// listen reconciles the Kyma of each runtime that has sent an event.
func listen(ctx context.Context, mgr ctrl.Manager, heard *fleet.Fleet, set *certificates.Certificates, r *kymas, s settings) error {
	known, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), newKyma().GroupVersionKind(),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}

	measured, err := measure(heard)
	if err != nil {
		return err
	}

	published, err := listenerKeys(mgr, set.ListenerSecret(), measured.KeyMaterial("server"))
	if err != nil {
		return err
	}

	// A runtime proves its identity with a certificate: to the listener, or to a gateway before it.
	roots := httpmtls.Roots(published)
	peers := listener.FromTLSWithRoots(roots, listener.PeerOptions{})
	opts := listener.Options{TLS: httpmtls.ServerTLSConfig(published)}

	if len(s.gateways) > 0 {
		peers, opts.TLS = listener.FromXFCC(listener.ProxyAddresses(s.gateways...), roots, listener.PeerOptions{}), nil
		// Only a gateway needs routes.
		if err := watcher.SetUp(mgr, watcher.Options{}); err != nil {
			return err
		}
	}

	opts.Fleet, opts.Logger = heard, controllerruntime.Logger(mgr.GetLogger())
	opts.Hooks = listener.Hooks{
		Answered: measured.Answered, InFlight: measured.InFlight,
		HandshakeFailed: measured.HandshakeFailed, ConnectionDropped: measured.ConnectionDropped,
	}

	events, source, err := controllerruntime.RegisterListenerComponent(s.listen, component, peers, listener.SANPinning(known),
		controllerruntime.EnqueueByRuntime(known), controllerruntime.ComponentOptions{Listener: opts})
	if err != nil {
		return err
	}

	return errors.Join(
		mgr.Add(published),
		mgr.Add(events),
		mgr.AddReadyzCheck("listener", func(*http.Request) error { return events.Ready() }),
		mgr.AddReadyzCheck("certificate", func(*http.Request) error {
			_, err := published.Material()

			return err
		}),
		ctrl.NewControllerManagedBy(mgr).For(newKyma(), builder.OnlyMetadata).WatchesRawSource(source).Complete(r),
	)
}

// listenerKeys reads the key material that this operator issues for its own listener.
func listenerKeys(mgr ctrl.Manager, name types.NamespacedName, keys prometheus.KeyMaterial) (*keysource.Secret, error) {
	return keysource.NewSecret(mgr.GetAPIReader(), name, keysource.Options{
		Reloaded: keys.Reloaded, Refused: keys.Refused, Logger: controllerruntime.Logger(mgr.GetLogger()),
	})
}

// measure adds metrics of the listener and of the fleet to those of the operator.
func measure(heard *fleet.Fleet) (*prometheus.Listener, error) {
	opts := prometheus.Options{Managers: []core.Manager{component}}

	measured, err := prometheus.NewListener(metrics.Registry, opts)
	if err != nil {
		return nil, err
	}

	return measured, prometheus.RegisterFleet(metrics.Registry, heard, prometheus.FleetOptions{Options: opts})
}
