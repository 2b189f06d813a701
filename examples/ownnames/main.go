// Ownnames is an operator of Clusters that has its own names. The group is fleet.example.com, and
// the kind of watches is ClusterWatch. Labels, annotations and a finalizer have this group as their
// prefix. No object in the control plane or in a cluster contains a name of another project.
//
// Each Cluster has a Secret of its name with a kubeconfig, and the annotation
// fleet.example.com/domain.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/keysource"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// fleetNames are stored in every cluster, so they must never change.
var fleetNames = names.Names{
	Group: "fleet.example.com", Kind: "ClusterWatch", Plural: "clusterwatches",
}.WithDefaults()

// clusterKind is the kind of the objects that represent runtimes.
var clusterKind = schema.GroupVersionKind{Group: "fleet.example.com", Version: "v1", Kind: "Cluster"}

const manager = "fleet"

// settings are the values of the flags.
type settings struct {
	addr      string // of the listener
	address   string // that agents send to
	image     string // of the agent
	namespace string // of Clusters, Secrets and certificates

	// warmUp is how long the operator waits for heartbeats before it concludes that a runtime does
	// not trust a new CA. Zero: the default of certificates.FromFleet.
	warmUp time.Duration
}

func main() {
	var s settings
	flag.StringVar(&s.addr, "addr", ":8443", "`address` of the listener")
	flag.StringVar(&s.address, "address", "", "`host:port` that agents send to")
	flag.StringVar(&s.image, "image", "", "`image` of the agent")
	flag.StringVar(&s.namespace, "namespace", "fleet", "`namespace` of Clusters and Secrets")
	flag.Parse() // The flags include -kubeconfig.

	log.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)))
	if err := run(ctrl.SetupSignalHandler(), s, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ownnames:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings, out io.Writer) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}

	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}

	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, HealthProbeBindAddress: ":8081"})
	if err != nil {
		return err
	}

	if err := setUp(mgr, s, out); err != nil {
		return err
	}

	return mgr.Start(ctx)
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	err := errors.Join(clientgoscheme.AddToScheme(scheme), certv1.AddToScheme(scheme),
		watcher.AddNamed(fleetNames)(scheme))
	return scheme, err
}

// operator reconciles Clusters.
type operator struct {
	watched *fleet.Fleet
	source  *controllerruntime.Source[ctrl.Request]
	out     io.Writer
}

// setUp adds all parts to mgr. Each part that stores names uses fleetNames.
func setUp(mgr ctrl.Manager, s settings, out io.Writer) error {
	host, _, err := net.SplitHostPort(s.address)
	if err != nil {
		return err
	}

	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		return err
	}

	// The cache of the manager's own client would keep every Secret that it reads.
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return err
	}

	set, err := certificates.New(direct, certificates.Parts{
		Name:        types.NamespacedName{Namespace: s.namespace, Name: "fleet"},
		DNSNames:    []string{host},
		Unconfirmed: certificates.FromFleet(watched, s.warmUp),
	}, certificates.Options{Names: fleetNames})
	if err != nil {
		return err
	}

	agent := installation.Parts{Image: s.image, ControlPlane: s.address}
	installer, err := installation.New(agent, installation.Options{
		Names: fleetNames, Owner: fleetNames.Group,
	})
	if err != nil {
		return err
	}

	clusters := runtimes.KubeconfigSecrets{Namespace: s.namespace, Label: fleetNames.Key("cluster")}
	err = errors.Join(
		// Agents connect to this operator without a gateway, so that it needs no routes.
		watcher.SetUp(mgr, watcher.Options{Names: fleetNames, Routing: watcher.NoRouting}),
		runtimes.SetUp(mgr, runtimes.Parts{
			Object:   newCluster(),
			Identify: identify,
			Connect: runtimes.NewKubeconfigs(
				mgr.GetAPIReader(), "kubeconfig", client.ObjectKeyFromObject, runtimes.KubeconfigOptions{}),
			Certificates: set,
			Installer:    installer,
		}, runtimes.Options{
			Fleet: watched, Kubeconfigs: clusters, Retry: time.Second,
			Report: runtimes.ReportCondition(direct, "AgentInstalled"),
		}),
	)
	if err != nil {
		return err
	}

	o := &operator{watched: watched, out: out}
	senders, err := agentSenders(mgr, set)
	if err != nil {
		return err
	}

	return o.addListener(mgr, s.addr, senders)
}

// agentSenders reads the certificate of the listener from the Secret that this operator itself
// makes. The pod cannot mount that Secret, because it would not start before the Secret exists.
func agentSenders(mgr ctrl.Manager, set *certificates.Certificates) (controllerruntime.Senders, error) {
	material, err := keysource.NewSecret(mgr.GetAPIReader(), set.ListenerSecret(), keys.FilesOptions{})
	if err != nil {
		return controllerruntime.Senders{}, err
	}
	return controllerruntime.MutualTLS(material), nil
}

// addListener adds the listener and the controller of Clusters.
func (o *operator) addListener(mgr ctrl.Manager, addr string, senders controllerruntime.Senders) error {
	clusters, err := controllerruntime.NewRuntimes(mgr.GetCache(), newCluster(), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{DomainAnnotation: fleetNames.DomainAnnotation})
	if err != nil {
		return err
	}

	events, err := controllerruntime.AddListener(mgr, controllerruntime.ListenerConfig{
		Addr:     addr,
		Senders:  senders,
		Verifier: listener.SANPinning(clusters),
		Fleet:    o.watched,
		Runtimes: clusters,
	})
	if err != nil {
		return err
	}

	o.source, err = controllerruntime.SourceFor(events, manager, controllerruntime.EnqueueByRuntime(clusters),
		controllerruntime.SourceOptions{})
	if err != nil {
		return err
	}

	return ctrl.NewControllerManagedBy(mgr).
		For(newCluster(), builder.OnlyMetadata).WatchesRawSource(o.source).Complete(o)
}

// Reconcile would compare a Cluster with its runtime. This example prints its name.
func (o *operator) Reconcile(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
	_, err := fmt.Fprintln(o.out, "reconcile", request.Name)
	return reconcile.Result{RequeueAfter: o.watched.RequeueAfter(core.RuntimeID(request.Name))}, err
}

func identify(_ context.Context, object client.Object) (runtimes.Identity, error) {
	return runtimes.Identity{
		ID:     core.RuntimeID(object.GetName()),
		Domain: object.GetAnnotations()[fleetNames.DomainAnnotation],
	}, nil
}

func newCluster() *metav1.PartialObjectMetadata {
	cluster := &metav1.PartialObjectMetadata{}
	cluster.SetGroupVersionKind(clusterKind)
	return cluster
}
