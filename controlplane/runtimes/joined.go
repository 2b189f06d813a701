package runtimes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

var (
	errNoFleet   = errors.New("a runtime that joins by itself needs Options.Fleet: its heartbeats are all that is known")
	errInstalled = errors.New("the agent in this runtime was installed from here: remove it first, by Identity.Remove")
)

// keepJoined reports the status of a runtime that has joined by itself, and installs nothing.
func (r *reconciler) keepJoined(
	ctx context.Context, object client.Object, id core.RuntimeID, managers []core.Manager,
) (reconcile.Result, error) {
	status, err := r.joined(object, id, managers)
	if err != nil {
		return r.fail(ctx, object, id, err)
	}
	if err := r.report(ctx, object, id, status, contents{managers: managers}); err != nil {
		return reconcile.Result{}, err
	}
	return r.again(client.ObjectKeyFromObject(object), id, managers, status), nil
}

// joined judges a runtime that has joined by itself: nothing is read from it, and nothing is issued
// for it. An agent may serve some of the managers only, so managers for which the fleet does not
// know the runtime do not count. The fleet may also expect heartbeats to managers that the agent
// does not serve. If the agent sends heartbeats to another manager, these are a notice.
func (r *reconciler) joined(
	object client.Object, id core.RuntimeID, managers []core.Manager,
) (installation.Status, error) {
	if r.opts.Fleet == nil {
		return installation.Status{}, because(ReasonIdentityUnknown, errNoFleet)
	}
	if controllerutil.ContainsFinalizer(object, r.names.Finalizer) {
		return installation.Status{}, because(ReasonInstallerRefused, errInstalled)
	}

	known, unserved := r.heartbeats(id, managers)
	status := awaiting(ReasonHeartbeatAwaited, "waiting for the first heartbeat of the agent")
	if len(known) == 0 {
		return status, nil
	}

	status = installation.Status{State: installation.Ready}
	var problems []string
	for _, found := range known {
		replicas := int32(len(found.Replicas)) //nolint:gosec // A fleet keeps a few.
		status.Available = max(status.Available, replicas)
		status.Replicas = status.Available
		if found.State != fleet.Fresh {
			problems = append(problems,
				strings.TrimSpace(fmt.Sprintf("%s is %s %s", found.Manager, found.State, found.Reason)))
		}
		switch found.State {
		case fleet.Stale, fleet.Degraded:
			status.State, status.Reason = installation.Failed, ReasonAgentUnhealthy
		case fleet.Unproved:
			if status.State != installation.Failed {
				status.State, status.Reason = installation.Progressing, ReasonAgentUnproved
			}
		case fleet.Fresh, fleet.Unknown:
		}
	}
	if len(unserved) > 0 {
		status.Notice = fmt.Sprintf("no heartbeat ever came for %s: add its Watchers to the agent, "+
			"or expect no heartbeats to it (RuntimesOptions.Expected)", strings.Join(unserved, ", "))
		problems = append(problems, status.Notice)
	}
	if status.State != installation.Ready {
		status.Message = strings.Join(problems, "; ")
	}
	return status, nil
}

// heartbeats returns the statuses of a runtime for the managers for which it is known, and the
// managers that have never got a heartbeat, while another one has.
func (r *reconciler) heartbeats(
	id core.RuntimeID, managers []core.Manager,
) (known []fleet.Status, unserved []string) {
	var silent []fleet.Status
	isHeard := false
	for _, manager := range managers {
		found := r.opts.Fleet.Get(id, manager)
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

// noteJoins lets the status of a runtime that joins by itself follow its heartbeats, from the first
// one on.
func (b *book) noteJoins(object client.ObjectKey, joins bool) {
	b.edit(object, func(e *entry) {
		e.joins = joins
		if joins {
			b.runtimes[e.id] = e
		}
	})
}

// follow returns the object of a runtime that joins by itself, and the time until its status is due
// after a change of its freshness.
func (b *book) follow(id core.RuntimeID, pause time.Duration) (object client.ObjectKey, after time.Duration, joins bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.runtimes[id]
	if e == nil || !e.joins {
		return client.ObjectKey{}, 0, false
	}
	if after = time.Until(e.next); after > 0 {
		return e.object, after, true
	}
	e.next = time.Now().Add(pause)
	return e.object, 0, true
}
