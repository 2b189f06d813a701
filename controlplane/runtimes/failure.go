package runtimes

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// The reasons of [Options.Report] and of conditions, beside those of package installation. A
// runtime without certificates has "Certificate" before a reason of package certificates.
const (
	// ReasonIdentityUnknown means that identify has failed.
	ReasonIdentityUnknown installation.Reason = "IdentityUnknown"
	// ReasonInvalidRuntime means that the ID or the domain is missing or invalid.
	ReasonInvalidRuntime installation.Reason = "InvalidRuntime"
	// ReasonRuntimeTaken means that another object has the same runtime ID.
	ReasonRuntimeTaken installation.Reason = "RuntimeTaken"
	// ReasonCertificateFailed means that cert-manager has refused a certificate, or cannot be asked
	// for one.
	ReasonCertificateFailed installation.Reason = "CertificateFailed"
	// ReasonInvalidKubeconfig means that the kubeconfig of the runtime is refused.
	ReasonInvalidKubeconfig installation.Reason = "InvalidKubeconfig"
	// ReasonUnreachable means that the runtime cannot be reached.
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
	// ReasonSkipped means that the object opts out.
	ReasonSkipped installation.Reason = "Skipped"
	// ReasonHeartbeatAwaited means that a runtime that joins by itself has sent no heartbeat yet.
	ReasonHeartbeatAwaited installation.Reason = "HeartbeatAwaited"
	// ReasonAgentUnproved means that nothing proves yet that the API server calls its agent.
	ReasonAgentUnproved installation.Reason = "AgentUnproved"
	// ReasonAgentUnhealthy means that its watch path is stale or degraded.
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

func because(reason installation.Reason, err error) error {
	if err == nil {
		return nil
	}
	return failure{remote.Error(err), reason}
}

func certificateReason(err error) installation.Reason {
	known := map[core.Reason]installation.Reason{"runtime_taken": ReasonRuntimeTaken, "invalid_runtime": ReasonInvalidRuntime}
	return cmp.Or(known[core.ReasonOf(err)], ReasonCertificateFailed)
}

func installReason(err error) installation.Reason {
	known := map[core.Reason]installation.Reason{
		"invalid_watch": ReasonInvalidWatches, "invalid_configuration": ReasonInvalidWatches,
		"invalid_runtime": ReasonInvalidSecret, "owned": ReasonInstallerRefused,
	}
	return cmp.Or(known[core.ReasonOf(err)], ReasonInstallationFailed)
}

// fail returns when to try again. An invalid runtime waits for a change of it or of a Watcher.
func (r *reconciler) fail(
	ctx context.Context, object client.Object, id core.RuntimeID, err error,
) (reconcile.Result, error) {
	known, ok := errors.AsType[failure](err)
	if !ok {
		return reconcile.Result{}, err // Such as a conflict.
	}
	status := installation.Status{State: installation.Failed, Reason: known.reason, Message: err.Error()}
	if reportErr := r.report(ctx, object, id, status, contents{}); reportErr != nil {
		return reconcile.Result{}, errors.Join(err, reportErr)
	}
	switch known.reason {
	case ReasonInvalidRuntime, ReasonInvalidWatches:
		return reconcile.Result{}, reconcile.TerminalError(err)
	case ReasonRuntimeTaken, ReasonInstallerRefused:
		return reconcile.Result{RequeueAfter: spread(r.opts.Interval)}, nil
	default:
		return reconcile.Result{}, err
	}
}

// report emits an Event for a new reason, and when a runtime is ready after that.
func (r *reconciler) report(
	ctx context.Context, object client.Object, id core.RuntimeID, status installation.Status, has contents,
) error {
	key := client.ObjectKeyFromObject(object)
	status.Message = remote.Text(status.Message)
	if changed, ended := r.book.note(key, id, status, has); changed {
		r.emit(object, status)
	} else if ended && status.State == installation.Ready {
		r.emit(object, installed(status))
	}
	return r.opts.Report(ctx, object, status)
}

// textOf is empty for a status that needs no Event. Messages of progress have numbers.
func textOf(status installation.Status) string {
	switch status.State {
	case installation.Failed:
		return string(status.Reason) + ": " + status.Message
	case installation.Progressing:
		return string(status.Reason)
	default:
		return ""
	}
}

func installed(status installation.Status) installation.Status {
	status.Reason = ReasonInstalled
	status.Message = fmt.Sprintf("the agent answers, with %d of %d replicas", status.Available, status.Replicas)
	if status.Notice != "" {
		status.Message += "; " + status.Notice
	}
	return status
}

func (r *reconciler) emit(object client.Object, status installation.Status) {
	kind := corev1.EventTypeNormal
	if status.State == installation.Failed {
		kind = corev1.EventTypeWarning
	}
	r.events.Eventf(object, nil, kind, string(status.Reason), "Reconcile", "%s", remote.TextOf(status.Message, remote.MaxNote))
}
