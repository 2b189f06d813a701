package coretest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// ReceiverParts are the parts of a receiver under test.
type ReceiverParts struct {
	Verifier core.Verifier
	Handlers map[core.Manager]core.Handler
	Fleet    *fleet.Fleet
}

// NewReceiver starts a receiver until the test ends, with the default shares. The result returns a
// forwarder of a runtime to it. The receiver verifies that the runtime is the sender.
type NewReceiver func(t *testing.T, parts ReceiverParts) func(runtime core.RuntimeID) core.Forwarder

// ReceiverOptions are the optional settings of [TestReceiver].
type ReceiverOptions struct {
	// Patience bounds each call of Forward, and the wait for the batches that a transport keeps.
	// Default: 30 s.
	Patience time.Duration
}

// TestReceiver checks the rules for every receiver of batches, with any transport. It checks the
// side that each failure belongs to, and the events that reach handlers and fleet. It also checks
// that a loud runtime has a share only. A forwarder may also return nil for a batch that its
// transport keeps, and delivers again.
func TestReceiver(t *testing.T, newReceiver NewReceiver, opts ReceiverOptions) {
	t.Helper()
	opts.Patience = cmp.Or(opts.Patience, defaultReceiverPatience)
	for _, c := range receiverChecks() {
		t.Run(c.name, func(t *testing.T) { c.check(newReceiverSuite(t, newReceiver, opts, c)) })
	}
}

type receiverCheck struct {
	name   string
	verify func(peer core.Peer, event *core.WatchEvent) error
	handle func(event *core.WatchEvent) error
	check  func(s *receiverSuite)
}

func receiverChecks() []receiverCheck {
	type suite = receiverSuite
	refuse := func(err error) func(core.Peer, *core.WatchEvent) error {
		return func(core.Peer, *core.WatchEvent) error { return err }
	}
	return []receiverCheck{
		{"all are accepted", nil, nil, (*suite).testAccepted},
		{"verifier is not ready", refuse(core.ErrNotReady), nil, (*suite).testColdVerifier},
		{"verifier refuses the sender", refuse(core.ErrForbidden), nil, (*suite).testForbiddenSender},
		{"verifier refuses one event", bad(core.ErrForbidden), nil, (*suite).testForbiddenEvent},
		{"verifier refuses all changes", changes(core.ErrForbidden), nil, (*suite).testForbiddenChanges},
		{"verifier panics on one event", func(peer core.Peer, event *core.WatchEvent) error {
			return bad(nil)(peer, panicOn(event))
		}, nil, (*suite).testFailedEvent},
		{"handler panics on one event", nil, func(event *core.WatchEvent) error {
			panicOn(event)
			return nil
		}, (*suite).testFailedEvent},
		{"handler refuses one event for good", nil, func(event *core.WatchEvent) error {
			return bad(&Refusal{Label: "map_failed", Permanent: true})(core.Peer{}, event)
		}, (*suite).testFailedEvent},
		{"handler is not ready", nil, nil, (*suite).testHandlerNotReady},
		{"claim of another runtime", nil, nil, (*suite).testClaim},
		{"heartbeat", nil, nil, (*suite).testHeartbeat},
		{"heartbeat of a refused sender", refuse(core.ErrForbidden), nil, (*suite).testRefusedHeartbeat},
		{"loud runtime", nil, nil, (*suite).testLoudRuntime},
	}
}

const (
	receiverManager core.Manager   = "my-operator"
	receiverRuntime core.RuntimeID = "runtime-1"
	badName                        = "bad"
	// defaultReceiverPatience is for a busy machine.
	defaultReceiverPatience = 30 * time.Second
)

// bad refuses the event of one object.
func bad(err error) func(core.Peer, *core.WatchEvent) error {
	return func(_ core.Peer, event *core.WatchEvent) error {
		if event.Watched.Name == badName {
			return err
		}
		return nil
	}
}

// changes refuses all events but a resync of the runtime.
func changes(err error) func(core.Peer, *core.WatchEvent) error {
	return func(_ core.Peer, event *core.WatchEvent) error {
		if event.Resync {
			return nil
		}
		return err
	}
}

func panicOn(event *core.WatchEvent) *core.WatchEvent {
	if event.Watched.Name == badName {
		panic("made by the test")
	}
	return event
}

// receiverSuite is one check of [TestReceiver].
type receiverSuite struct {
	t       *testing.T
	opts    ReceiverOptions
	handler *Recorder
	fleet   *fleet.Fleet
	sender  func(runtime core.RuntimeID) core.Forwarder
}

func newReceiverSuite(t *testing.T, newReceiver NewReceiver, opts ReceiverOptions, c receiverCheck) *receiverSuite {
	t.Helper()
	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &receiverSuite{t: t, opts: opts, handler: &Recorder{}, fleet: watched}
	s.handler.Always(func(_ context.Context, batch core.Batch) error {
		if c.handle == nil || batch.Events[0].Resync {
			return nil
		}
		return c.handle(&batch.Events[0].WatchEvent)
	})
	verify := func(_ context.Context, peer core.Peer, event *core.WatchEvent) error {
		if c.verify == nil {
			return nil
		}
		return c.verify(peer, event)
	}
	s.sender = newReceiver(t, ReceiverParts{
		Verifier: core.VerifierFunc(verify),
		Handlers: map[core.Manager]core.Handler{receiverManager: s.handler},
		Fleet:    watched,
	})
	return s
}

// send forwards a batch of the runtime.
func (s *receiverSuite) send(runtime core.RuntimeID, batch core.Batch) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), s.opts.Patience)
	defer cancel()
	return s.sender(runtime).Forward(ctx, receiverManager, batch)
}

// batchOf returns a numbered batch of changes of objects.
func batchOf(names ...string) core.Batch {
	batch := core.Batch{Epoch: epoch}
	for i, name := range names {
		batch.Events = append(batch.Events, core.Numbered{
			WatchEvent: Changed("Sample", "default", name), Sequence: uint64(i + 1),
			ID: fmt.Sprintf("%s-%d", epoch, i+1),
		})
	}
	return batch
}

// handled returns the names of the objects that the handler accepted from a runtime.
func (s *receiverSuite) handled(runtime core.RuntimeID) (names []string) {
	calls := s.handler.Calls()
	for i := range calls {
		for _, event := range calls[i].acknowledged() {
			if calls[i].Runtime == runtime && !event.Resync {
				names = append(names, event.Watched.Name)
			}
		}
	}
	return names
}

func (s *receiverSuite) wantHandled(runtime core.RuntimeID, want ...string) {
	s.t.Helper()
	if got := s.handled(runtime); fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("the handler accepted %v of %s, want %v", got, runtime, want)
	}
}

// wantWhole checks that an error is of the whole batch.
func (s *receiverSuite) wantWhole(err, class error) {
	s.t.Helper()
	if _, partial := errors.AsType[core.EventErrors](err); partial {
		s.t.Errorf("the receiver names events: %v, want one error for the batch", err)
	}
	if !errors.Is(err, class) {
		s.t.Errorf("the receiver refuses with %v, want %v", err, class)
	}
}

// wantEvents checks that those events failed, and that each may succeed later.
func (s *receiverSuite) wantEvents(err, class error, want ...int) {
	s.t.Helper()
	some, _ := errors.AsType[core.EventErrors](err)
	if len(some) != len(want) {
		s.t.Errorf("the receiver refuses events %v (%v), want %v", some, err, want)
		return
	}
	for _, i := range want {
		switch {
		case some[i] == nil || core.IsPermanent(some[i]):
			s.t.Errorf("the receiver refuses event %d with %v, want an error that is not permanent", i, some[i])
		case class != nil && !errors.Is(some[i], class):
			s.t.Errorf("the receiver refuses event %d with %v, want %v", i, some[i], class)
		}
	}
}

// isKnown reports whether the fleet has seen a heartbeat of a runtime.
func (s *receiverSuite) isKnown(runtime core.RuntimeID) bool {
	return s.fleet.Get(runtime, receiverManager).State != fleet.Unknown
}
