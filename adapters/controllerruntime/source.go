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
	"weak"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

var (
	errNoMapFunc = errors.New("source has no map function: pass one to SourceFor or NewSource")
	errTaken     = errors.New("source already serves a running controller: create one source for each controller, " +
		"with another call of SourceFor or NewSource")
)

// SourceOptions are the optional settings of [SourceFor] and [NewSource]. The zero value is the
// documented default.
type SourceOptions struct {
	// Elected is closed when this replica leads, like Elected() of a controller manager. It is
	// required for a controller that warms up (EnableWarmup). Without it, a replica that does not
	// lead would accept events, and the leader would miss them. Default: the channel of the
	// controller manager of [AddListener], and otherwise nil: the source is ready when its
	// controller starts it.
	Elected <-chan struct{}
	// Logger gets panics of map functions, and each delivery at debug level. Default: the Logger of
	// the listener, and otherwise ctrl.Log.
	Logger *slog.Logger
	// Handled is called after each delivery with the number of its requests and the error for the
	// listener. No request and no error means that the map function did not need the event, or that
	// a reconcile had already read the write: see [Source.Client]. It is called concurrently and
	// must not block. Default: none.
	Handled func(hook.Handled)
}

// Source passes deliveries to one controller. It is a [core.Handler] for a listener and a
// [source.TypedSource] for the controller's WatchesRawSource. It is safe for concurrent use and
// serves one controller at a time.
//
// A delivery passes through the map function directly into the controller's workqueue, in the
// goroutine of the caller. No events accumulate in between, and equal requests coalesce in the
// queue. An acknowledgement means "enqueued". The queue may be lost with its process, because a
// controller reconciles all its objects when it starts.
//
// controller-runtime uses a priority queue by default. In that queue, a change has the same
// priority as the changes that the controller watches itself. The resync of a runtime has the low
// priority of the initial list, so that many resyncs do not delay a change. After 5 s a resync gets
// the priority of a change, because the queue itself does not raise priorities over time.
type Source[request comparable] struct {
	mapFunc MapFunc[request]
	opts    SourceOptions

	// attached is nil for a source without a listener of this package.
	attached atomic.Pointer[attachment]
	// asked means that a handler's caller has asked for Ready or Handle.
	asked atomic.Bool
	// askedInVain is the time, in nanoseconds since 1970, at which a receiver without a Listener
	// asked for a controller for the first time. It is -1 after the log has said so.
	askedInVain atomic.Int64
	// overflows paces the log lines about loud runtimes.
	overflows *pacedlog.Pace
	// target is nil before a controller starts.
	target atomic.Pointer[target[request]]
}

var (
	_ source.TypedSource[string] = (*Source[string])(nil)
	_ core.Handler               = (*Source[string])(nil)
	_ core.Readier               = (*Source[string])(nil)
	_ core.Rechecker             = (*Source[string])(nil)
	_ attachable                 = (*Source[string])(nil)
)

// NewSource returns a source of the requests that mapFunc returns for deliveries. Use it for a
// consumer of NATS or for a listener that [AddListener] did not make; for a listener of
// AddListener, use [SourceFor]. mapFunc is required: without it, Start fails.
func NewSource[request comparable](mapFunc MapFunc[request], opts SourceOptions) *Source[request] {
	return &Source[request]{
		mapFunc: mapFunc, overflows: pacedlog.NewPace(overflowPace),
		opts: option.WithDefaults(opts, SourceOptions{Logger: defaultLogger(), Handled: func(hook.Handled) {}}),
	}
}

// String names the source in the log of its controller.
func (s *Source[request]) String() string {
	if s == nil || s.attached.Load() == nil {
		return "runtime watcher"
	}
	return fmt.Sprintf("runtime watcher, manager %q", s.attached.Load().manager)
}

// Start opens the source. Only a controller calls it. It does not block. It fails if the source
// serves another controller that still runs. If nothing has passed events to the source 30 s later,
// the log names the missing part.
func (s *Source[request]) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
	if s == nil || s.mapFunc == nil {
		return errNoMapFunc
	}

	old := s.target.Load()
	isTaken := old != nil && !old.isStopped()
	if isTaken || !s.target.CompareAndSwap(old, newTarget(ctx.Done(), queue)) {
		return fmt.Errorf("%s: %w", s, errTaken)
	}

	check := time.AfterFunc(notStarted, s.warnWithoutEvents)
	context.AfterFunc(ctx, func() { check.Stop() })
	return nil
}

// warnWithoutEvents reports a source that no running listener feeds.
func (s *Source[request]) warnWithoutEvents() {
	at := s.attached.Load()
	switch {
	case at == nil && !s.asked.Load():
		s.opts.Logger.Info("no receiver has used this source in the first 30 s of its controller. " +
			"This is expected if there are no runtimes. Otherwise create the source with SourceFor, " +
			"or pass it to a listener or consumer")
	case at != nil && !at.isServed():
		s.opts.Logger.Warn("the controller has started but the listener of its events has not, so no events arrive: "+
			"pass the listener to mgr.Add", slog.String("listener", at.listener),
			slog.String("manager", string(at.manager)))
	}
}

// attachTo implements [attachable].
func (s *Source[request]) attachTo(at *attachment) error {
	if s == nil || s.mapFunc == nil {
		return errNoMapFunc
	}
	if !s.attached.CompareAndSwap(nil, at) {
		return fmt.Errorf("this source already receives the events of manager %q: "+
			"call SourceFor once for each name and controller", s.attached.Load().manager)
	}

	if s.opts.Elected == nil {
		s.opts.Elected = at.elected
	}
	if at.fleet != nil {
		s.Follow(at.fleet, at.manager)
	}
	return nil
}

// hasStarted implements [attachable].
func (s *Source[request]) hasStarted() bool { return s.target.Load() != nil }

// leaderChannel implements [attachable].
func (s *Source[request]) leaderChannel() <-chan struct{} { return s.opts.Elected }

// Resync enqueues requests with the low priority of an initial list. After 5 s, ten of them a
// second get the priority of a change, so neither changes nor resyncs wait for ever. Resync does
// not block. Its error wraps [core.ErrNotReady], as the error of Handle does.
func (s *Source[request]) Resync(requests ...request) error {
	to, err := s.openTarget()
	if err != nil {
		return err
	}
	to.addListed("", requests...)
	return nil
}

func (s *Source[request]) openTarget() (*target[request], error) {
	to := s.target.Load()
	switch {
	case to == nil:
		return nil, fmt.Errorf("%w: the controller has not started", core.ErrNotReady)
	case to.isStopped():
		return nil, errStopped()
	case s.opts.Elected != nil && !closed(s.opts.Elected):
		return nil, fmt.Errorf("%w: another replica leads", core.ErrNotReady)
	default:
		return to, nil
	}
}

// Ready returns nil while deliveries can be enqueued. Its error wraps [core.ErrNotReady] while the
// controller does not run, as on a replica that does not lead. A listener calls it before it
// acknowledges a heartbeat. It does not block.
func (s *Source[request]) Ready() error {
	s.asked.Store(true)
	s.warnWithoutController()
	_, err := s.openTarget()
	return err
}

// warnWithoutController reports, once, a source that a receiver has asked for 30 s, and that no
// controller has started on a replica that leads. A Listener reports its sources itself.
func (s *Source[request]) warnWithoutController() {
	isFollower := s.opts.Elected != nil && !closed(s.opts.Elected)
	if isFollower || s.target.Load() != nil || s.attached.Load() != nil {
		return
	}

	now := time.Now().UnixNano()
	if s.askedInVain.CompareAndSwap(0, now) {
		return
	}
	first := s.askedInVain.Load()
	if first < 0 || now-first < int64(notStarted) || !s.askedInVain.CompareAndSwap(first, -1) {
		return
	}

	if s.opts.Elected == nil {
		s.opts.Logger.Warn("no controller has started this source, so it enqueues no events: " +
			"pass the source to WatchesRawSource. A replica that does not lead logs this line too, unless " +
			"Elected is set")
		return
	}
	s.opts.Logger.Warn("no controller has started this source, so it enqueues no events: " +
		"pass the source to WatchesRawSource")
}

// RecheckAfter implements [core.Rechecker]. It returns 100 ms once a reconcile has used a client of
// [Source.Client] to read an object that an event names, and 0 before. Senders of contract v3 then
// send an event 10 ms after a review instead of 100 ms. If no reconcile has read the write 100 ms
// after its event, the source enqueues the request once more. It does not block.
func (s *Source[request]) RecheckAfter() time.Duration {
	to, err := s.openTarget()
	if err != nil || !to.reads.isMatched() {
		return 0
	}
	return recheckAfter
}

// mapRequests calls the map function. A panic costs one attempt of one event, because it is
// recovered.
func (s *Source[request]) mapRequests(ctx context.Context, d core.Delivery) (requests []request, err error) {
	defer func() {
		if r := recover(); r != nil {
			s.opts.Logger.ErrorContext(ctx, "map function panicked", "runtime", d.Runtime, "manager", d.Manager,
				"panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			requests = nil
			err = errMapPanicked
		}
	}()

	requests, err = s.mapFunc(ctx, d)
	if err != nil {
		return nil, classify(err)
	}
	return requests, nil
}

// Follow enqueues each runtime that is no longer fresh, because its last reconcile may have relied
// on events and requested a long requeue. The delay is random within [fleet.Fleet.RequeueAfter], so
// that the reconciles of a fleet that is cut off are spread over that time.
//
// Only changes of manager are followed, and only while the controller runs on this replica. Follow
// does not block, and may be called before the controller starts.
func (s *Source[request]) Follow(watched *fleet.Fleet, manager core.Manager) {
	follows := weak.Make(s) // A fleet may outlive the controller manager of a source.
	watched.OnChange(func(change fleet.Transition) {
		if s := follows.Value(); s != nil && change.From == fleet.Fresh && change.To.Manager == manager {
			s.pollRuntime(change.To.Runtime, manager, watched.RequeueAfter(change.To.Runtime))
		}
	})
}

// pollRuntime enqueues the requests of a resync of the runtime, each at a random time within a
// duration.
func (s *Source[request]) pollRuntime(runtime core.RuntimeID, manager core.Manager, within time.Duration) {
	to, err := s.openTarget()
	if err != nil {
		return
	}

	// A map function answers from memory.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()

	requests, err := s.mapRequests(ctx, core.Delivery{
		Runtime: runtime, Manager: manager, Event: core.WatchEvent{Resync: true}, Received: time.Now(),
	})
	if err != nil {
		s.opts.Logger.Warn("cannot reconcile early a runtime that is no longer fresh",
			"runtime", runtime, "manager", manager, "error", err)
	}

	for _, r := range requests {
		to.addResync(r, rand.N(within)) //nolint:gosec // Jitter is not a secret.
	}
}
