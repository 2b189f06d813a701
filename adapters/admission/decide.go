package admission

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// decide makes an event of a review that matters, and hands it over.
func (h *Handler) decide(ctx context.Context, manager core.Manager, q *request, now time.Time) Decision {
	c := q.change()

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

	event.Owner = h.ownerOf(ctx, manager, c, &event)
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

// ownerOf returns the zero value when the object names no owner, and tells about it when it should have.
func (h *Handler) ownerOf(
	ctx context.Context, manager core.Manager, c *core.Change, event *core.WatchEvent,
) types.NamespacedName {
	owner, err := c.Owner()
	if err == nil && (owner != types.NamespacedName{} || !h.opts.RequireOwner) {
		return owner
	}

	problem := OwnerMalformed
	if err == nil {
		problem = OwnerMissing
	}

	h.opts.Hooks.OwnerProblem(manager, problem)

	if suppressed, ok := h.ownerWarning.pass(h.opts.Now()); ok {
		h.log.LogAttrs(ctx, slog.LevelWarn, "object names no valid owner",
			slog.String("manager", string(manager)), slog.String("problem", problem), slog.Any("error", err),
			slog.String("kind", event.WatchedGVK.String()), slog.String("object", event.Watched.String()),
			slog.Int64("suppressed", suppressed))
	}

	return types.NamespacedName{}
}
