package httpmtls

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/gateway"
)

// FallbackOptions are the optional settings of [NewFallback]. The zero value is the documented
// default.
type FallbackOptions struct {
	// RetryNewest is the time after which the newest contract is tried again. Up to a quarter of
	// that time is added at random. Default: 5 min.
	RetryNewest time.Duration
	// InFlight bounds the concurrent calls of the older forwarder within one call of Forward.
	// Default: 8.
	InFlight int
	// Unknown is called for each answer that means that the control plane does not support the
	// newest contract. It is also called if a gateway denies the newest contract but lets the older
	// contract pass. It may be called concurrently and must not block. Default: none.
	Unknown func(hook.UnknownContract)
	// InUse is called when the contract of a manager becomes known and whenever it changes. It may
	// be called concurrently and must not block. Default: none.
	InUse func(hook.Fallback)
}

func (o FallbackOptions) withDefaults() FallbackOptions {
	return option.WithDefaults(o, FallbackOptions{
		RetryNewest: defaults.RetryNewest,
		InFlight:    8, // A listener of contract v2 handles one event per request.
		Unknown:     func(hook.UnknownContract) {},
		InUse:       func(hook.Fallback) {},
	})
}

// fallback is the forwarder of [NewFallback]. The lanes of an outbox call it concurrently, and mu
// guards the courses.
type fallback struct {
	newest, older core.Forwarder
	opts          FallbackOptions

	mu      sync.Mutex
	courses map[core.Manager]course
}

var _ core.Forwarder = (*fallback)(nil)

// course is the contract in use for one manager.
type course struct {
	// newest and older are never both true.
	newest, older bool
	// retry is when the newest contract is tried again.
	retry time.Time
}

// NewFallback returns a forwarder for a control plane that may not support the newest contract. It
// prefers newest. After an answer with [reasons.UnknownContract], it sends the events of that
// manager with older, and tries newest again from time to time. A 403 from a gateway may concern
// the sender or the path, so older is tried as well and decides.
//
// A missing manager is not a reason to fall back: older would also be refused, and nothing changes.
// The older contract has no heartbeats, so heartbeats are omitted. If older is nil, only
// [FallbackOptions].Unknown is called. NewFallback fails if newest is nil or an option is negative.
func NewFallback(newest, older core.Forwarder, opts FallbackOptions) (core.Forwarder, error) {
	opts = opts.withDefaults()
	isNilPointer := older != nil && option.IsNil(older)
	if option.IsNil(newest) || isNilPointer {
		return nil, errors.New("httpmtls: fallback: newest or older is a nil forwarder")
	}
	if err := option.NoneNegative(opts); err != nil {
		return nil, fmt.Errorf("httpmtls: fallback: %w", err)
	}

	return &fallback{newest: newest, older: older, opts: opts, courses: make(map[core.Manager]course)}, nil
}

// Forward implements [core.Forwarder]. It blocks as long as the forwarders do.
func (f *fallback) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	now := f.courseOf(manager)
	if now.older && time.Now().Before(now.retry) {
		_, err := f.forwardOlder(ctx, manager, batch.Events)
		return err
	}

	err := f.newest.Forward(ctx, manager, batch)
	unknown := core.ReasonOf(err) == reasons.UnknownContract
	denied := gateway.Denied(err)

	// The older contract is tried after an answer that newest is not known. It is also tried if an
	// attempt to return to newest failed for another reason.
	switch {
	case unknown:
		f.opts.Unknown(hook.UnknownContract{Manager: manager, Err: err})
	case denied: // Perhaps only the path of newest.
	case tookSome(err, &batch):
		f.setCourse(manager, course{newest: true})
		return err
	case !now.older:
		return err
	}

	if f.older == nil {
		return err
	}

	// The older contract may take the next event. So only the heartbeat failed, not the manager.
	if !now.older && len(batch.Events) == 0 {
		return core.EventErrors{0: err}
	}

	// The answer to the older contract counts if the contract is in use or known.
	known, olderErr := f.forwardOlder(ctx, manager, batch.Events)
	if known && denied {
		f.opts.Unknown(hook.UnknownContract{Manager: manager, Err: err})
	}

	switch {
	case known || now.older:
		f.setCourse(manager, course{older: true, retry: time.Now().Add(f.retryWait())})
		return olderErr
	case errors.Is(olderErr, core.ErrUnknownManager) && !errors.Is(err, core.ErrUnknownManager):
		return olderErr // A gateway forbids newest, and the manager is missing.
	default:
		return err
	}
}

// RecheckAfter returns the delay of newest while newest is in use, as [Forwarder.RecheckAfter]
// does. Otherwise it returns 0, because the events of an older contract do not name their writes.
func (f *fallback) RecheckAfter(manager core.Manager) time.Duration {
	newest, ok := f.newest.(interface {
		RecheckAfter(manager core.Manager) time.Duration
	})
	if !ok || f.courseOf(manager).older {
		return 0
	}
	return newest.RecheckAfter(manager)
}

// retryWait returns the time until newest is tried again. Its jitter spreads the attempts of a
// fleet.
func (f *fallback) retryWait() time.Duration {
	jitter := rand.Float64() / 4 //nolint:gosec // Jitter is not a secret.
	return f.opts.RetryNewest + time.Duration(jitter*float64(f.opts.RetryNewest))
}

func (f *fallback) courseOf(manager core.Manager) course {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.courses[manager]
}

// setCourse stores the contract in use, and reports a change.
func (f *fallback) setCourse(manager core.Manager, next course) {
	f.mu.Lock()
	before := f.courses[manager]
	f.courses[manager] = next
	f.mu.Unlock()

	if before.newest != next.newest || before.older != next.older {
		f.opts.InUse(hook.Fallback{Manager: manager, Older: next.older})
	}
}

// tookSome reports whether the receiver has accepted at least one element of a batch.
func tookSome(err error, batch *core.Batch) bool {
	if err == nil {
		return !batch.IsEmpty()
	}

	failed, ok := errors.AsType[core.EventErrors](err)
	return ok && len(failed) < len(batch.Events)
}

// forwardOlder sends each event in its own request with the older contract, several in parallel. It
// stops after an error of the whole manager. known is whether an answer proves that the receiver
// knows the contract: it accepted an event, or refused it by its index.
func (f *fallback) forwardOlder(
	ctx context.Context, manager core.Manager, events []core.Numbered,
) (known bool, err error) {
	var (
		answers = make([]error, len(events))
		failed  atomic.Bool
		stripes = min(f.opts.InFlight, len(events))
		sending sync.WaitGroup
	)

	// Each goroutine sends every n-th event, so that no queue is needed.
	for first := range stripes {
		sending.Go(func() {
			for i := first; i < len(events); i += stripes {
				if failed.Load() {
					answers[i] = core.ErrNotSent
					continue
				}

				answers[i] = f.older.Forward(ctx, manager, core.Batch{Events: events[i : i+1]})
				if answers[i] != nil && !isA[core.EventErrors](answers[i]) {
					failed.Store(true)
				}
			}
		})
	}

	sending.Wait()
	return judge(answers)
}

// judge returns the error of the manager for all events if no event was accepted.
func judge(answers []error) (known bool, err error) {
	var whole error
	failed := core.EventErrors{}

	for i, answer := range answers {
		some, named := errors.AsType[core.EventErrors](answer)
		switch {
		case answer == nil:
		case named: // The answer names the only event.
			failed[i] = some[0]
			known = known || isNamed(some[0])
		default:
			failed[i] = core.ErrNotSent
			if !errors.Is(answer, core.ErrNotSent) {
				whole = answer
			}
		}
	}

	taken := len(answers) - len(failed)
	known = known || taken > 0

	switch {
	case whole != nil && taken == 0:
		return known, whole
	case len(failed) == 0:
		return known, nil
	default:
		return known, failed
	}
}

// isNamed reports whether a receiver has refused an event by its index.
func isNamed(err error) bool {
	refusal, ok := errors.AsType[*requestError](err)
	return ok && refusal.named
}
