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

// Parts are the needs of [SetUp]. All of them are required.
type Parts struct {
	// Object has the kind of the objects that represent runtimes: a typed object, or one with
	// metadata only or unstructured, with its kind set.
	Object client.Object
	// Identify returns the runtime that an object represents. It is called concurrently and must
	// not change the object. An error is reported and retried.
	Identify func(ctx context.Context, object client.Object) (Identity, error)
	// Connect returns a client for the runtime of an object, without cache. It is called
	// concurrently, for each reconcile, so it should keep its clients, as that of [NewKubeconfigs]
	// does. It must not change the object. An error is reported and retried. If the error wraps
	// [ErrGone], a deleted object is released. Do not return ErrGone for a runtime that cannot be
	// reached at the moment.
	Connect func(ctx context.Context, object client.Object) (client.Client, error)
	// Certificates issues the certificates of agents and listener.
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
	// Remove removes the agent, its certificates and the finalizer although the object stays, as
	// for a runtime that goes back to a former agent.
	Remove bool
	// Joins marks a runtime that joins by itself: its administrator installs the agent. It needs no
	// kubeconfig, gets no certificate and no finalizer, and its status comes from the heartbeats in
	// [Options].Fleet alone. Domain is not used here.
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
	// random. They correct changes, and deliver new certificates that no watch shows. Default: 10
	// min.
	Interval time.Duration
	// Retry is the shortest time between two reconciles of a runtime that is not ready, and
	// Interval the longest one. In between, it is a quarter of the time since the runtime was
	// ready. Default: 3 s.
	Retry time.Duration
	// Timeout bounds one reconcile of a runtime. Writes to the control plane may take as long
	// again. Default: 1 min.
	Timeout time.Duration
	// GiveUp is how long a deleted object is held while the removal of the agent fails, from its
	// first failure, which is noted in an annotation of the object. The agent then stays in the
	// runtime, without certificates. Default: 1 h.
	GiveUp time.Duration
	// Concurrent is the number of concurrent reconciles of runtimes, and also that of runtimes that
	// fail, which have workers of their own. Default: 10.
	Concurrent int
	// ControlPlane returns the address that the agents of a runtime send to, <host>:<port>, such as
	// that of watcher.GatewayAddress. It is called at each reconcile. Default: the address of the
	// installer.
	ControlPlane func(ctx context.Context, object client.Object) (string, error)
	// Kubeconfigs are the Secrets with kubeconfigs, so that a runtime with a new one is reconciled
	// immediately. Default: a new kubeconfig is used within Interval.
	Kubeconfigs KubeconfigSecrets
	// PullSecret is the name of a Secret of the type kubernetes.io/dockerconfigjson in the control
	// plane, which each runtime gets a copy of to pull the image. A new content reaches a runtime
	// within Interval and 1 min. Default: none.
	PullSecret types.NamespacedName
	// ProxyCredentials is the name of a Secret in the control plane. Its key credentials has
	// user:password for the proxy on the way from the runtimes to the control plane, which each
	// runtime gets a copy of. A new content reaches a runtime within Interval and 1 min. Default:
	// none.
	ProxyCredentials types.NamespacedName
	// Fleet is the fleet of the listener in this process. Runtimes that were removed are removed
	// there, and managers that no Watcher names any more once no agent sends heartbeats for them. A
	// runtime that becomes stale, or degraded for a reason that a reconcile can end, is reconciled
	// immediately, and all objects are applied. While many are stale, these wait for Interval.
	// Default: none.
	Fleet *fleet.Fleet
	// Overview gets the states of all runtimes, for metrics. Default: none.
	Overview *Overview
	// Report gets the status of a runtime after each reconcile, as [ReportCondition] does. It may
	// be called concurrently. An error is retried, but does not hold a deleted object. Default:
	// none.
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
