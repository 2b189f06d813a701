package runtimes

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	defaultRetry   = 3 * time.Second
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
	// at once. Default: a new kubeconfig is used within Interval.
	Kubeconfigs KubeconfigSecrets
	// PullSecret is the name of a Secret of the type kubernetes.io/dockerconfigjson in the control
	// plane, which each runtime gets a copy of to pull the image. A new content reaches a runtime
	// within Interval and 1 min. Default: none.
	PullSecret types.NamespacedName
	// Fleet is the fleet of the listener in this process. Runtimes that were removed are removed
	// there, and managers that no Watcher names any more once no agent sends heartbeats for them. A
	// runtime that becomes stale, or degraded for a reason that a reconcile can end, is reconciled
	// at once, and all objects are applied. While many are stale, these wait for Interval. Default:
	// none.
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

// labelSkip is the label of objects with runtimes that are left as they are, with the value "true".
// The deletion of such an object still removes the agent.
const labelSkip = "operator.kyma-project.io/skip-reconciliation"

func skips(object client.Object) bool { return object.GetLabels()[labelSkip] == "true" }
