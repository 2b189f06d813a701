package admission

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// decide makes an event of a review that matters, and hands it over. The API server waits, so that it
// writes no log line: the answer keeps that for later.
func (h *Handler) decide(ctx context.Context, answer *reply, q *request, now time.Time) Decision {
	c, manager := q.change(), answer.manager

	if c.DryRun {
		return DryRun
	}

	if !h.matters(manager, c) {
		return filteredOut(c)
	}

	event, err := c.Event(now)
	if err != nil {
		return NoName
	}

	event.Owner = h.ownerOf(ctx, answer, c, &event)
	if event.Owner == (types.NamespacedName{}) && h.opts.RequireOwner {
		return NoOwner
	}

	return decisionOf(h.acceptor.Accept(manager, event))
}

// matters asks the filter. An event too many is one harmless look; one too few would be lost.
func (h *Handler) matters(manager core.Manager, c *core.Change) bool {
	filter := h.opts.Filter
	if own, ok := h.opts.Filters[manager]; ok {
		filter = own
	}

	matters := true
	h.guard(PanicInFilter, func() { matters = filter(c) })

	return matters
}

// ownerOf returns the zero value when the object names no owner, and reports that when it should have.
func (h *Handler) ownerOf(
	ctx context.Context, answer *reply, c *core.Change, event *core.WatchEvent,
) types.NamespacedName {
	owner, err := c.Owner()
	if err == nil && (owner != types.NamespacedName{} || !h.opts.RequireOwner) {
		return owner
	}

	problem := OwnerMalformed
	if err == nil {
		problem = OwnerMissing
	}

	h.opts.Hooks.OwnerProblem(answer.manager, problem)

	if suppressed, ok := h.ownerWarning.pass(h.opts.Now()); ok {
		attrs := []slog.Attr{
			slog.String("manager", string(answer.manager)), slog.String("problem", problem), slog.Any("error", err),
			slog.String("kind", event.WatchedGVK.String()), slog.String("object", event.Watched.String()),
			slog.Int64("suppressed", suppressed),
		}
		answer.warn = func() { h.log.LogAttrs(ctx, slog.LevelWarn, "object names no valid owner", attrs...) }
	}

	return types.NamespacedName{}
}
