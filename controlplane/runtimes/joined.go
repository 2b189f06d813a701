package runtimes

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

var (
	errNoFleet = errors.New(
		"a runtime that joins by itself needs Options.Fleet, because its status comes only from its heartbeats")
	errInstalled = errors.New(
		"this operator installed the agent of the runtime: set Identity.Remove first")
)

// judgeJoined judges a runtime that has joined by itself: nothing is read from it, and nothing is
// issued for it. An agent may serve some of the managers only, so managers for which the fleet does
// not know the runtime do not count. The fleet may also expect heartbeats to managers that the
// agent does not serve. If the agent sends heartbeats to another manager, these are a notice.
func (a *attempt) judgeJoined() (installation.Status, error) {
	if a.opts.Fleet == nil {
		return installation.Status{}, because(ReasonIdentityUnknown, errNoFleet)
	}
	if controllerutil.ContainsFinalizer(a.object, a.names.Finalizer) {
		return installation.Status{}, because(ReasonInstallerRefused, errInstalled)
	}

	known, unserved := sortHeartbeats(a.opts.Fleet, a.id, a.has.managers)
	if len(known) == 0 {
		return awaiting(ReasonHeartbeatAwaited, "waiting for the first heartbeat of the agent"), nil
	}
	return judgeHeartbeats(known, unserved), nil
}

// sortHeartbeats returns the statuses of a runtime for the managers for which it is known, and the
// managers that have never got a heartbeat, while another one has.
func sortHeartbeats(
	all *fleet.Fleet, id core.RuntimeID, managers []core.Manager,
) (known []fleet.Status, unserved []string) {
	var silent []fleet.Status
	isHeard := false
	for _, manager := range managers {
		found := all.Get(id, manager)
		isExpected := found.State == fleet.Stale && found.Reason == "" && found.LastSeen.IsZero()
		switch {
		case isExpected:
			silent = append(silent, found)
		case found.State != fleet.Unknown:
			isHeard = isHeard || !found.LastSeen.IsZero()
			known = append(known, found)
		}
	}

	if !isHeard {
		return append(known, silent...), nil
	}
	for _, found := range silent {
		unserved = append(unserved, string(found.Manager))
	}
	return known, unserved
}

// judgeHeartbeats takes the worst state of all managers.
func judgeHeartbeats(known []fleet.Status, unserved []string) installation.Status {
	status := installation.Status{State: installation.Ready}
	var problems []string
	for _, found := range known {
		replicas := int32(len(found.Replicas)) //nolint:gosec // A fleet keeps a few.
		status.Available = max(status.Available, replicas)
		if found.State != fleet.Fresh {
			text := fmt.Sprintf("%s is %s %s", found.Manager, found.State, found.Reason)
			problems = append(problems, strings.TrimSpace(text))
		}

		switch found.State {
		case fleet.Stale, fleet.Degraded:
			status.State = installation.Failed
			status.Reason = ReasonAgentUnhealthy
		case fleet.Unproved:
			if status.State != installation.Failed {
				status.State = installation.Progressing
				status.Reason = ReasonAgentUnproved
			}
		case fleet.Fresh, fleet.Unknown:
		}
	}
	status.Replicas = status.Available

	if len(unserved) > 0 {
		status.Notice = fmt.Sprintf("no heartbeat ever came for %s: add its Watchers to the agent, "+
			"or expect no heartbeats to it (RuntimesOptions.Expected)", strings.Join(unserved, ", "))
		problems = append(problems, status.Notice)
	}
	if status.State != installation.Ready {
		status.Message = strings.Join(problems, "; ")
	}
	return status
}
