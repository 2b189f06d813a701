package runtimes

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

var (
	errNoFleet   = errors.New("a runtime that joins by itself needs Options.Fleet: its heartbeats are all that is known")
	errInstalled = errors.New("the agent in this runtime was installed from here: remove it first, by Identity.Remove")
)

// joined judges a runtime that has joined by itself: nothing is read from it, and nothing is issued
// for it. An agent may serve some of the managers only, so managers for which the fleet does not
// know the runtime do not count. The fleet knows the runtimes that it expects.
func (r *reconciler) joined(
	object client.Object, id core.RuntimeID, managers []core.Manager,
) (installation.Status, error) {
	if r.opts.Fleet == nil {
		return installation.Status{}, because(ReasonIdentityUnknown, errNoFleet)
	}
	if controllerutil.ContainsFinalizer(object, r.names.Finalizer) {
		return installation.Status{}, because(ReasonInstallerRefused, errInstalled)
	}

	status := awaiting(ReasonHeartbeatAwaited, "waiting for the first heartbeat of the agent")
	var problems []string
	for _, manager := range managers {
		found := r.opts.Fleet.Get(id, manager)
		if found.State == fleet.Unknown {
			continue
		}
		replicas := int32(len(found.Replicas)) //nolint:gosec // A fleet keeps a few.
		status.Available = max(status.Available, replicas)
		status.Replicas = status.Available
		if found.State != fleet.Fresh {
			problems = append(problems, strings.TrimSpace(fmt.Sprintf("%s is %s %s", manager, found.State, found.Reason)))
		}
		switch found.State {
		case fleet.Stale, fleet.Degraded:
			status.State, status.Reason = installation.Failed, ReasonAgentUnhealthy
		case fleet.Unproved:
			if status.State != installation.Failed {
				status.State, status.Reason = installation.Progressing, ReasonAgentUnproved
			}
		default:
			if status.Reason == ReasonHeartbeatAwaited {
				status.State, status.Reason = installation.Ready, ""
			}
		}
	}

	if status.Reason != ReasonHeartbeatAwaited {
		status.Message = strings.Join(problems, "; ")
	}
	return status, nil
}
