package certificates

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// errInvalidRuntime means that the ID or the domain of a runtime is invalid.
var errInvalidRuntime error = &reasons.Error{
	Text: "runtime cannot have certificates", Label: "invalid_runtime", Permanent: true,
}

// errRuntimeTaken means that two objects have the same runtime ID.
var errRuntimeTaken error = &reasons.Error{
	Text: "certificates of the runtime belong to another object", Label: "runtime_taken",
}

// Runtime is a runtime that gets certificates.
type Runtime struct {
	// ID becomes the Common Name of the client certificate: 1 to 64 bytes.
	ID core.RuntimeID
	// Domain is the registered domain of the runtime, in the annotation of [names.Names]: a DNS
	// name without a wildcard that is not a name of the listener.
	Domain string
	// Owner is the object that represents the runtime. No other object gets its certificates.
	// The certificates are deleted with the object if it is in the same namespace or
	// cluster-scoped. Otherwise, and without Owner, they stay until [Certificates.RemoveRuntime] is
	// called.
	Owner client.Object
}

// Reason says why the certificates of a runtime are not ready.
type Reason string

const (
	// ReasonIssuing means that cert-manager has not issued a certificate yet.
	ReasonIssuing Reason = "Issuing"
	// ReasonFailed means that cert-manager has refused a certificate. cert-manager retries it.
	ReasonFailed Reason = "Failed"
	// ReasonOutdated means that a certificate does not match the runtime, for example after a
	// change of its domain. The certificate is being replaced.
	ReasonOutdated Reason = "Outdated"
	// ReasonNoBundle means that the bundle does not contain the CA of the certificate yet.
	ReasonNoBundle Reason = "NoBundle"
)

// RuntimeStatus is the state of the certificates of a runtime.
type RuntimeStatus struct {
	// Ready means that Secret is complete. Otherwise Reason says why Secret is not complete, and
	// Message is a sentence.
	Ready   bool
	Reason  Reason
	Message string
	// Secret is the content of the agent's Secret, or nil unless Ready. It contains the bundle in
	// ca.crt, the client certificate in tls.crt and tls.key, and the serving certificate in
	// webhook.crt and webhook.key. The webhook configuration must get a new bundle before the agent
	// gets the Secret. Otherwise the API server temporarily does not trust the agent.
	Secret map[string][]byte
}

func ownerName(owner client.Object) string { return owner.GetNamespace() + "/" + owner.GetName() }
