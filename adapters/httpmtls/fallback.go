package httpmtls

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The defaults of [FallbackOptions].
const (
	DefaultRetryNewest   = 5 * time.Minute
	DefaultOlderInFlight = 8
)

// FallbackOptions are the optional settings of a [Fallback]. The zero value is the documented default.
type FallbackOptions struct {
	// RetryNewest is the time after which the newest contract is tried again, and up to a quarter more at random. Default
	// [DefaultRetryNewest].
	RetryNewest time.Duration
	// InFlight is how many calls of the older forwarder run at once for one call of the fallback. Default [DefaultOlderInFlight].
	InFlight int
	// Unknown is called for each attempt that was answered as if the newest contract was not known.
	Unknown func(manager core.Manager, err error)
	// InUse is called when it turns out, or changes, whether events of a manager travel with the older contract.
	InUse func(manager core.Manager, older bool)
}

func (o FallbackOptions) withDefaults() FallbackOptions {
	o.RetryNewest = cmp.Or(o.RetryNewest, DefaultRetryNewest)
	o.InFlight = cmp.Or(o.InFlight, DefaultOlderInFlight)

	if o.Unknown == nil {
		o.Unknown = func(core.Manager, error) {}
	}

	if o.InUse == nil {
		o.InUse = func(core.Manager, bool) {}
	}

	return o
}

// Fallback is a [core.Forwarder] for control planes that may not know the newest contract. To a manager whose answers say so
// ([ReasonUnknownContract]), it sends with an older one, if that is taken there, and tries the newest again from time to time. That a manager
// is not there yet is no reason: then the older contract is refused, too, and nothing changes.
//
// What the older contract can not carry are heartbeats. They come back as [core.EventErrors] with [ReasonNoHeartbeats].
type Fallback struct {
	newest, older core.Forwarder
	opts          FallbackOptions

	mu      sync.Mutex
	courses map[core.Manager]course
}

var _ core.Forwarder = (*Fallback)(nil)

// course is how events travel to a manager: neither when nothing was taken yet.
type course struct {
	newest, older bool
	retry         time.Time // of the newest, while older
}

// ErrNoHeartbeats means that a heartbeat was not sent, as the contract in use has none.
var ErrNoHeartbeats error = noHeartbeats{}

type noHeartbeats struct{}

func (noHeartbeats) Error() string   { return "httpmtls: the contract in use carries no heartbeats" }
func (noHeartbeats) Reason() string  { return ReasonNoHeartbeats }
func (noHeartbeats) Retryable() bool { return false }

// NewFallback returns a forwarder that prefers newest. Without older (nil) it only tells that newest is not known.
func NewFallback(newest, older core.Forwarder, opts FallbackOptions) (*Fallback, error) {
	opts = opts.withDefaults()

	if newest == nil {
		return nil, errors.New("httpmtls: fallback: newest is nil, want a forwarder")
	}

	if opts.RetryNewest < 0 || opts.InFlight < 0 {
		return nil, errors.New("httpmtls: fallback: RetryNewest and InFlight: want more than 0")
	}

	return &Fallback{newest: newest, older: older, opts: opts, courses: make(map[core.Manager]course)}, nil
}

// Forward implements [core.Forwarder].
func (f *Fallback) Forward(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
	now := f.course(manager)
	if now.older && time.Now().Before(now.retry) {
		_, err := f.forwardOlder(ctx, manager, events)

		return err
	}

	err := f.newest.Forward(ctx, manager, events)
	unknown := core.Reason(err) == ReasonUnknownContract

	switch {
	case unknown:
		f.opts.Unknown(manager, err)
	case tookSome(err, len(events)):
		f.follow(manager, course{newest: true})

		return err
	case !now.older:
		return err
	}

	if f.older == nil {
		return err
	}

	// Whatever became of an attempt to return, the older contract was taken the last time.
	taken, olderErr := f.forwardOlder(ctx, manager, events)
	if !taken && unknown && !now.older {
		return err
	}

	if taken || now.older {
		f.follow(manager, course{older: true, retry: time.Now().Add(f.wait())})
	}

	return olderErr
}

func (f *Fallback) wait() time.Duration {
	return f.opts.RetryNewest + time.Duration(rand.Float64()*float64(f.opts.RetryNewest)/4) //nolint:gosec,mnd // Jitter is no secret: up to a quarter.
}

func (f *Fallback) course(manager core.Manager) course {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.courses[manager]
}

func (f *Fallback) follow(manager core.Manager, next course) {
	f.mu.Lock()
	before := f.courses[manager]
	f.courses[manager] = next
	f.mu.Unlock()

	if before.newest != next.newest || before.older != next.older {
		f.opts.InUse(manager, next.older)
	}
}

// tookSome reports whether an answer to so many events proves that the receiver understood them.
func tookSome(err error, events int) bool {
	some, ok := errors.AsType[core.EventErrors](err)

	return err == nil || ok && len(some) < events
}

// forwardOlder sends what the older contract can carry, several at once. It reports whether the receiver has taken any.
func (f *Fallback) forwardOlder(ctx context.Context, manager core.Manager, events []core.WatchEvent) (taken bool, err error) {
	var (
		all     = newOutcome(len(events))
		stripes = min(f.opts.InFlight, len(events))
		sending sync.WaitGroup
	)

	for first := range stripes {
		sending.Go(func() {
			for i := first; i < len(events); i += stripes {
				if !all.send(ctx, f.older, manager, events, i) {
					return
				}
			}
		})
	}

	sending.Wait()

	return all.taken > 0, all.sum()
}

// outcome collects what became of events that were sent singly.
type outcome struct {
	mu    sync.Mutex
	errs  []error // errUntried at first
	whole error   // what concerns the manager: the rest need not be tried
	taken int
}

var errUntried = errors.New("not tried")

func newOutcome(events int) *outcome {
	return &outcome{errs: slices.Repeat([]error{errUntried}, events)}
}

// send sends one event, unless others have shown that it is in vain, and reports whether to go on.
func (o *outcome) send(ctx context.Context, older core.Forwarder, manager core.Manager, events []core.WatchEvent, i int) bool {
	if events[i].Kind == core.KindHeartbeat {
		o.errs[i] = ErrNoHeartbeats

		return true
	}

	o.mu.Lock()
	whole := o.whole
	o.mu.Unlock()

	if whole != nil {
		return false
	}

	err := older.Forward(ctx, manager, events[i:i+1])
	some, single := errors.AsType[core.EventErrors](err)

	o.mu.Lock()
	defer o.mu.Unlock()

	switch {
	case err == nil:
		o.errs[i] = nil
		o.taken++
	case single:
		o.errs[i] = some[0]
	default:
		o.whole = err
	}

	return o.whole == nil
}

// sum returns one error for all when nothing was taken and nothing can be blamed singly. Events that were not tried, or failed with the
// manager, are named with its error.
func (o *outcome) sum() error {
	if o.whole != nil && o.taken == 0 {
		return o.whole
	}

	failed := core.EventErrors{}
	for i, err := range o.errs {
		switch {
		case err == nil:
		case errors.Is(err, errUntried):
			failed[i] = o.whole
		default:
			failed[i] = err
		}
	}

	if len(failed) == 0 {
		return nil
	}

	return failed
}
