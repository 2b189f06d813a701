package migration

import (
	"context"
	"errors"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/keysource"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// settings are those of the operator of lifecycle-manager that this package needs.
type settings struct{ ListenerAddr string }

// operatorName is the component of the listener.
const operatorName = "lifecycle-manager"

// setUpWithManager is the function of an operator as docs/platforms/migration.md changes it. TestGuide holds that
// each added line of the guide is here.
func setUpWithManager(ctx context.Context, mgr ctrl.Manager, settings settings, r reconcile.Reconciler) error {
	kyma := &metav1.PartialObjectMetadata{}
	kyma.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"})

	material, keysErr := keysource.NewSecret(mgr.GetAPIReader(),
		types.NamespacedName{Namespace: "istio-system", Name: "klm-istio-gateway"}, keysource.Options{})
	kymas, kymasErr := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), kyma.GroupVersionKind(),
		controllerruntime.ByLabel("kyma-project.io/runtime-id"), controllerruntime.RuntimesOptions{})
	if err := errors.Join(keysErr, kymasErr); err != nil {
		return err
	}
	peers := listener.FromXFCC(listener.ProxyAddresses(netip.MustParsePrefix("127.0.0.6/32")), keys.Roots(material),
		listener.PeerOptions{GatewayNames: []string{"spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account"}})
	events, received, err := controllerruntime.RegisterListenerComponent(settings.ListenerAddr, operatorName,
		peers, listener.SANPinning(kymas), controllerruntime.EnqueueByRuntime(kymas), controllerruntime.ComponentOptions{})
	if err := errors.Join(err, mgr.Add(material), mgr.Add(events)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(kyma).
		WatchesRawSource(received).
		Complete(r)
}
