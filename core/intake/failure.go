package intake

import (
	"errors"
	"fmt"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Fault is the side that a failure belongs to.
type Fault int

const (
	// faultOfEvent is of one element: all others go on.
	faultOfEvent Fault = iota
	// faultOfSender is of the runtime: the verifier refuses it, or does not know it yet.
	faultOfSender
	// FaultOfReplica is of this replica, which takes no events: another one may.
	FaultOfReplica
	// FaultOfShare is of a sender that has used its share.
	FaultOfShare
	// faultOfIntake is of a receiver that is busy, or does not serve the manager.
	faultOfIntake
)

// Failure is why an element, or a whole batch, was not taken. The methods of an [Intake] return it
// as an error: [errors.As] finds it. It wraps [core.ErrForbidden] and
// [core.ErrUnauthenticated] when the verifier refused, [core.ErrUnknownManager], and
// [core.ErrNotReady] when the verifier or the replica is not ready or has no room for the sender.
// It hides the class of a handler's error: the same event may be taken later.
type Failure struct {
	// Fault is the side that the failure belongs to.
	Fault Fault
	// Pause is how long the sender is to be left alone, so that refusals cost little. It is 0
	// unless the fault is that of the share.
	Pause time.Duration

	cause  error
	class  error
	reason core.Reason
	wait   time.Duration
	// refused means that the verifier returned an error, passed that it let the element pass.
	refused, passed bool
}

// Error returns the cause.
func (f *Failure) Error() string {
	if f.cause == nil {
		return "refused: " + string(f.reason)
	}
	return f.cause.Error()
}

// Unwrap returns the sentinel of core that the failure stands for, nil if there is none.
func (f *Failure) Unwrap() error { return f.class }

// Reason returns the metric label of the cause.
func (f *Failure) Reason() string { return string(f.reason) }

// RetryAfter returns the wait that the sender is asked for, at most 5 min; 0: none.
func (f *Failure) RetryAfter() time.Duration { return f.wait }

// maxWait bounds the wait that a verifier or a handler can ask for.
const maxWait = 5 * time.Minute

func newFailure(err error) *Failure {
	return &Failure{cause: err, reason: core.ReasonOf(err), wait: min(core.RetryAfter(err), maxWait)}
}

// Unverified returns the [*Failure] for the error of a verifier, or of the code that identifies
// senders.
func Unverified(err error) error { return unverified(err) }

func unverified(err error) *Failure {
	f := newFailure(err)
	f.refused = true
	for _, class := range []error{core.ErrForbidden, core.ErrUnauthenticated, core.ErrNotReady} {
		if errors.Is(err, class) {
			f.class = class
			break
		}
	}
	return f
}

func (f *Failure) isUnknown() bool {
	return !errors.Is(f, core.ErrForbidden) && !errors.Is(f, core.ErrUnauthenticated)
}

func busy() *Failure {
	return &Failure{Fault: faultOfIntake, class: core.ErrNotReady, reason: reasons.Busy}
}

func mismatch(claimed core.RuntimeID) *Failure {
	return &Failure{
		Fault: faultOfSender, class: core.ErrForbidden, reason: reasons.SourceMismatch, refused: true,
		cause: fmt.Errorf("%w: the batch claims to come from runtime %.253q", core.ErrForbidden, claimed),
	}
}

func unknownManager(manager core.Manager) *Failure {
	return &Failure{
		Fault: faultOfIntake, class: core.ErrUnknownManager, reason: reasons.UnknownManager,
		cause: fmt.Errorf("%w: %.63q", core.ErrUnknownManager, manager),
	}
}

// verdict is the fate of a batch. The zero value means that all of it was taken.
type verdict struct {
	// Whole is the failure of the whole batch, nil if its elements were decided one by one.
	Whole *Failure
	// Failed has the elements that were not taken, by their index. That of the heartbeat is the
	// number of events.
	Failed map[int]*Failure
}

// err returns the verdict as a [core.Forwarder] does: nil, the failure of the batch, or
// [core.EventErrors].
func (v *verdict) err() error {
	switch {
	case v.Whole != nil:
		return v.Whole
	case len(v.Failed) == 0:
		return nil
	default:
		return v.refused()
	}
}

func (v *verdict) add(index int, f *Failure) {
	if f == nil {
		return
	}
	if v.Failed == nil {
		v.Failed = map[int]*Failure{}
	}
	v.Failed[index] = f
}

func (v *verdict) all(match func(*Failure) bool) bool {
	for _, f := range v.Failed {
		if !match(f) {
			return false
		}
	}
	return true
}

// settle makes the first failure that belongs to the sender or to this replica that of the batch.
func (v *verdict) settle() {
	first := -1
	for index, f := range v.Failed {
		isFirst := first < 0 || index < first
		if isFirst && f.Fault != faultOfEvent {
			first = index
			v.Whole = f
		}
	}
}

func (v *verdict) refused() core.EventErrors {
	refused := make(core.EventErrors, len(v.Failed))
	for i, f := range v.Failed {
		refused[i] = f
	}
	return refused
}
