package controllerruntime

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// Handle returns nil if all requests that the map function returned for d are in the queue.
// Otherwise the sender must send the event again. Requests that are already in the queue do no
// harm. Handle blocks as long as the map function does.
//
// The error wraps [core.ErrNotReady] before the controller has started and after it has stopped. If
// the map function fails, the reason is the reason of its error or otherwise "map_failed". If the
// map function panics, the reason is "map_panicked".
func (s *Source[request]) Handle(ctx context.Context, d core.Delivery) error {
	s.asked.Store(true)
	requests, err := s.enqueueRequests(ctx, d)
	s.opts.Handled(hook.Handled{Delivery: d, Requests: requests, Err: err})
	if s.opts.Logger.Enabled(ctx, slog.LevelDebug) {
		s.opts.Logger.DebugContext(ctx, "handled a delivery", "runtime", d.Runtime, "manager", d.Manager,
			"kind", d.Event.KindWord(), "requests", requests, "error", err)
	}
	return err
}

// enqueueRequests returns the number of requests in the queue for a delivery.
func (s *Source[request]) enqueueRequests(ctx context.Context, d core.Delivery) (int, error) {
	to, err := s.openTarget()
	if err != nil {
		return 0, err
	}

	requests, err := s.mapRequests(ctx, d)
	if err != nil {
		return 0, err
	}

	s.warnOfStrays(ctx, to)
	if d.Event.Resync {
		to.reads.endReads(d.Runtime, &d.Event)
	}

	enqueued := 0
	hasRoom := true
	var dropped []request

	for _, r := range requests {
		at, unused := to.reads.observeEvent(d.Runtime, r, &d.Event)
		if unused {
			s.opts.Logger.InfoContext(ctx, "no reconcile calls Source.Client, so resends are also reconciled")
		}
		if at == dueNever {
			continue
		}

		isChange := !d.Event.Resync && at != dueLater
		if isChange && !to.makeRoom(d.Runtime, r) {
			dropped = append(dropped, r)
			continue
		}

		enqueued++

		switch {
		case d.Event.Resync:
			to.addResync(r, 0)
		case at == dueNow:
			to.strays.noteEnqueued(r, time.Now())
			hasRoom = to.addChange(d.Runtime, r) && hasRoom
		case at == dueInQueue:
			hasRoom = to.addLater(d.Runtime, r) && hasRoom
		}
	}

	if !hasRoom || len(dropped) > 0 {
		if err := s.replaceChanges(ctx, to, d, dropped); err != nil {
			return 0, err
		}
	}

	// A queue drops requests after its end without an error, and never opens again. So if it is
	// open now, it was open before.
	if to.isStopped() {
		return 0, errStopped()
	}
	return enqueued, nil
}

// replaceChanges enqueues a resync of a loud runtime within replaceWait. It replaces the dropped
// requests, and those that keep their low priority and so may wait for ever. An error leaves the
// event with its sender.
func (s *Source[request]) replaceChanges(
	ctx context.Context, to *target[request], d core.Delivery, dropped []request,
) error {
	key := replaced{d.Runtime, d.Event.Owner}
	if to.isReplacing(key) {
		return nil // The resync is enqueued later than this event.
	}

	d.Event = core.WatchEvent{Resync: true, Owner: d.Event.Owner}
	requests, err := s.mapRequests(ctx, d)

	isSame := slices.ContainsFunc(dropped, func(r request) bool { return slices.Contains(requests, r) })
	switch {
	case err != nil && len(dropped) > 0:
		return err
	case err != nil:
		return nil //nolint:nilerr // The changes are in the queue nevertheless.
	case isSame:
		return errNoRoom
	case len(requests) == 0: // The controller needs no resyncs, and so all changes.
		to.addListed(d.Runtime, dropped...)
		return nil
	case !to.replaceLater(key, requests):
		return errNoRoom
	}

	if suppressed, due := s.overflows.Take(string(d.Runtime), time.Now()); due {
		s.opts.Logger.WarnContext(ctx,
			"too many changes of a runtime wait for a reconcile: a resync replaces further changes",
			slog.Any("runtime", d.Runtime), slog.Any("manager", d.Manager), slog.Int("suppressed", suppressed))
	}
	return nil
}

// warnOfStrays names a source that serves another controller than the one that calls its Client.
func (s *Source[request]) warnOfStrays(ctx context.Context, to *target[request]) {
	if to.queue.Len() > 0 || !to.strays.takeForeign(time.Now()) {
		return
	}

	logger := s.opts.Logger
	if at := s.attached.Load(); at != nil {
		logger = logger.With(slog.String("listener", at.listener), slog.String("manager", string(at.manager)))
	}

	logger.WarnContext(ctx, "the controller reconciles the requests of this source but calls Client of another "+
		"source: pass each source to WatchesRawSource of the controller that calls its Client, at the beginning "+
		"of each reconcile")
}
