package intake

import (
	"errors"
	"fmt"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Fault is the side to which a failure belongs.
type Fault int

const (
	// faultOfEvent is a failure of one element: all other elements continue.
	faultOfEvent Fault = iota
	// faultOfSender is a failure of the runtime: the verifier refuses it or does not know it yet.
	faultOfSender
	// FaultOfReplica is a failure of this replica, which takes no events: another replica may.
	FaultOfReplica
	// FaultOfShare is a failure of a sender that has used up its share.
	FaultOfShare
	// faultOfIntake is a failure of a receiver that is busy or does not serve the manager.
	faultOfIntake
)

// Failure says why an element, or a whole batch, was not accepted. The methods of an [Intake]
// return it as an error that [errors.As] finds. It wraps [core.ErrForbidden] or
// [core.ErrUnauthenticated] if the verifier refused, and [core.ErrUnknownManager] if the manager is
// not served. It wraps [core.ErrNotReady] if the verifier or the replica is not ready or has no
// room for the sender. It hides the class of a handler's error, because the same event may be
// accepted later.
type Failure struct {
	// Fault is the side to which the failure belongs.
	Fault Fault
	// Pause is how long a transport should not read from the sender, so that refusals cost little.
	// It is 0 unless Fault is FaultOfShare.
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

// Unwrap returns the sentinel error of core that corresponds to the failure, or nil.
func (f *Failure) Unwrap() error { return f.class }

// Reason returns the metric label of the cause.
func (f *Failure) Reason() string { return string(f.reason) }

// RetryAfter returns how long the sender should wait before it retries, at most 5 min. 0 means that
// the sender may retry immediately.
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
	// Whole is the failure of the whole batch, or nil if its elements were decided individually.
	Whole *Failure
	// Failed maps the index of each element that was not accepted to its failure. The index of the
	// heartbeat is the number of events.
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
		return v.eventErrors()
	}
}

func (v *verdict) addFailure(index int, f *Failure) {
	if f == nil {
		return
	}
	if v.Failed == nil {
		v.Failed = map[int]*Failure{}
	}
	v.Failed[index] = f
}

func (v *verdict) allMatch(match func(*Failure) bool) bool {
	for _, f := range v.Failed {
		if !match(f) {
			return false
		}
	}
	return true
}

// settleWhole makes the first failure that belongs to the sender or to this replica the failure of
// the batch.
func (v *verdict) settleWhole() {
	first := -1
	for index, f := range v.Failed {
		isFirst := first < 0 || index < first
		if isFirst && f.Fault != faultOfEvent {
			first = index
			v.Whole = f
		}
	}
}

func (v *verdict) eventErrors() core.EventErrors {
	refused := make(core.EventErrors, len(v.Failed))
	for i, f := range v.Failed {
		refused[i] = f
	}
	return refused
}
