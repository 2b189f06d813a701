package controllerruntime

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

const (
	// mostOpen is the number of requests for the changes of one runtime that wait in the queue. A
	// resync replaces the others. A pod of a runtime can name objects without end.
	mostOpen = 1000
	// mostOpenOfAll bounds the requests of all runtimes that are remembered. Each takes about 100
	// bytes. Beyond it, each runtime has fewOpen of them.
	mostOpenOfAll = 1 << 17
	fewOpen       = 20
	// replaceWait is the time between two resyncs of a runtime that replace changes.
	replaceWait = time.Second
	// mostReplacing bounds the resyncs that wait for that time.
	mostReplacing = 1 << 12
	// overflowPace is the time between two log lines about one runtime.
	overflowPace = 10 * time.Minute
)

// errNoRoom leaves an event with its sender, because no resync can replace it.
var errNoRoom error = &reasons.Error{
	Text: "too many requests of this runtime wait for a reconcile", Label: reasons.TooFast,
}

// open are the requests for changes that may be in the queue. The lock of the target guards them. A
// queue does not report its requests: a request leaves when a reconcile calls Client, and all of
// them leave when no request is ready.
type open[request comparable] struct {
	of   map[core.RuntimeID]map[request]struct{}
	size int
}

// replaced identifies a resync that replaces changes.
type replaced struct {
	runtime core.RuntimeID
	owner   types.NamespacedName
}

// makeRoom reports whether a request for a change may be enqueued.
func (t *target[request]) makeRoom(runtime core.RuntimeID, r request) bool {
	isEmpty := t.queue.Len() == 0
	t.mu.Lock()
	defer t.mu.Unlock()

	o := &t.open
	isPast := isEmpty && o.size > 0
	if isPast || o.of == nil {
		o.of = make(map[core.RuntimeID]map[request]struct{})
		o.size = 0
	}

	own := o.of[runtime]
	_, known := own[r]
	if known {
		return true
	}
	isCrowded := o.size >= mostOpenOfAll && len(own) >= fewOpen
	if isCrowded || len(own) >= mostOpen {
		return false
	}

	if own == nil {
		own = make(map[request]struct{})
		o.of[runtime] = own
	}

	own[r] = struct{}{}
	o.size++
	return true
}

// removeRequest removes a request that a reconcile has begun with.
func (o *open[request]) removeRequest(runtime core.RuntimeID, r request) {
	own := o.of[runtime]
	if _, known := own[r]; !known {
		return
	}

	delete(own, r)
	o.size--
	if len(own) == 0 {
		delete(o.of, runtime)
	}
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
	requests, err := s.requests(ctx, d)
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

func (t *target[request]) isReplacing(key replaced) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, waits := t.replacing[key]
	return waits
}

// replaceLater enqueues the requests of a resync after replaceWait. An earlier one could begin
// before further changes that it has to replace. It reports false without room.
func (t *target[request]) replaceLater(key replaced, requests []request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	if len(t.replacing) >= mostReplacing {
		return false
	}
	if t.replacing == nil {
		t.replacing = make(map[replaced]struct{})
	}
	t.replacing[key] = struct{}{}

	time.AfterFunc(replaceWait, func() {
		t.mu.Lock()
		delete(t.replacing, key)
		t.mu.Unlock()
		if t.stopped() {
			return
		}

		for _, r := range requests {
			t.addResync(r, 0)
		}
	})
	return true
}
