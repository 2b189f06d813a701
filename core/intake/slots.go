package intake

import (
	"context"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// perObserveSlot is the number of slots for which there is one more slot for batches that are only
// observed.
const perObserveSlot = 8

func try(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// takeSlot takes a slot for the handler, if there is one, or waits for one until ctx ends. Slots
// are granted in the order of the calls.
func (in *Intake) takeSlot(ctx context.Context, wait bool) (taken bool) {
	taken = try(in.slots)
	if !taken && wait {
		select {
		case in.slots <- struct{}{}:
			taken = true
		case <-ctx.Done():
		}
	}
	if taken {
		in.opts.InFlight(1)
	}
	return taken
}

func (in *Intake) releaseSlot() {
	in.opts.InFlight(-1)
	<-in.slots
}

// Enter charges an account for a message of that many bytes, which includes its first event, and
// counts it in flight. If it returns nil, [Intake.Leave] must follow. Otherwise the account has
// used its share.
func (in *Intake) Enter(a Account, size int64) *Failure {
	if wait, ok := in.shares.enter(a, 1+float64(size)/defaults.BytesPerToken, in.opts.Now()); !ok {
		return in.tooFast(a, wait)
	}
	return nil
}

// Defer returns when a transport that keeps a message beyond the share of its account is to
// deliver it again. There is room then for it and for all that were deferred before it. The wait is
// from 1 s to 5 min.
func (in *Intake) Defer(a Account, events, size int) time.Duration {
	return in.shares.deferred(a, float64(events)+float64(size)/defaults.BytesPerToken, in.opts.Now())
}

// Leave ends a message in flight.
func (in *Intake) Leave(a Account) { in.shares.leave(a, in.opts.Now()) }

// Charge charges an account for a message that is refused, such as that of a sender that is not
// identified. It returns nil unless the account has used its share.
func (in *Intake) Charge(a Account) *Failure { return in.charge(a, 1) }

func (in *Intake) charge(a Account, cost float64) *Failure {
	if wait, ok := in.shares.charge(a, cost, in.opts.Now()); !ok {
		return in.tooFast(a, wait)
	}
	return nil
}

// tooFast refuses a message beyond the share of its account. Pauses of an account follow each
// other. The pause ends before the wait that the sender is asked for.
func (in *Intake) tooFast(a Account, wait time.Duration) *Failure {
	pause := in.shares.pause(a, in.opts.Now())
	return &Failure{
		Fault: FaultOfShare, Pause: pause, class: core.ErrNotReady, reason: reasons.TooFast,
		wait: max(wait, pause, time.Second),
	}
}
