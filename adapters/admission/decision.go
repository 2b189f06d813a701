package admission

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// decisionOf returns [hook.DecisionFailed] for an unknown outcome.
func decisionOf(outcome core.Outcome) hook.Decision {
	switch outcome {
	case core.Accepted, core.Coalesced, core.Dropped:
		return hook.Decision(outcome)
	default:
		return hook.DecisionFailed
	}
}

// decideReview makes an event of a change that matters, or a resync of a write that may have
// changed many objects, and gives it to the acceptor. It panics if the acceptor or a hook panics.
// It leaves its log line in answer.warn, because the API server waits.
func (h *handler) decideReview(ctx context.Context, answer *reply, q *request, now time.Time) hook.Decision {
	c := q.newChange(answer.parent)
	manager := answer.manager
	c.OwnerAnnotation = h.opts.OwnerAnnotation
	if c.DryRun {
		return hook.DecisionDryRun
	}
	if q.deletesDefinition(answer.parent) {
		return decisionOf(h.acceptor.Accept(manager, core.WatchEvent{Resync: true, Time: now}))
	}

	if !h.passesFilter(c) {
		if c.Operation == core.OperationUpdate {
			return hook.DecisionUnchanged
		}
		return hook.DecisionIrrelevant
	}

	// An aggregated API server may name no object when it deletes or updates a collection, so that
	// each object of the kind may have changed.
	isWrite := c.Operation == core.OperationUpdate || c.Operation == core.OperationDelete
	if isWrite && q.namesNoObject() {
		return decisionOf(h.acceptor.Accept(manager, core.WatchEvent{Resync: true, Time: now}))
	}

	event, err := c.Event(now)
	if err != nil {
		return hook.DecisionNoName
	}

	event.TraceParent = q.traceParent
	event.UID, event.Base = c.Base()
	event.Owner = h.ownerOf(ctx, answer, c, &event)
	if event.Owner == (types.NamespacedName{}) && h.opts.RequireOwner {
		return hook.DecisionNoOwner
	}

	return decisionOf(h.acceptor.Accept(manager, event))
}

// passesFilter calls the filter. If the filter panics, the change matters: a superfluous
// event costs one reconcile, and a missing one is lost.
func (h *handler) passesFilter(c *core.Change) bool {
	matters := true
	h.guardCall(hook.PlaceFilter, func() { matters = h.opts.Filter(c) })
	return matters
}

// ownerOf reports a malformed owner, and a missing one if an owner is required.
func (h *handler) ownerOf(
	ctx context.Context, answer *reply, c *core.Change, event *core.WatchEvent,
) types.NamespacedName {
	owner, err := c.Owner()
	isMissing := owner == types.NamespacedName{} && h.opts.RequireOwner
	if err == nil && !isMissing {
		return owner
	}

	problem := hook.OwnerMissing
	if err != nil {
		problem = hook.OwnerMalformed
	}

	h.opts.Hooks.OwnerProblem(hook.OwnerProblem{Manager: answer.manager, Problem: problem})
	attrs := []slog.Attr{
		slog.String("manager", string(answer.manager)), slog.String("problem", string(problem)), slog.Any("error", err),
		slog.String("kind", event.WatchedGVK.String()), slog.String("object", event.Watched.String()),
	}
	answer.warn = func() { h.paced.LogAttrs(ctx, slog.LevelWarn, "the object does not name a valid owner", attrs...) }

	return types.NamespacedName{}
}
