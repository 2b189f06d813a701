package runtimes

import (
	"cmp"
	"errors"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// The reasons of [Options.Report] and of conditions. Package installation has further reasons. A
// runtime without certificates has the prefix "Certificate" and a reason of package certificates.
const (
	// ReasonIdentityUnknown means that [Parts].Identify has failed.
	ReasonIdentityUnknown installation.Reason = "IdentityUnknown"
	// ReasonInvalidRuntime means that the ID or the domain is missing or invalid.
	ReasonInvalidRuntime installation.Reason = "InvalidRuntime"
	// ReasonRuntimeTaken means that another object has the same runtime ID.
	ReasonRuntimeTaken installation.Reason = "RuntimeTaken"
	// ReasonCertificateFailed means that cert-manager has refused a certificate, or that a request
	// for a certificate has failed.
	ReasonCertificateFailed installation.Reason = "CertificateFailed"
	// ReasonInvalidKubeconfig means that the kubeconfig of the runtime is rejected.
	ReasonInvalidKubeconfig installation.Reason = "InvalidKubeconfig"
	// ReasonUnreachable means that Parts.Connect returned an error, such as a kubeconfig that does
	// not exist. An API server that does not answer later calls leads to a reason of package
	// installation.
	ReasonUnreachable installation.Reason = "Unreachable"
	// ReasonInvalidWatches means that no webhook configuration can be built from the Watchers.
	ReasonInvalidWatches installation.Reason = "InvalidWatches"
	// ReasonInvalidSecret means that the runtime's API server would not trust the agent's
	// certificate, or that the pull secret is missing or invalid.
	ReasonInvalidSecret installation.Reason = "InvalidSecret"
	// ReasonInstallationFailed means that a request to the runtime has failed.
	ReasonInstallationFailed installation.Reason = "InstallationFailed"
	// ReasonInstallerRefused means that another installer has installed the agent in the runtime.
	ReasonInstallerRefused installation.Reason = "InstallerRefused"
	// ReasonNoAddress means that the address of the control plane cannot be read.
	ReasonNoAddress installation.Reason = "NoAddress"
	// ReasonSkipped means that the object has the label skip-reconciliation.
	ReasonSkipped installation.Reason = "Skipped"
	// ReasonHeartbeatAwaited means that a runtime that joins by itself has sent no heartbeat yet.
	ReasonHeartbeatAwaited installation.Reason = "HeartbeatAwaited"
	// ReasonAgentUnproved means that nothing yet proves that the API server calls the agent of a
	// runtime that joins by itself.
	ReasonAgentUnproved installation.Reason = "AgentUnproved"
	// ReasonAgentUnhealthy means that the watch path of a runtime that joins by itself is stale or
	// degraded.
	ReasonAgentUnhealthy installation.Reason = "AgentUnhealthy"
)

// reasonCertificate is the prefix of the reasons of package certificates.
const reasonCertificate installation.Reason = "Certificate"

// failure has a bounded text, because a runtime chooses parts of it.
type failure struct {
	error

	reason installation.Reason
}

func (f failure) Unwrap() error { return f.error }

func isFailure(err error) bool {
	_, known := errors.AsType[failure](err)
	return known
}

// because returns nil for no error.
func because(reason installation.Reason, err error) error {
	if err != nil {
		return failure{error: remote.Error(err), reason: reason}
	}
	return nil
}

func certificateReason(err error) installation.Reason {
	known := map[core.Reason]installation.Reason{
		"runtime_taken": ReasonRuntimeTaken, "invalid_runtime": ReasonInvalidRuntime,
	}
	return cmp.Or(known[core.ReasonOf(err)], ReasonCertificateFailed)
}

func installReason(err error) installation.Reason {
	known := map[core.Reason]installation.Reason{
		"invalid_watch": ReasonInvalidWatches, "invalid_configuration": ReasonInvalidWatches,
		"invalid_runtime": ReasonInvalidSecret, "owned": ReasonInstallerRefused,
	}
	return cmp.Or(known[core.ReasonOf(err)], ReasonInstallationFailed)
}

// pending is the error of a step that waits, such as for a certificate. It is not a failure: the
// status is reported, and the runtime is reconciled again.
type pending struct {
	status installation.Status
}

func (p pending) Error() string { return p.status.Message }

// awaiting is the status of a runtime that waits.
func awaiting(reason installation.Reason, message string) installation.Status {
	return installation.Status{State: installation.Progressing, Reason: reason, Message: message}
}
