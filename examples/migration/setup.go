// Package migration has the code that an operator in the shape of kyma-project/lifecycle-manager
// adds in the steps of docs/platforms/migration.md. The names are those of its commit c5b83f1.
package migration

import (
	"context"
	"errors"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/keysource"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const (
	operator   = "lifecycle-manager"
	runtimeID  = "kyma-project.io/runtime-id"
	gatewaySAN = "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account"
)

var (
	kyma          = schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
	gatewaySecret = types.NamespacedName{Namespace: "istio-system", Name: "klm-istio-gateway"}
	formerCA      = types.NamespacedName{Namespace: "istio-system", Name: "klm-watcher"}
)

// Metrics returns the hooks for the metrics of the listener, in the registry of controller-runtime.
func Metrics() (listener.Hooks, error) {
	opts := prometheus.Options{Managers: []core.Manager{operator}, Aliases: true}
	m, err := prometheus.NewListener(metrics.Registry, opts)
	if err != nil {
		return listener.Hooks{}, err
	}
	return m.Hooks, nil
}

// Events is step 2. Pass the result to WatchesRawSource. With dry, an event that SAN pinning
// refuses is logged and taken.
func Events(
	ctx context.Context, mgr ctrl.Manager, addr string, dry bool,
	material keys.FilesOptions, opts controllerruntime.ComponentOptions,
) (*controllerruntime.Source[ctrl.Request], error) {
	files, keysErr := keysource.NewSecret(mgr.GetAPIReader(), gatewaySecret, material)
	kymas, kymasErr := controllerruntime.NewRuntimes(
		ctx, mgr.GetCache(), kyma, controllerruntime.ByLabel(runtimeID), controllerruntime.RuntimesOptions{})
	if err := errors.Join(keysErr, kymasErr); err != nil {
		return nil, err
	}
	verify := listener.SANPinning(kymas)
	if dry {
		verify = listener.ObserveOnly(verify, controllerruntime.Logger(mgr.GetLogger()))
	}
	senders := controllerruntime.BehindGateway(listener.FromXFCC(
		listener.ProxyAddresses(netip.MustParsePrefix("127.0.0.6/32")), keys.Roots(files),
		listener.PeerOptions{GatewayNames: []string{gatewaySAN}}))
	received, err := controllerruntime.SetUpListener(
		mgr, addr, operator, senders, verify, controllerruntime.EnqueueByRuntime(kymas), opts)
	return received, errors.Join(err, mgr.Add(files))
}

// Certificates is step 4: the CA of the fleet, and the gateway's Secret. From step 8 on, leave out
// imported. Until [Agents] takes its place, add runtimes.KeepCertificates of the result to mgr.
func Certificates(
	mgr ctrl.Manager, watched *fleet.Fleet, imported []types.NamespacedName, opts certificates.Options,
	warmUp time.Duration,
) (*certificates.Certificates, error) {
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return nil, err
	}
	if opts.AdditionalCAs = imported; len(imported) > 0 {
		opts.ImportCA = imported[0]
	}
	opts.ListenerSecret, opts.RuntimeNamespace = gatewaySecret, "kyma-system"
	return certificates.New(direct, types.NamespacedName{Namespace: "kcp-system", Name: "watcher"},
		[]string{"listener.kyma.example.com"}, certificates.FromFleet(watched, warmUp), opts)
}

// FormerCAs are the CAs for [Certificates] until step 8.
func FormerCAs() []types.NamespacedName { return []types.NamespacedName{formerCA} }

// kymaName is the label of the Secret with the kubeconfig of a Kyma.
const kymaName = "operator.kyma-project.io/kyma-name"

// Agents is step 5, and with agent.Replaces step 6. While leave returns true for a Kyma, its agent
// is removed.
func Agents(
	mgr ctrl.Manager, set *certificates.Certificates, image string, leave func(client.Object) bool,
	agent installation.Options, opts runtimes.Options,
) error {
	agent.Namespace = "kyma-system"
	installer, err := installation.New(image, "listener.kyma.example.com:443", agent)
	if err != nil {
		return err
	}
	identify := func(_ context.Context, object client.Object) (runtimes.Identity, error) {
		return runtimes.Identity{
			ID: core.RuntimeID(object.GetLabels()[runtimeID]), Domain: object.GetAnnotations()["skr-domain"],
			Remove: leave(object),
		}, nil
	}
	secretOf := func(object client.Object) (string, client.MatchingLabels) {
		return object.GetNamespace(), client.MatchingLabels{kymaName: object.GetName()}
	}
	ofKyma, err := labels.Parse(kymaName)
	if err != nil {
		return err
	}
	opts.Kubeconfigs = runtimes.KubeconfigSecrets{
		Namespace: "kcp-system", Selector: ofKyma,
		Object: func(secret client.Object) types.NamespacedName {
			return types.NamespacedName{Namespace: "kcp-system", Name: secret.GetLabels()[kymaName]}
		},
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kyma)
	kubeconfigs := runtimes.NewKubeconfigsByLabel(mgr.GetAPIReader(), "config", secretOf, runtimes.KubeconfigOptions{})
	return runtimes.SetUp(mgr, object, identify, kubeconfigs.Connect, set, installer, opts)
}
