package runtimes

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// ErrGone means that there is no way to a runtime: it is not there yet, or not any more.
var ErrGone = errors.New("runtime is gone, or not there yet")

// Identity is who a runtime is.
type Identity struct {
	// ID becomes the Common Name of its certificate. It must never change while an object exists. Empty: the object represents no runtime.
	ID core.RuntimeID
	// Domain is what is registered for it, as in the annotation skr-domain. It does not matter for an object that is being deleted.
	Domain string
}

// Identify tells which runtime an object represents. It must not change the object, and is called concurrently. An error is tried again.
type Identify func(ctx context.Context, object client.Object) (Identity, error)

// Connect returns a client for the runtime that an object represents, without cache. An error that wraps [ErrGone] means that there is
// none; then a runtime that is deleted is let go, so it must not stand for one that can not be reached for the moment. It is called for
// each reconcile, concurrently: whoever makes clients keeps them ([Kubeconfigs] does).
type Connect func(ctx context.Context, object client.Object) (client.Client, error)

// Certificates is the port to what issues certificates. All methods may be called concurrently and do not wait for what they ask for.
type Certificates interface {
	// Reconcile looks after the CA and the certificate of the listener.
	Reconcile(ctx context.Context) (certificates.Status, error)
	// EnsureRuntime returns what has been issued for a runtime, RemoveRuntime takes it away.
	EnsureRuntime(ctx context.Context, r certificates.Runtime) (certificates.RuntimeStatus, error)
	RemoveRuntime(ctx context.Context, id core.RuntimeID) error
}

var _ Certificates = (*certificates.Certificates)(nil)

// Fleet is the port to what knows how fresh runtimes are. Both methods may be called concurrently, again and again, and return at once.
type Fleet interface {
	// Forget forgets a runtime that was removed.
	Forget(runtime core.RuntimeID)
	// ForgetManager forgets that a runtime was heard for a manager that its agents do not speak to any more, and reports whether it has. While
	// the runtime is heard for it, it does not.
	ForgetManager(runtime core.RuntimeID, manager core.Manager) (forgotten bool)
}

var _ Fleet = (*fleet.Fleet)(nil)
