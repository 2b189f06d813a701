package admission

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Hooks are optional callbacks of a [Handler]. They are called concurrently while the API server waits, and must return at once. A
// panic in one is counted and logged as any other.
type Hooks struct {
	// InFlight is called with 1 when a request begins and with -1 when it has ended.
	InFlight func(delta int)
	// Reviewed is called for each review that was answered, with one of the [Decision] words and the time from the beginning of the
	// request, reading its body included, to the answer.
	Reviewed func(manager core.Manager, decision string, took time.Duration)
	// Refused is called for each request that was no review for this handler, with the HTTP status and one of the Refused
	// constants of this package.
	Refused func(status int, reason string, took time.Duration)
	// OwnerProblem is called when the owner of an object could not be told although it should, with [OwnerMissing] or
	// [OwnerMalformed].
	OwnerProblem func(manager core.Manager, problem string)
	// Panicked is called for each panic that was caught, with one of the PanicIn constants of this package.
	Panicked func(place string)
}

func (h Hooks) withDefaults() Hooks {
	if h.InFlight == nil {
		h.InFlight = func(int) {}
	}

	if h.Reviewed == nil {
		h.Reviewed = func(core.Manager, string, time.Duration) {}
	}

	if h.Refused == nil {
		h.Refused = func(int, string, time.Duration) {}
	}

	if h.OwnerProblem == nil {
		h.OwnerProblem = func(core.Manager, string) {}
	}

	if h.Panicked == nil {
		h.Panicked = func(string) {}
	}

	return h
}

// The problems with the owner of an object, as [Hooks].OwnerProblem gets them.
const (
	// OwnerMissing means that an owner is required and the object has none.
	OwnerMissing = "missing"
	// OwnerMalformed means that the annotation is there and is not <namespace>/<name>.
	OwnerMalformed = "malformed"
)

// The places of a panic, as [Hooks].Panicked gets them.
const (
	// PanicInFilter means a filter. The change counts as one that matters.
	PanicInFilter = "filter"
	// PanicInAcceptor means the acceptor, or a hook or logger that is called before it. The review is
	// answered, and a resync stands in.
	PanicInAcceptor = "acceptor"
	// PanicInRequest means the reading of a request, which is then answered 500. A resync stands in
	// for the change of a review.
	PanicInRequest = "request"
	// PanicInHooks means a hook or logger that is called before the request is read, or after the
	// answer.
	PanicInHooks = "hooks"
)
