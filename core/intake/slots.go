package intake

import (
	"context"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

func try(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// takeSlot grants slots in the order of the calls.
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

// Enter charges an account for a message of size bytes, which includes its first event, and counts
// the message as in flight. If it returns nil, call [Intake.Leave] afterwards. Otherwise the
// account has used up its share, and the error is a [*Failure].
func (in *Intake) Enter(a Account, size int64) error {
	if wait, ok := in.shares.enterAccount(a, 1+float64(size)/defaults.BytesPerToken, in.opts.Now()); !ok {
		return in.tooFast(a, wait)
	}
	return nil
}

// Defer returns the time after which a transport that keeps a message beyond the share of its
// account should deliver the message again. By then the share has room for this message and every
// message deferred before it. The wait is from 1 s to 5 min.
func (in *Intake) Defer(a Account, events, size int) time.Duration {
	return in.shares.deferMessage(a, float64(events)+float64(size)/defaults.BytesPerToken, in.opts.Now())
}

// Leave notes that a message is no longer in flight.
func (in *Intake) Leave(a Account) { in.shares.leaveAccount(a, in.opts.Now()) }

// Charge charges an account for a refused message, such as a message from an unidentified sender.
// It returns nil unless the account has used up its share. The error is then a [*Failure].
func (in *Intake) Charge(a Account) error {
	tooFast := in.chargeShare(a, 1)
	if tooFast == nil {
		return nil // And no error with a nil in it.
	}
	return tooFast
}

func (in *Intake) chargeShare(a Account, cost float64) *Failure {
	if wait, ok := in.shares.chargeAccount(a, cost, in.opts.Now()); !ok {
		return in.tooFast(a, wait)
	}
	return nil
}

// tooFast refuses a message beyond the share of its account. Pauses of an account follow each
// other. The pause ends before the wait that the sender is asked for.
func (in *Intake) tooFast(a Account, wait time.Duration) *Failure {
	pause := in.shares.addPause(a, in.opts.Now())
	return &Failure{
		Fault: FaultOfShare, Pause: pause, class: core.ErrNotReady, reason: reasons.TooFast,
		wait: max(wait, pause, time.Second),
	}
}
