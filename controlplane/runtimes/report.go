package runtimes

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
)

// reportStatus emits an Event for a new reason, and when a runtime is ready after that.
func (a *attempt) reportStatus(ctx context.Context, status installation.Status) error {
	status.Message = remote.Text(status.Message)
	isNew, ended := a.book.noteStatus(a.key, a.id, status, a.has)
	if isNew {
		a.emitEvent(status)
	} else if ended && status.State == installation.Ready {
		a.emitEvent(installed(status))
	}
	return a.opts.Report(ctx, a.object, status)
}

func (a *attempt) emitEvent(status installation.Status) {
	kind := corev1.EventTypeNormal
	if status.State == installation.Failed {
		kind = corev1.EventTypeWarning
	}
	note := remote.TextOf(status.Message, remote.MaxNote)
	a.events.Eventf(a.object, nil, kind, string(status.Reason), "Reconcile", "%s", note)
}

// reportFailure returns when to try again. An invalid runtime waits for a change of it or of a
// Watcher.
func (a *attempt) reportFailure(ctx context.Context, err error) (reconcile.Result, error) {
	known, isKnown := errors.AsType[failure](err)
	if !isKnown {
		return reconcile.Result{}, err // Such as a conflict.
	}

	status := installation.Status{State: installation.Failed, Reason: known.reason, Message: err.Error()}
	if reportErr := a.reportStatus(ctx, status); reportErr != nil {
		return reconcile.Result{}, errors.Join(err, reportErr)
	}

	switch known.reason {
	case ReasonInvalidRuntime, ReasonInvalidWatches:
		return reconcile.Result{}, reconcile.TerminalError(err)
	case ReasonRuntimeTaken, ReasonInstallerRefused:
		return reconcile.Result{RequeueAfter: spread(a.opts.Interval)}, nil
	default:
		return reconcile.Result{}, err
	}
}

// scheduleNext returns when to reconcile a runtime again. A runtime that is ready comes after those
// that wait.
func (a *attempt) scheduleNext(status installation.Status) reconcile.Result {
	if status.State != installation.Ready {
		age := a.book.beginWaiting(a.key)
		return reconcile.Result{RequeueAfter: a.retryAfter(age)}
	}

	soon := a.forgetFormer(a.key, a.id, a.has.managers)
	return reconcile.Result{RequeueAfter: spread(a.pauseOfReady(soon)), Priority: new(handler.LowPriority)}
}
