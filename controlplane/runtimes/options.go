package runtimes

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Parts are the required arguments of [SetUp].
type Parts struct {
	// Object is an object of the kind that represents runtimes: a typed object, or an unstructured
	// or metadata-only object with its kind set.
	Object client.Object
	// Identify returns the runtime that an object represents. It is called concurrently and must
	// not change the object. An error is reported and retried.
	Identify func(ctx context.Context, object client.Object) (Identity, error)
	// Connect returns a client without a cache for the runtime of an object. It is called
	// concurrently and for each reconcile, so it should keep its clients, as the function of
	// [NewKubeconfigs] does. It must not change the object. An error is reported and retried. If
	// the error wraps [ErrGone], a deleted object is released. Do not return ErrGone for a runtime
	// that cannot be reached at the moment.
	Connect func(ctx context.Context, object client.Object) (client.Client, error)
	// Certificates issues the certificates of the agents and the listener.
	Certificates Certificates
	// Installer installs the agents.
	Installer *installation.Installer
}

func (p Parts) validate() error {
	return errors.Join(
		option.Unless(p.Object != nil, "want Parts.Object, have none"),
		option.Unless(p.Identify != nil, "want Parts.Identify, have none"),
		option.Unless(p.Connect != nil, "want Parts.Connect, have none"),
		option.Unless(p.Certificates != nil, "want Parts.Certificates, have none"),
		option.Unless(p.Installer != nil, "want Parts.Installer, have none"),
		checkService(p.Certificates, p.Installer),
	)
}

func checkService(issuer Certificates, installer *installation.Installer) error {
	checked, isChecker := issuer.(ServiceChecker)
	if !isChecker || installer == nil {
		return nil
	}

	service, _ := installer.Agents()
	if service.Name == "" {
		return nil
	}
	return checked.CheckService(service)
}

// ErrGone means that a runtime does not exist yet, or no longer exists.
var ErrGone = remote.ErrGone

// Identity identifies a runtime.
type Identity struct {
	// ID becomes the Common Name of the client certificate. It must never change while an object
	// exists. Empty means that the object represents no runtime.
	ID core.RuntimeID
	// Domain is the registered domain of the runtime, as in the annotation skr-domain. It is not
	// used for an object that is being deleted.
	Domain string
	// Remove removes the agent, its certificates and the finalizer although the object stays, for
	// example for a runtime that returns to a former agent.
	Remove bool
	// Joins marks a runtime that joins by itself: its administrator installs the agent. Such a
	// runtime needs no kubeconfig and gets no certificate and no finalizer. Its status comes only
	// from the heartbeats in [Options].Fleet. Domain is not used for such a runtime.
	Joins bool
}

const (
	defaultTimeout = time.Minute
	defaultGiveUp  = time.Hour
)

// Options are the optional settings of [SetUp]. The zero value is the documented default.
type Options struct {
	// Name is the name of the controller in logs, metrics and events. Default: "runtimes".
	Name string
	// Interval is the time between two reconciles of a runtime that is ready, plus up to a tenth at
	// random. These reconciles correct changes and deliver new certificates that no watch shows.
	// Default: 10 min.
	Interval time.Duration
	// Retry is the shortest time between two reconciles of a runtime that is not ready, and
	// Interval the longest time. Between these bounds, the time is a quarter of the time since the
	// runtime was last ready. Default: 3 s.
	Retry time.Duration
	// Timeout bounds one reconcile of a runtime. Writes to the control plane may take the same time
	// in addition. Default: 1 min.
	Timeout time.Duration
	// GiveUp is how long a deleted object is held while the removal of the agent fails, from its
	// first failure, which is noted in an annotation of the object. The agent then stays in the
	// runtime, without certificates. Default: 1 h.
	GiveUp time.Duration
	// Concurrent is the number of concurrent reconciles of runtimes. Runtimes that fail have the
	// same number of separate workers. Default: 10.
	Concurrent int
	// ControlPlane returns the address <host>:<port> to which the agents of a runtime send, such as
	// the result of watcher.GatewayAddress. It is called in each reconcile. Default: the address of
	// the installer.
	ControlPlane func(ctx context.Context, object client.Object) (string, error)
	// Kubeconfigs selects the Secrets with kubeconfigs, so that a runtime with a new kubeconfig is
	// reconciled immediately. Default: a new kubeconfig is used within Interval.
	Kubeconfigs KubeconfigSecrets
	// PullSecret is the name of a Secret of the type kubernetes.io/dockerconfigjson in the control
	// plane. Each runtime gets a copy of it to pull the image. New content reaches a runtime within
	// Interval plus 1 min. Default: none.
	PullSecret types.NamespacedName
	// ProxyCredentials is the name of a Secret in the control plane. Its key credentials contains
	// user:password for the proxy on the path from the runtimes to the control plane. Each runtime
	// gets a copy. New content reaches a runtime within Interval plus 1 min. Default: none.
	ProxyCredentials types.NamespacedName
	// Fleet is the fleet of the listener in this process. Removed runtimes are also removed from
	// the fleet. A manager that no Watcher names any longer is removed once no agent sends
	// heartbeats for it. A runtime that becomes stale, or degraded for a reason that a reconcile
	// can correct, is reconciled immediately, and all objects are applied. While many runtimes are
	// stale, the stale runtimes wait for Interval. Default: none.
	Fleet *fleet.Fleet
	// Overview gets the states of all runtimes, for metrics. Default: none.
	Overview *Overview
	// Report gets the status of a runtime after each reconcile, as [ReportCondition] does. It may
	// be called concurrently. An error is retried but does not delay the release of a deleted
	// object. Default: none.
	Report func(ctx context.Context, object client.Object, status installation.Status) error
}

func (o Options) withDefaults() Options {
	return option.WithDefaults(o, Options{
		Name:         "runtimes",
		Interval:     10 * time.Minute,
		Retry:        defaultRetry,
		Timeout:      defaultTimeout,
		GiveUp:       defaultGiveUp,
		Concurrent:   10,
		ControlPlane: func(context.Context, client.Object) (string, error) { return "", nil },
		Overview:     &Overview{},
		Report:       func(context.Context, client.Object, installation.Status) error { return nil },
	})
}
