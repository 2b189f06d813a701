// Package intake is the receiver's half of the transport, as package outbox is the sender's. Every
// transport goes through it.
//
// A transport turns a message into a [Request] with the [core.Peer] that it has identified, and the
// error of [Intake.Receive] into its answer. Receive does everything between:
//
//  1. It refuses a revoked peer, and compares the claim of the batch with the peer.
//  2. It charges the share of the runtime, and takes a slot.
//  3. It verifies each event, and hands it to the handler of its manager.
//  4. It decides which side each failure belongs to: one event, the sender, or this replica.
//  5. It hands the batch to the fleet.
//
// The package knows no transport: nothing here may depend on requests of HTTP, on connections or on
// subjects.
package intake

import (
	"context"
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

// Intake receives the batches of all runtimes for one or several managers. Create one with [New].
// Its methods may be called concurrently, and start no goroutine.
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

// New returns an intake that has copied the handlers. The error names everything that is missing,
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
// fires, and the manager that was meant may share its series with others.
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

// Ready returns why the handler of a manager takes no events, nil if it is a [core.Readier] that
// takes them, or if it is none.
func (in *Intake) Ready(manager core.Manager) error {
	if r, ok := in.handlers[manager].(core.Readier); ok {
		return r.Ready()
	}
	return nil
}

// RecheckAfter returns the time after which the handler of a manager requests a reconcile again, 0
// if it is no [core.Rechecker]. Call it before [Intake.Receive].
func (in *Intake) RecheckAfter(ctx context.Context, manager core.Manager) (after time.Duration) {
	r, ok := in.handlers[manager].(core.Rechecker)
	if ok {
		in.protect(ctx, func() { after = r.RecheckAfter() }, func(error) { after = 0 })
	}
	return after
}

// Stop makes every later failure of a handler one of this replica. A receiver that stops ends the
// calls of its handlers, which is no failure of their events.
func (in *Intake) Stop() { in.stopping.Store(true) }

// DeliverResyncs hands the resyncs of the fleet to the handlers until ctx ends. Without a fleet it
// returns immediately. It fails as [fleet.Receiver.Start] does.
func (in *Intake) DeliverResyncs(ctx context.Context) error {
	if in.opts.Fleet == nil {
		return nil
	}
	handlers := make(map[core.Manager]core.Handler, len(in.handlers))
	for manager := range in.handlers {
		handlers[manager] = protected{in, manager}
	}
	return in.opts.Fleet.Receiver().Start(ctx, handlers)
}

// protected is the handler of a manager for the fleet. A panic costs one attempt.
type protected struct {
	in      *Intake
	manager core.Manager
}

func (p protected) Handle(ctx context.Context, d core.Delivery) (err error) {
	p.in.protect(ctx, func() { err = p.in.handlers[p.manager].Handle(ctx, d) }, func(cause error) { err = cause })
	return err
}

// Ready implements [core.Readier]: a replica that does not lead expects no runtime.
func (p protected) Ready() (err error) {
	p.in.protect(context.Background(), func() { err = p.in.Ready(p.manager) }, func(cause error) { err = cause })
	return err
}

// ForRequest returns the verifier for the events of one batch, one after the other: that of a
// [core.RequestVerifier], and otherwise the same verifier.
func ForRequest(verifier core.Verifier) core.Verifier {
	if v, ok := verifier.(core.RequestVerifier); ok {
		return v.ForRequest()
	}
	return verifier
}

// Options are the optional settings of an [Intake]. The zero value is the documented default.
type Options struct {
	// MaxInFlight bounds the batches that the verifier and the handlers have at the same time. With
	// a Fleet, an eighth more may be with the verifier only, so that heartbeats are observed while
	// all events are refused. Default: 256.
	MaxInFlight int
	// RuntimeRate bounds the events of each runtime in a second on average, RuntimeBurst at once. A
	// batch without events counts as one event, and so does each 16 KiB of a body. A batch that is
	// larger than the rest of the share is taken, and the next one waits. Defaults: 200 and 1,000.
	RuntimeRate  float64
	RuntimeBurst int
	// RuntimeInFlight bounds the batches of one runtime in flight. Default: 16.
	RuntimeInFlight int
	// HandleTimeout bounds the calls of verifier and handler for one batch. Default: 5 s.
	HandleTimeout time.Duration
	// Fleet observes each batch that is verified. Default: none.
	Fleet *fleet.Fleet
	// Revocations has the senders that are refused although their certificates are good. Default:
	// none.
	Revocations Revocations
	// Now is the clock. Default: [time.Now].
	Now func() time.Time
	// Measured are the managers that the hooks for metrics expect. The log names each of them that
	// has no handler. Default: none.
	Measured []core.Manager
	// Logger gets panics, and managers that are measured but not served. Default: discard.
	Logger *slog.Logger
	// InFlight is called with 1 before the verifier and the handler are called for a batch, and
	// with -1 after. Default: none.
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
