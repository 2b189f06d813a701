package httpmtls

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
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
// ([contract.ReasonUnknownContract]), it sends with an older one, if that is taken there, and tries the newest again from time to time. That a manager
// is not there yet is no reason: then the older contract is refused, too, and nothing changes.
//
// The older contract carries no heartbeats: they are left out.
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
func (f *Fallback) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	now := f.course(manager)
	if now.older && time.Now().Before(now.retry) {
		_, err := f.forwardOlder(ctx, manager, batch.Events)

		return err
	}

	err := f.newest.Forward(ctx, manager, batch)
	unknown := core.Reason(err) == contract.ReasonUnknownContract

	switch {
	case unknown:
		f.opts.Unknown(manager, err)
	case tookSome(err, &batch):
		f.follow(manager, course{newest: true})

		return err
	case !now.older:
		return err
	}

	if f.older == nil {
		return err
	}

	// Whatever became of an attempt to return, the older contract was taken the last time.
	taken, olderErr := f.forwardOlder(ctx, manager, batch.Events)
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

// tookSome reports whether an answer proves that the receiver understood the batch.
func tookSome(err error, batch *core.Batch) bool {
	some, ok := errors.AsType[core.EventErrors](err)

	return err == nil && !batch.IsEmpty() || ok && len(some) < len(batch.Events)
}

// forwardOlder sends events with the older contract, several at once. It reports whether the receiver has
// taken any.
func (f *Fallback) forwardOlder(ctx context.Context, manager core.Manager, events []core.Numbered) (taken bool, err error) {
	var (
		all     = newResults(len(events))
		stripes = min(f.opts.InFlight, len(events))
		sending sync.WaitGroup
	)

	for first := range stripes {
		sending.Go(func() {
			for i := first; i < len(events) && !all.failed(); i += stripes {
				all.add(i, f.older.Forward(ctx, manager, core.Batch{Events: events[i : i+1]}))
			}
		})
	}

	sending.Wait()

	return all.taken > 0, all.err()
}

// results collects the answers to events that are sent one by one.
type results struct {
	mu    sync.Mutex
	errs  core.EventErrors // not sent at first
	whole error            // of the manager: the rest need not be sent
	taken int
}

func newResults(events int) *results {
	r := &results{errs: make(core.EventErrors, events)}
	for i := range events {
		r.errs[i] = core.ErrNotSent
	}

	return r
}

func (r *results) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.whole != nil
}

func (r *results) add(i int, err error) {
	some, single := errors.AsType[core.EventErrors](err)

	r.mu.Lock()
	defer r.mu.Unlock()

	switch {
	case err == nil:
		delete(r.errs, i)
		r.taken++
	case single:
		r.errs[i] = some[0]
	default:
		r.whole = err
	}
}

// err returns one error for all when the manager failed and nothing was taken.
func (r *results) err() error {
	switch {
	case r.whole != nil && r.taken == 0:
		return r.whole
	case len(r.errs) == 0:
		return nil
	default:
		return r.errs
	}
}
