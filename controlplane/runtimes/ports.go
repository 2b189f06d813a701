package runtimes

import (
	"context"
	"errors"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// ErrGone means that there is no way to a runtime: it does not exist yet, or no longer.
var ErrGone = errors.New("runtime is gone, or not there yet")

// Identity identifies a runtime.
type Identity struct {
	// ID becomes the Common Name of the client certificate. It must never change while an object
	// exists. Empty means that the object represents no runtime.
	ID core.RuntimeID
	// Domain is the registered domain of the runtime, as in the annotation skr-domain. It is not
	// used for an object that is being deleted.
	Domain string
	// Remove removes the agent, its certificates and the finalizer although the object stays, as
	// for a runtime that goes back to a former agent.
	Remove bool
}

// Certificates is the port to the issuer. Its methods may be called concurrently and do not wait
// for certificates. One with the method CheckService of [certificates.Certificates] is asked by
// [SetUp] whether its certificates are for the Service of the agent.
type Certificates interface {
	// Reconcile keeps the CA and the certificate of the listener.
	Reconcile(ctx context.Context) (certificates.Status, error)
	// EnsureRuntime returns the material of a runtime. An error has the reason
	// runtime_taken when the runtime has another owner.
	EnsureRuntime(ctx context.Context, r certificates.Runtime) (certificates.RuntimeStatus, error)
	// OwnsRuntime reports whether the certificates of a runtime belong to its owner. It is true if
	// there are none.
	OwnsRuntime(ctx context.Context, r certificates.Runtime) (bool, error)
	// RemoveRuntime removes the certificates of a runtime, unless they belong to another owner.
	RemoveRuntime(ctx context.Context, r certificates.Runtime) error
}

var _ Certificates = (*certificates.Certificates)(nil)
