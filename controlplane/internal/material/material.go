// Package material names the Secret keys and the Service of the agent, on which certificates and
// installation agree.
package material

import corev1 "k8s.io/api/core/v1"

// Name is the default name of the agent's Service in a runtime, and of its namespace.
const Name = "runtime-watcher"

// The keys of the Secret, each with PEM.
const (
	// CA is the bundle that both ends trust.
	CA = corev1.ServiceAccountRootCAKey
	// ClientCertificate and ClientKey identify the runtime to the control plane.
	ClientCertificate = corev1.TLSCertKey
	ClientKey         = corev1.TLSPrivateKeyKey
	// ServingCertificate and ServingKey are for the webhook. A Secret without them has one
	// pair for both uses.
	ServingCertificate = "webhook.crt"
	ServingKey         = "webhook.key"
)
