package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// What is wrong with a source that a controller can not start.
var (
	errNoMapFunc = errors.New("source has no map function: make it by NewSource with one")
	errTaken     = errors.New("source serves a running controller already: make one for each controller")
)

// SourceOptions are the choices of [NewSource]. The zero value is good.
type SourceOptions struct {
	// Elected is closed when this replica leads: the Elected() of the manager. A source without it is ready as soon as its
	// controller starts it. That is too early for a controller that warms up (EnableWarmup): replicas which do not lead
	// would take events and keep them from the leader. Default: nil.
	Elected <-chan struct{}
	// Logger tells of map functions that panic, and at debug level of each delivery. Nil discards.
	Logger *slog.Logger
	// Handled is called after each delivery with the number of requests made of it, and the error that the listener gets.
	// No request and no error means that the map function had no use for the event. It is called concurrently and must not
	// block. Default: not called.
	Handled func(d core.Delivery, requests int, err error)
}

func (o SourceOptions) withDefaults() SourceOptions {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}

	if o.Handled == nil {
		o.Handled = func(core.Delivery, int, error) {}
	}

	return o
}

// Source hands deliveries to one controller. It is a [core.Handler] for a listener, and a [source.TypedSource] for the
// controller's WatchesRawSource.
//
// A delivery goes through the map function straight into the controller's workqueue, in the goroutine of the caller:
// nothing piles up between the two, and equal requests collapse in the queue. An acknowledgement means "enqueued". It
// is safe that a queue lives in memory only, as a controller looks at all its objects when it starts.
//
// In a priority queue, which controller-runtime uses by default, a change ranks with the changes that the controller
// watches itself, above its initial list and its periodic resync. The resync of a runtime ranks with those, so that a
// fleet that comes back does not stand in the way of a change.
//
// It is safe for concurrent use. It serves one controller at a time: make a source for each.
type Source[request comparable] struct {
	mapFunc MapFunc[request]
	opts    SourceOptions

	target atomic.Pointer[target[request]] // Nil before a controller starts.
}

var (
	_ source.TypedSource[string] = (*Source[string])(nil)
	_ core.Handler               = (*Source[string])(nil)
	_ listener.Readier           = (*Source[string])(nil)
)

// NewSource returns a source of the requests that mapFunc, which is required, makes of deliveries.
func NewSource[request comparable](mapFunc MapFunc[request], opts SourceOptions) *Source[request] {
	return &Source[request]{mapFunc: mapFunc, opts: opts.withDefaults()}
}

// String names the source in the log of its controller.
func (s *Source[request]) String() string { return "runtime watcher" }

// Start opens the source. Only a controller calls it. It does not block.
func (s *Source[request]) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
	if s.mapFunc == nil {
		return errNoMapFunc
	}

	old := s.target.Load()
	if old != nil && !old.stopped() {
		return errTaken
	}

	if !s.target.CompareAndSwap(old, &target[request]{done: ctx.Done(), queue: queue}) {
		return errTaken
	}

	return nil
}

// Handle returns nil when every request that the map function made of d is in the queue, and an error otherwise: the
// event is then the sender's to send again, and requests of it that are in the queue nevertheless do no harm. The error
// wraps [core.ErrNotReady] when the controller has not started or is stopping, or when the map function says so, and
// carries [ReasonMapFailed] or [ReasonMapPanicked] when that fails. It takes as long as the map function.
func (s *Source[request]) Handle(ctx context.Context, d core.Delivery) error {
	requests, err := s.handle(ctx, d)
	s.opts.Handled(d, requests, err)

	if s.opts.Logger.Enabled(ctx, slog.LevelDebug) {
		s.opts.Logger.DebugContext(ctx, "handled a delivery", "runtime", d.Runtime, "manager", d.Manager,
			"kind", d.Event.KindWord(), "requests", requests, "error", err)
	}

	return err
}

func (s *Source[request]) handle(ctx context.Context, d core.Delivery) (int, error) {
	to, err := s.open()
	if err != nil {
		return 0, err
	}

	requests, err := s.requests(ctx, d)
	if err != nil {
		return 0, err
	}

	for _, r := range requests {
		to.add(r, d.Event.Resync)
	}

	// A queue silently drops what comes after its end. It never opens again: if it is open now, it was open before.
	if to.stopped() {
		return 0, errStopped()
	}

	return len(requests), nil
}

// open returns the target when there is one that works.
func (s *Source[request]) open() (*target[request], error) {
	to := s.target.Load()

	switch {
	case to == nil:
		return nil, fmt.Errorf("%w: the controller has not started", core.ErrNotReady)
	case to.stopped():
		return nil, errStopped()
	case s.opts.Elected != nil && !closed(s.opts.Elected):
		return nil, fmt.Errorf("%w: another replica leads", core.ErrNotReady)
	default:
		return to, nil
	}
}

// Ready returns nil while deliveries can be enqueued, and an error that wraps [core.ErrNotReady] while the controller does not run, as on a
// replica that does not lead. A listener asks it before it acknowledges a heartbeat.
func (s *Source[request]) Ready() error {
	_, err := s.open()

	return err
}

// requests calls the map function. It is not ours and runs in the goroutine of a sender's request: a panic costs one
// event one attempt, nothing else.
func (s *Source[request]) requests(ctx context.Context, d core.Delivery) (requests []request, err error) {
	defer func() {
		if r := recover(); r != nil {
			s.opts.Logger.ErrorContext(ctx, "map function panicked", "runtime", d.Runtime, "manager", d.Manager,
				"panic", fmt.Sprint(r), "stack", string(debug.Stack()))

			requests, err = nil, &mapError{ReasonMapPanicked, errPanicked}
		}
	}()

	requests, err = s.mapFunc(ctx, d)
	if err != nil {
		return nil, classify(err)
	}

	return requests, nil
}

// target is where a source puts requests for as long as its controller runs.
type target[request comparable] struct {
	done  <-chan struct{}
	queue workqueue.TypedRateLimitingInterface[request]
}

// Follow lets a runtime that was fresh and is not any more be looked at within [fleet.Fleet.RequeueAfter], each at random within it, so that
// a whole fleet that is cut off is spread over that time. Its last reconcile trusted it to be heard, and asked to be repeated only after a long time.
// Changes that concern other managers are not followed, nor those that are seen by a replica that does not lead. Nothing is ever
// enqueued for it before a controller starts the source.
func (s *Source[request]) Follow(watched *fleet.Fleet, manager core.Manager) {
	watched.OnChange(func(change fleet.Transition) {
		if change.From == fleet.Fresh && change.To.Manager == manager {
			s.poll(change.To.Runtime, manager, watched.RequeueAfter(change.To.Runtime))
		}
	})
}

// poll enqueues what a resync of the runtime would, within a time.
func (s *Source[request]) poll(runtime core.RuntimeID, manager core.Manager, within time.Duration) {
	to, err := s.open()
	if err != nil {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // It answers from memory.
	defer cancel()

	requests, err := s.requests(ctx, core.Delivery{
		Runtime: runtime, Manager: manager, Event: core.WatchEvent{Resync: true}, Received: time.Now(),
	})
	if err != nil {
		s.opts.Logger.Warn("a runtime that is not fresh any more is looked at late", "runtime", runtime, "manager", manager, "error", err)
	}

	for _, r := range requests {
		to.addAfter(r, rand.N(within)) //nolint:gosec // Jitter is no secret.
	}
}

func (t *target[request]) addAfter(r request, wait time.Duration) {
	if ranked, ok := t.queue.(priorityqueue.PriorityQueue[request]); ok {
		ranked.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority), After: wait}, r)

		return
	}

	t.queue.AddAfter(r, wait)
}

func (t *target[request]) stopped() bool { return closed(t.done) || t.queue.ShuttingDown() }

// add ranks requests of a resync low, where the queue knows priorities.
func (t *target[request]) add(r request, resync bool) {
	ranked, ok := t.queue.(priorityqueue.PriorityQueue[request])
	if !ok || !resync {
		t.queue.Add(r)

		return
	}

	ranked.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, r)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func errStopped() error { return fmt.Errorf("%w: the controller has stopped", core.ErrNotReady) }
