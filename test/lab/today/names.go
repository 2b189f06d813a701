package today

import "k8s.io/apimachinery/pkg/types"

const (
	// Namespace has the agent and the watched objects of a runtime.
	Namespace = "kyma-system"
	// PlaneNamespace has the operator and its Watchers.
	PlaneNamespace = "kcp-system"
	// GatewayNamespace has the PKI and the Secret that the ingress gateway reads.
	GatewayNamespace = "istio-system"
	// Host is the name of the gateway.
	Host = "listener.kyma.example.com"
	// Manager is the manager of the only Watcher.
	Manager = "lifecycle-manager"
	// Name is that of most objects in a runtime.
	Name = "skr-webhook"
	// RuntimeIDLabel has the runtime ID, on a Kyma.
	RuntimeIDLabel = "kyma-project.io/runtime-id"
	// KymaNameLabel has the name of a Kyma, on the Secret with the kubeconfig of its runtime.
	KymaNameLabel = "operator.kyma-project.io/kyma-name"
	// Finalizer is on each Watcher.
	Finalizer = "operator.kyma-project.io/watcher"
)

// CA is the Secret of the CA, which is the server certificate, too.
func CA() types.NamespacedName {
	return types.NamespacedName{Namespace: GatewayNamespace, Name: "klm-watcher"}
}

// GatewaySecret is the Secret that the gateway serves with, and verifies runtimes with.
func GatewaySecret() types.NamespacedName {
	return types.NamespacedName{Namespace: GatewayNamespace, Name: "klm-istio-gateway"}
}

// RuntimeSecret is the Secret of a runtime in the control plane.
func RuntimeSecret(kyma string) types.NamespacedName {
	return types.NamespacedName{Namespace: GatewayNamespace, Name: kyma + "-webhook-tls"}
}
