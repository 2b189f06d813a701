package main

import (
	"context"
	"errors"
	"net/http"

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
	// listenerSecret is the name of the Secret with the key material of the listener.
	listenerSecret = certificatesName + "-listener"
)

// watching is all that an operator adds in order to get events from its runtimes.
type watching struct {
	settings

	mgr   ctrl.Manager
	fleet *fleet.Fleet
}

// setUp adds certificates, the agents and the listener to the manager.
func (w *watching) setUp(ctx context.Context) error {
	// The cache of the manager's own client would keep every Secret that it reads.
	direct, err := client.New(w.mgr.GetConfig(), client.Options{Scheme: w.mgr.GetScheme()})
	if err != nil {
		return err
	}
	set, err := certificates.New(direct, types.NamespacedName{Namespace: w.namespace, Name: certificatesName},
		[]string{w.host()}, certificates.FromFleet(w.fleet, certificates.FleetOptions{}),
		certificates.Options{Logger: controllerruntime.Logger(w.mgr.GetLogger())})
	if err != nil {
		return err
	}
	if w.behindGateway() { // Only a gateway needs routes.
		err = watcher.SetUp(w.mgr, watcher.Options{})
	}
	return errors.Join(err, w.install(set), w.listen(ctx, set.ListenerSecret()))
}

// install keeps the agent in every runtime, with a webhook for the resources of the Watchers.
func (w *watching) install(set *certificates.Certificates) error {
	installer, err := installation.New(w.image, w.address, installation.Options{})
	if err != nil {
		return err
	}
	kubeconfigs := runtimes.NewKubeconfigs(w.mgr.GetAPIReader(), "config", client.ObjectKeyFromObject,
		runtimes.KubeconfigOptions{})
	return runtimes.SetUp(w.mgr, newKyma(), identify, kubeconfigs.Connect, set, installer,
		runtimes.Options{Fleet: w.fleet})
}

// listen reconciles the Kyma of each runtime that sends an event.
func (w *watching) listen(ctx context.Context, secret types.NamespacedName) error {
	measured, err := w.measure()
	if err != nil {
		return err
	}
	keys, err := w.keys(secret, measured.KeyMaterial("server"))
	if err != nil {
		return err
	}
	known, err := controllerruntime.NewRuntimes(ctx, w.mgr.GetCache(), newKyma().GroupVersionKind(),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	// A certificate identifies a runtime, to the listener or to a gateway in front of it.
	opts, roots := w.options(measured), httpmtls.Roots(keys)
	peers := listener.FromXFCC(listener.ProxyAddresses(w.proxies...), roots,
		listener.PeerOptions{GatewayNames: w.gateways})
	if !w.behindGateway() {
		peers, opts.TLS = listener.FromTLSWithRoots(roots, listener.PeerOptions{}), httpmtls.ServerTLSConfig(keys)
	}
	events, source, err := controllerruntime.RegisterListenerComponent(w.listenAddress, component, peers,
		listener.SANPinning(known), controllerruntime.EnqueueByRuntime(known),
		controllerruntime.ComponentOptions{Listener: opts})
	if err != nil {
		return err
	}
	reconciler := &kymas{client: w.mgr.GetClient(), fleet: w.fleet}
	kyma := ctrl.NewControllerManagedBy(w.mgr).For(newKyma(), builder.OnlyMetadata).WatchesRawSource(source)
	return errors.Join(w.mgr.Add(keys), w.mgr.Add(events), w.addReadiness(events, keys), kyma.Complete(reconciler))
}

// options connects the listener to the fleet, the log and the metrics.
func (w *watching) options(measured *prometheus.Listener) listener.Options {
	return listener.Options{
		Fleet: w.fleet, Logger: controllerruntime.Logger(w.mgr.GetLogger()),
		Hooks: listener.Hooks{
			Answered: measured.Answered, InFlight: measured.InFlight,
			HandshakeFailed: measured.HandshakeFailed, ConnectionDropped: measured.ConnectionDropped,
		},
	}
}

// addReadiness makes this replica ready when it serves with a certificate.
func (w *watching) addReadiness(events *listener.Listener, keys httpmtls.Source) error {
	listening := func(*http.Request) error { return events.Ready() }
	certified := func(*http.Request) error {
		_, err := keys.Material()
		return err
	}
	return errors.Join(w.mgr.AddReadyzCheck("listener", listening), w.mgr.AddReadyzCheck("certificate", certified))
}

// keys reads the key material that this operator issues for its own listener.
func (w *watching) keys(name types.NamespacedName, hooks prometheus.KeyMaterial) (*keysource.Secret, error) {
	return keysource.NewSecret(w.mgr.GetAPIReader(), name, keysource.Options{
		Reloaded: hooks.Reloaded, Refused: hooks.Refused, Logger: controllerruntime.Logger(w.mgr.GetLogger()),
	})
}

// measure adds the metrics of the listener and of the fleet to those of the operator.
func (w *watching) measure() (*prometheus.Listener, error) {
	opts := prometheus.Options{Managers: []core.Manager{component}}
	measured, err := prometheus.NewListener(metrics.Registry, opts)
	if err != nil {
		return nil, err
	}
	return measured, prometheus.RegisterFleet(metrics.Registry, w.fleet, prometheus.FleetOptions{Options: opts})
}
