package main

import (
	"context"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/cause"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/keysource"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/manifest"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// The operator has two controllers that get events, so it has two names in the runtimes. Each is
// spec.manager of a Watcher in config/base/watchers.yaml.
const (
	kymaManager   core.Manager = "lifecycle-manager"
	moduleManager core.Manager = "module-manager"
)

// certificatesName is the prefix of the names of all certificates.
const certificatesName = "watcher"

// newKyma returns an object of the kind that represents a runtime. Watching needs only its
// metadata.
func newKyma() *metav1.PartialObjectMetadata {
	kyma := &metav1.PartialObjectMetadata{}
	kyma.SetGroupVersionKind(v1beta2.GroupVersion().WithKind("Kyma"))
	return kyma
}

// identify returns the runtime that a Kyma represents.
func identify(_ context.Context, kyma client.Object) (runtimes.Identity, error) {
	domain := kyma.GetAnnotations()[controllerruntime.DomainAnnotation]
	return runtimes.Identity{ID: controllerruntime.ByName(kyma), Domain: domain}, nil
}

// watching contains all parts that an operator adds in order to receive events from its runtimes.
type watching struct {
	settings

	mgr   ctrl.Manager
	fleet *fleet.Fleet
	// known finds the Kyma that represents a runtime.
	known *controllerruntime.Runtimes
	// connections contains the clients of the runtimes.
	connections *skr.Connections
	// overview contains the state of each installation, for metrics and a page.
	overview *runtimes.Overview
	// kymas and modules are the events of each controller.
	kymas, modules *cause.Source
}

func newWatching(
	s settings, mgr ctrl.Manager, watched *fleet.Fleet, overview *runtimes.Overview,
) (*watching, error) {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(newKyma().GroupVersionKind())

	known, err := controllerruntime.NewRuntimes(mgr.GetCache(), object, controllerruntime.ByName,
		controllerruntime.RuntimesOptions{})
	if err != nil {
		return nil, err
	}

	started, err := newReconciles(metrics.Registry)
	if err != nil {
		return nil, err
	}

	affected := manifest.Affected(mgr.GetClient(), known)
	return &watching{
		settings: s, mgr: mgr, fleet: watched, known: known,
		connections: skr.NewConnections(mgr.GetAPIReader(), mgr.GetScheme()), overview: overview,
		kymas:   cause.NewSource(kymaManager, controllerruntime.EnqueueByRuntime(known), watched, started(kymaManager)),
		modules: cause.NewSource(moduleManager, affected, watched, started(moduleManager)),
	}, nil
}

// setUp adds certificates, the agents and the listener to the manager.
func (w *watching) setUp() error {
	// The cache of the manager's own client would keep every Secret that it reads.
	direct, err := client.New(w.mgr.GetConfig(), client.Options{Scheme: w.mgr.GetScheme()})
	if err != nil {
		return err
	}

	set, err := certificates.New(direct, certificates.Parts{
		Name:        types.NamespacedName{Namespace: w.namespace, Name: certificatesName},
		DNSNames:    []string{w.listenerHost()},
		Unconfirmed: certificates.FromFleet(w.fleet, 0),
	}, certificates.Options{ListenerSecret: w.listenerSecret, Logger: controllerruntime.Logger(w.mgr.GetLogger())})
	if err != nil {
		return err
	}

	routing := watcher.NoRouting
	if w.behindGateway() {
		routing = watcher.VirtualService
	}

	return errors.Join(watcher.SetUp(w.mgr, watcher.Options{Routing: routing}), w.addInstaller(direct, set),
		w.addListener(set.ListenerSecret()), w.addLeaderEndpoint())
}

// addInstaller keeps the agent in every runtime, with a webhook for the resources of the Watchers.
// A condition of each Kyma, and metrics, show the result.
func (w *watching) addInstaller(direct client.Client, set *certificates.Certificates) error {
	agent := installation.Parts{Image: w.image, ControlPlane: w.address}
	installer, err := installation.New(agent, installation.Options{Settings: w.agentSettings})
	if err != nil {
		return err
	}

	parts := runtimes.Parts{
		Object: newKyma(), Identify: identify, Connect: w.connections.Connect, Certificates: set, Installer: installer,
	}
	return runtimes.SetUp(w.mgr, parts, runtimes.Options{
		Retry: w.pollOtherwise / 20, // By default 3 s.
		Fleet: w.fleet, Overview: w.overview, Report: runtimes.ReportCondition(direct, v1beta2.WatcherInstalled),
	})
}

// addListener adds the listener for the events of both controllers. It uses the key material that
// this operator issues for its own listener.
func (w *watching) addListener(secret types.NamespacedName) error {
	measured, err := w.registerMetrics()
	if err != nil {
		return err
	}

	material, err := keysource.NewSecret(w.mgr.GetAPIReader(), secret, keys.FilesOptions{
		Hooks: measured.KeyMaterial("server").FilesHooks, Logger: controllerruntime.Logger(w.mgr.GetLogger()),
	})
	if err != nil {
		return err
	}

	// A certificate identifies a runtime, to the listener or to a gateway in front of it.
	senders := controllerruntime.MutualTLS(material)
	if w.behindGateway() {
		senders = controllerruntime.BehindGateway(listener.FromXFCC(listener.ProxyAddresses(w.proxies...),
			keys.Roots(material), listener.PeerOptions{GatewayNames: w.gateways}))
		err = w.mgr.Add(material)
	}
	if err != nil {
		return err
	}

	events, err := controllerruntime.AddListener(w.mgr, controllerruntime.ListenerConfig{
		Name: "listener", Addr: w.listenAddress, Senders: senders, Verifier: listener.SANPinning(w.known),
		Fleet: w.fleet, Runtimes: w.known, Options: listener.Options{Hooks: measured.Hooks},
	})
	if err != nil {
		return err
	}

	return errors.Join(events.Handle(kymaManager, w.kymas), events.Handle(moduleManager, w.modules),
		w.addReadiness(material))
}

// registerMetrics adds the metrics of the listener, of the fleet, of the installations and of the
// Kymas to the metrics of the operator.
func (w *watching) registerMetrics() (*watchermetrics.Listener, error) {
	opts := watchermetrics.Options{
		Managers:   []core.Manager{kymaManager, moduleManager},
		PerRuntime: 100, // For the dashboards.
	}
	measured, err := watchermetrics.NewListener(metrics.Registry, opts)
	return measured, errors.Join(err, metrics.Registry.Register(states{w.mgr.GetClient()}),
		watchermetrics.RegisterFleet(metrics.Registry, w.fleet, opts),
		watchermetrics.RegisterInstallations(metrics.Registry, w.overview.Installations, opts))
}

// addReadiness makes this replica ready when there is a certificate, also for a gateway.
func (w *watching) addReadiness(material keys.Source) error {
	return w.mgr.AddReadyzCheck("certificate", func(*http.Request) error {
		_, err := material.Material()
		return err
	})
}

// addLeaderEndpoint makes the replica that leads the only endpoint of the Service for events,
// because only the leader can enqueue them. Outside of a cluster there is no such Service.
func (w *watching) addLeaderEndpoint() error {
	if w.podIP == "" {
		return nil
	}

	service := types.NamespacedName{Namespace: w.namespace, Name: w.service}
	replica := controllerruntime.ReplicaEndpoint{
		Operator: leaderElectionID,
		Pod:      w.podName,
		Address:  w.podIP,
		Ports:    map[string]int32{"events": w.listenerPort()},
	}

	endpoint, err := controllerruntime.NewLeaderEndpoint(w.mgr.GetClient(), service, replica,
		controllerruntime.LeaderEndpointOptions{Logger: controllerruntime.Logger(w.mgr.GetLogger())})
	if err != nil {
		return err
	}

	return w.mgr.Add(endpoint)
}
