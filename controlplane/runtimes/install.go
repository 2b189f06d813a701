package runtimes

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
)

// errNoID means that an object with an agent in its runtime has lost its ID, for example because a
// label was removed. The agent would get no new certificates.
var errNoID = errors.New("want the ID of a runtime with an agent, have none")

// identifyRuntime sets identity and id. They stay empty for an object without a runtime.
func (a *attempt) identifyRuntime(ctx context.Context) error {
	identity, err := a.identify(ctx, a.object)
	if err != nil {
		return because(ReasonIdentityUnknown, err)
	}
	if identity.ID == "" && controllerutil.ContainsFinalizer(a.object, a.names.Finalizer) {
		return because(ReasonIdentityUnknown, errNoID)
	}

	a.identity = identity
	a.id = identity.ID
	return nil
}

// issueSecret returns the certificates of the runtime, or a pending error.
func (a *attempt) issueSecret(ctx context.Context) (map[string][]byte, error) {
	issued, err := a.certificates.EnsureRuntime(ctx, a.certificatesRuntime())
	if err != nil {
		return nil, because(certificateReason(err), fmt.Errorf("issue certificates: %w", err))
	}
	if issued.Ready {
		return issued.Secret, nil
	}

	waiting := awaiting(reasonCertificate+installation.Reason(issued.Reason), issued.Message)
	if waiting.Reason == ReasonCertificateFailed {
		waiting.State = installation.Failed
	}
	return nil, pending{waiting}
}

// issuedVersion is the version of the certificates, empty if their objects are not followed.
func (a *attempt) issuedVersion() string {
	followed, isFollowed := a.certificates.(followed)
	if !isFollowed {
		return ""
	}
	return followed.Version(a.certificatesRuntime())
}

// connectionAwaited is how long a new runtime may have no kubeconfig before that is a failure.
const connectionAwaited = time.Hour

// connectRuntime returns the runtime without its certificates, or a pending error.
func (a *attempt) connectRuntime(ctx context.Context) (installation.Runtime, error) {
	there, err := a.openClient(ctx)
	if err != nil {
		return installation.Runtime{}, err
	}
	if there == nil {
		return installation.Runtime{}, a.awaitConnection()
	}

	controlPlane, err := a.opts.ControlPlane(ctx, a.object)
	if err != nil {
		return installation.Runtime{}, because(ReasonNoAddress, fmt.Errorf("address of the control plane: %w", err))
	}
	pullSecret, err := a.readSharedSecret(ctx, sharedKey{a.opts.PullSecret, corev1.DockerConfigJsonKey})
	if err != nil {
		return installation.Runtime{}, because(ReasonInvalidSecret, err)
	}
	credentials, err := a.readSharedSecret(ctx, sharedKey{a.opts.ProxyCredentials, proxyCredentialsKey})
	if err != nil {
		return installation.Runtime{}, because(ReasonInvalidSecret, err)
	}
	return installation.Runtime{
		ID: a.id, Client: there, ControlPlane: controlPlane,
		PullSecret: pullSecret, ProxyCredentials: credentials, Watches: a.has.watches,
	}, nil
}

// openClient returns nil for a runtime without a kubeconfig.
func (a *attempt) openClient(ctx context.Context) (client.Client, error) {
	there, err := a.connect(ctx, a.object)
	if errors.Is(err, ErrGone) {
		return nil, nil
	}

	if errors.Is(err, remote.ErrInvalidKubeconfig) {
		return nil, because(ReasonInvalidKubeconfig, fmt.Errorf("connect to runtime %q: %w", a.identity.ID, err))
	}
	if err != nil {
		return nil, because(ReasonUnreachable, fmt.Errorf("connect to runtime %q: %w", a.identity.ID, err))
	}
	return there, nil
}

func (a *attempt) awaitConnection() error {
	waiting := awaiting(ReasonUnreachable,
		"waiting for a way to the runtime, such as the Secret with its kubeconfig")
	if time.Since(a.object.GetCreationTimestamp().Time) > connectionAwaited {
		waiting.State = installation.Failed
	}
	return pending{waiting}
}

// installIn installs the agent with certificates of a version. If the watch path is broken, all
// objects are applied.
func (a *attempt) installIn(
	ctx context.Context, target installation.Runtime, version string,
) (installation.Status, error) {
	least := time.Duration(0)
	begun := time.Now()
	target.Verify = a.book.takeRepair(a.key)
	if target.Verify {
		least = a.repairPause()
		ctrl.LoggerFrom(ctx).V(1).Info("watch path is broken, so all objects are applied", "runtime", target.ID)
	}

	status, err := a.installer.Install(ctx, target)
	a.book.endRepair(a.key, time.Since(begun), least)
	if err != nil {
		return status, because(installReason(err), err)
	}
	if status.State == installation.Ready {
		a.book.noteInstalled(a.key, version)
	}
	return status, nil
}
