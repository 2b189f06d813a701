// Package intake is the receiver's half of the transport, as package outbox is the sender's half.
// Every transport uses it.
//
// A transport turns a message into a [Request] with the [core.Peer] that it has identified, and
// turns the error of [Intake.Receive] into its answer. Receive does everything in between:
//
//  1. It refuses a revoked peer and compares the claim of the batch with the peer.
//  2. It charges the share of the runtime and takes a slot.
//  3. It verifies each event and passes it to the handler of its manager.
//  4. It decides to which side each failure belongs: one event, the sender, or this replica.
//  5. It reports the batch to the fleet.
//
// The package is independent of the transport: nothing here may depend on HTTP requests,
// connections or subjects.
package intake

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Intake receives the batches of all runtimes for one or more managers. Create it with [New]. Its
// methods may be called concurrently and start no goroutine.
type Intake struct {
	verifier core.Verifier
	handlers map[core.Manager]core.Handler
	opts     Options
	slots    chan struct{}
	// observeSlots are for batches that are only observed.
	observeSlots chan struct{}
	shares       *shares
	stopping     atomic.Bool
}

var (
	errNoHandlers = errors.New("there is no handler: want one for each manager")
	errNoHandler  = errors.New("handler is nil")
)

// New returns an intake with a copy of handlers. The error names everything that is missing,
// invalid or negative.
//
// The verifier may be a [core.RequestVerifier] and a [core.Validator].
func New(verifier core.Verifier, handlers map[core.Manager]core.Handler, opts Options) (*Intake, error) {
	err := errors.Join(option.Verifier(verifier), validateHandlers(handlers), option.NoneNegative(opts))
	if err != nil {
		return nil, err
	}

	opts = opts.withDefaults()
	in := &Intake{
		verifier:     verifier,
		handlers:     maps.Clone(handlers),
		opts:         opts,
		slots:        make(chan struct{}, opts.MaxInFlight),
		observeSlots: make(chan struct{}, max(opts.MaxInFlight/perObserveSlot, 1)),
		shares:       newShares(opts.RuntimeRate, opts.RuntimeBurst, opts.RuntimeInFlight),
	}

	in.warnMeasured()
	return in, nil
}

// warnMeasured reports managers of the hooks without a handler: an alert on their metrics never
// fires, and the manager that was meant may share its series with other managers.
func (in *Intake) warnMeasured() {
	unserved := slices.DeleteFunc(slices.Clone(in.opts.Measured), in.Serves)
	if len(unserved) == 0 {
		return
	}
	in.opts.Logger.Warn("the metrics list managers that have no handler here: "+
		"correct Managers in the options of the metrics, unless another receiver with the same metrics "+
		"serves these managers",
		slog.Any("named", unserved), slog.Any("served", slices.Sorted(maps.Keys(in.handlers))))
}

func validateHandlers(handlers map[core.Manager]core.Handler) error {
	if len(handlers) == 0 {
		return errNoHandlers
	}

	var invalid []error
	for _, manager := range slices.Sorted(maps.Keys(handlers)) {
		if _, err := core.ParseManager(string(manager)); err != nil {
			invalid = append(invalid, err)
		}
		if option.IsNil(handlers[manager]) {
			invalid = append(invalid, fmt.Errorf("%w: that of manager %q", errNoHandler, manager))
		}
	}
	return errors.Join(invalid...)
}

// Serves reports whether there is a handler for the manager.
func (in *Intake) Serves(manager core.Manager) bool {
	_, known := in.handlers[manager]
	return known
}

// Ready returns the error of the handler's method Ready, or nil if the handler of the manager is
// not a [core.Readier].
func (in *Intake) Ready(manager core.Manager) error {
	if r, ok := in.handlers[manager].(core.Readier); ok {
		return r.Ready()
	}
	return nil
}

// Stop attributes every later failure of a handler to this replica. A receiver that stops cancels
// the calls to its handlers, which is not a failure of their events.
func (in *Intake) Stop() { in.stopping.Store(true) }

// ForRequest returns the verifier for the events of one batch, which it verifies one at a time. For
// a [core.RequestVerifier], that is the result of its method ForRequest, and otherwise verifier
// itself.
func ForRequest(verifier core.Verifier) core.Verifier {
	if v, ok := verifier.(core.RequestVerifier); ok {
		return v.ForRequest()
	}
	return verifier
}

// Options are the optional settings of an [Intake]. The zero value is the documented default.
type Options struct {
	// MaxInFlight bounds the batches that the verifier and the handlers process at the same time.
	// With a Fleet, the verifier alone may process an eighth more, so that heartbeats are observed
	// even while all events are refused. Default: 256.
	MaxInFlight int
	// RuntimeRate bounds the average number of events per second from each runtime, and
	// RuntimeBurst the number in one burst. A batch without events counts as one event, and so does
	// each 16 KiB of a body. A batch that is larger than the rest of the share is accepted, and the
	// next batch has to wait. Defaults: 200 and 1,000.
	RuntimeRate  float64
	RuntimeBurst int
	// RuntimeInFlight bounds the batches in flight from one runtime. Default: 16.
	RuntimeInFlight int
	// HandleTimeout bounds the calls to the verifier and the handler for one batch. Default: 5 s.
	HandleTimeout time.Duration
	// Fleet observes each verified batch. Default: none.
	Fleet *fleet.Fleet
	// Revocations lists senders that are refused although their certificates are valid. Default:
	// none.
	Revocations Revocations
	// Now is the clock. Default: [time.Now].
	Now func() time.Time
	// Measured are the managers that the hooks for metrics expect. The intake logs each of these
	// managers that has no handler. Default: none.
	Measured []core.Manager
	// Logger receives a line for each recovered panic, and for each manager in Measured without a
	// handler. Default: discard.
	Logger *slog.Logger
	// InFlight is called with 1 before the verifier and the handler are called for a batch, and
	// with -1 afterwards. Default: none.
	InFlight func(delta int)
}

func (o Options) withDefaults() Options {
	return option.WithDefaults(o, Options{
		MaxInFlight:     256,
		RuntimeRate:     200,
		RuntimeBurst:    1000,
		RuntimeInFlight: 16,
		HandleTimeout:   5 * time.Second,
		Now:             time.Now,
		Logger:          slog.New(slog.DiscardHandler),
		InFlight:        func(int) {},
	})
}

// perObserveSlot is the number of slots for each slot that only observes.
const perObserveSlot = 8
