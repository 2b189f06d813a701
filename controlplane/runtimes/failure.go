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

const (
	reasonIdentityUnknown    = "IdentityUnknown"
	reasonInvalidRuntime     = "InvalidRuntime"
	reasonRuntimeTaken       = "RuntimeTaken"
	reasonCertificateFailed  = "CertificateFailed"
	reasonInvalidKubeconfig  = "InvalidKubeconfig"
	reasonUnreachable        = "Unreachable"
	reasonInvalidWatches     = "InvalidWatches"
	reasonInvalidSecret      = "InvalidSecret"
	reasonInstallationFailed = "InstallationFailed"
	reasonInstallerRefused   = "InstallerRefused"
	reasonNoAddress          = "NoAddress"
	reasonSkipped            = "Skipped"
)

// failure has a bounded text, because a runtime chooses parts of it.
type failure struct {
	error

	reason string
}

func (f failure) Unwrap() error { return f.error }

func isFailure(err error) bool {
	_, known := errors.AsType[failure](err)
	return known
}

func because(reason string, err error) error {
	if err == nil {
		return nil
	}
	return failure{remote.Error(err), reason}
}

func certificateReason(err error) string {
	known := map[string]string{"runtime_taken": reasonRuntimeTaken, "invalid_runtime": reasonInvalidRuntime}
	return cmp.Or(known[core.Reason(err)], reasonCertificateFailed)
}

func installReason(err error) string {
	known := map[string]string{
		"invalid_watch": reasonInvalidWatches, "invalid_configuration": reasonInvalidWatches,
		"invalid_runtime": reasonInvalidSecret, "owned": reasonInstallerRefused,
	}
	return cmp.Or(known[core.Reason(err)], reasonInstallationFailed)
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
	case reasonInvalidRuntime, reasonInvalidWatches:
		return reconcile.Result{}, reconcile.TerminalError(err)
	case reasonRuntimeTaken, reasonInstallerRefused:
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
		return status.Reason + ": " + status.Message
	case installation.Progressing:
		return status.Reason
	default:
		return ""
	}
}

func installed(status installation.Status) installation.Status {
	status.Reason = reasonInstalled
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
	r.events.Eventf(object, nil, kind, status.Reason, "Reconcile", "%s", remote.TextOf(status.Message, remote.MaxNote))
}
