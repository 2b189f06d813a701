// Kubebuilder is an operator in the layout of kubebuilder. It has two controllers, typed kinds in
// its own API group, and the identity of a cluster in the spec of a Cluster. One listener receives
// the events of both controllers.
package main

import (
	"context"
	"errors"
	"flag"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	fleetv1 "github.com/runtime-watcher/runtime-watcher/examples/kubebuilder/api/v1"
	"github.com/runtime-watcher/runtime-watcher/examples/kubebuilder/internal/controller"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

func main() {
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler(), os.Args[1:]); err != nil {
		ctrl.Log.Error(err, "the operator ended")
		os.Exit(1)
	}
}

// run starts a replica of the operator, until ctx ends.
func run(ctx context.Context, args []string) error {
	opts := ctrl.Options{
		Scheme: runtime.NewScheme(), LeaderElectionID: "kubebuilder.fleet.example.com",
		LeaderElectionReleaseOnCancel: true,
	}
	if err := fleetv1.AddToScheme(opts.Scheme); err != nil {
		return err
	}

	flags := flag.NewFlagSet("kubebuilder", flag.ContinueOnError)
	events := flags.String("events-bind-address", ":8082", "`address` for the events of agents")
	secret := keys.Paths{}
	flags.StringVar(&secret.CA, "ca", "ca.crt", "`file` with the CAs of the agents")
	flags.StringVar(&secret.Certificate, "cert", "tls.crt", "`file` with the certificate of the operator")
	flags.StringVar(&secret.Key, "key", "tls.key", "`file` with the private key of the operator")
	flags.BoolVar(&opts.LeaderElection, "leader-elect", false, "elect a leader among several replicas")
	flags.StringVar(&opts.LeaderElectionNamespace, "namespace", "", "`namespace` of the lease")
	flags.StringVar(&opts.HealthProbeBindAddress, "health-probe-bind-address", ":8081", "`address` of the probes")
	flags.StringVar(&opts.Metrics.BindAddress, "metrics-bind-address", "0", "`address` of the metrics")

	if err := flags.Parse(args); err != nil {
		return err
	}

	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}

	mgr, err := ctrl.NewManager(config, opts)
	if err != nil {
		return err
	}

	err = errors.Join(setUp(mgr, *events, secret, logs{}), mgr.AddHealthzCheck("healthz", healthz.Ping),
		mgr.AddReadyzCheck("readyz", healthz.Ping))
	if err != nil {
		return err
	}

	return mgr.Start(ctx)
}

// work is the work of the controllers in remote clusters.
type work interface {
	Cluster(ctx context.Context, cluster *fleetv1.Cluster) error
	Addon(ctx context.Context, addon *fleetv1.Addon) error
}

// logs is where a real operator would correct the remote cluster.
type logs struct{}

func (logs) Cluster(ctx context.Context, cluster *fleetv1.Cluster) error {
	ctrl.LoggerFrom(ctx).Info("reconciled", "id", cluster.Spec.ID)
	return nil
}

func (logs) Addon(ctx context.Context, addon *fleetv1.Addon) error {
	ctrl.LoggerFrom(ctx).Info("reconciled", "cluster", addon.Spec.Cluster)
	return nil
}

// setUp adds one listener and two controllers to a controller manager.
func setUp(mgr ctrl.Manager, addr string, secret keys.Paths, does work) error {
	logger := controllerruntime.Logger(mgr.GetLogger())
	watched, fleetErr := fleet.New(fleet.Options{Logger: logger})
	files, filesErr := keys.NewFiles(secret, keys.FilesOptions{Logger: logger})

	clusters, err := controllerruntime.NewRuntimes(mgr.GetCache(), &fleetv1.Cluster{}, idOf,
		controllerruntime.RuntimesOptions{Domain: domainOf})
	if err := errors.Join(fleetErr, filesErr, err); err != nil {
		return err
	}

	events, err := controllerruntime.AddListener(mgr, controllerruntime.ListenerConfig{
		Addr:     addr,
		Senders:  controllerruntime.MutualTLS(files),
		Verifier: listener.SANPinning(clusters),
		Fleet:    watched,
		Runtimes: clusters,
	})
	if err != nil {
		return err
	}

	cluster := &controller.ClusterReconciler{Client: mgr.GetClient(), Fleet: watched, Work: does.Cluster}
	addon := &controller.AddonReconciler{
		Client: mgr.GetClient(), Fleet: watched, Clusters: clusters, Work: does.Addon,
	}
	return errors.Join(cluster.SetupWithManager(mgr, events, clusters), addon.SetupWithManager(mgr, events))
}

// idOf and domainOf read the spec, which the watch of the controller contains anyway.
func idOf(object client.Object) core.RuntimeID {
	if cluster, ok := object.(*fleetv1.Cluster); ok {
		return core.RuntimeID(cluster.Spec.ID)
	}
	return ""
}

func domainOf(object client.Object) string {
	if cluster, ok := object.(*fleetv1.Cluster); ok {
		return cluster.Spec.Domain
	}
	return ""
}
