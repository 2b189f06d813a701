package coretest_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// receiverMutant is a receiver in memory with one fault, and a part of the failure that must name it.
type receiverMutant struct {
	failure string
	// parts changes what the receiver is made of, batch what arrives, and answer what goes back.
	parts  func(*coretest.ReceiverParts)
	batch  func(core.RuntimeID, *core.Batch)
	answer func(batch *core.Batch, err error) error
	// peer replaces the runtime as the sender.
	peer core.RuntimeID
	// beside is done with each batch that arrives.
	beside func(*coretest.ReceiverParts, core.RuntimeID, core.Manager, core.Batch)
}

func TestMutantReceiver(t *testing.T) {
	m := chosen(t, receiverMutants())
	t.Run("suite", func(t *testing.T) {
		coretest.TestReceiver(t, m.start, coretest.ReceiverOptions{Patience: 2 * time.Second})
	})
}

func (m *receiverMutant) start(t *testing.T, parts coretest.ReceiverParts) func(core.RuntimeID) core.Forwarder {
	t.Helper()
	if m.parts != nil {
		m.parts(&parts)
	}
	in, err := intake.New(parts.Verifier, parts.Handlers, intake.Options{Fleet: parts.Fleet})
	if err != nil {
		t.Fatal(err)
	}
	return func(runtime core.RuntimeID) core.Forwarder {
		return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			if m.beside != nil {
				m.beside(&parts, runtime, manager, batch)
			}
			if m.batch != nil {
				m.batch(runtime, &batch)
			}
			err := receive(ctx, in, &intake.Request{
				Peer: core.Peer{ID: cmp.Or(m.peer, runtime)}, Manager: manager, Batch: batch,
			})
			if m.answer != nil {
				return m.answer(&batch, err)
			}
			return err
		})
	}
}

func receive(ctx context.Context, in *intake.Intake, r *intake.Request) error {
	account := intake.Account{Name: string(r.Peer.ID)}
	if tooFast := in.Enter(account, 0); tooFast != nil {
		return tooFast
	}
	defer in.Leave(account)
	v := in.Receive(ctx, r)
	return v.Err()
}

func receiverMutants() map[string]*receiverMutant {
	allow := core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil })
	return map[string]*receiverMutant{
		"verifies nothing":           {failure: "refuses with <nil>", parts: func(p *coretest.ReceiverParts) { p.Verifier = allow }},
		"names events for the batch": {failure: "names events", answer: func(b *core.Batch, err error) error { return namesEach(*b, err) }},
		"refuses all for one":        {failure: "refuses events no event failed", answer: firstForAll},
		"condemns what fails":        {failure: "not permanent", answer: condemnsEvents},
		"believes the claim":         {failure: "refuses with <nil>", batch: func(id core.RuntimeID, b *core.Batch) { b.Source = id }},
		"loses heartbeats":           {failure: "did not get the heartbeat", batch: func(_ core.RuntimeID, b *core.Batch) { b.Heartbeat = nil }},
		"confuses runtimes":          {failure: "accepted [] of runtime-1", peer: "all"},
		"turns the order":            {failure: "accepted [c b a]", batch: func(_ core.RuntimeID, b *core.Batch) { slices.Reverse(b.Events) }},
		"hears strangers":            {failure: "the fleet got the heartbeat of a sender", beside: observes},
		"acknowledges what failed":   {failure: "refuses events no event failed", answer: func(*core.Batch, error) error { return nil }},
		"loses what is not ready":    {failure: "want at least [late]", answer: losesNotReady},
		"has no shares":              {failure: "refuses with <nil>", answer: hidesTooFast},
		"hurries":                    {failure: "refused after the wait of 1ms", answer: hurries},
	}
}

func observes(p *coretest.ReceiverParts, runtime core.RuntimeID, manager core.Manager, batch core.Batch) {
	p.Fleet.Observe(core.Peer{ID: runtime}, manager, batch, nil)
}

func firstForAll(_ *core.Batch, err error) error {
	if failed, partial := some(err); partial {
		return firstOf(failed)
	}
	return err
}

func condemnsEvents(_ *core.Batch, err error) error {
	failed, partial := some(err)
	if !partial {
		return err
	}
	for i, err := range failed {
		failed[i] = coretest.Refusal{Label: "failed", Permanent: true, Cause: err}.Err()
	}
	return failed
}

// losesNotReady takes a handler that is not ready for one that accepted.
func losesNotReady(_ *core.Batch, err error) error {
	if failed, ok := errors.AsType[*intake.Failure](err); ok && failed.Fault == intake.FaultOfReplica {
		return nil
	}
	return err
}

func hurries(_ *core.Batch, err error) error {
	if errors.Is(err, core.ErrNotReady) {
		return coretest.Refusal{Label: "hurries", After: time.Millisecond, Cause: err}.Err()
	}
	return err
}

func hidesTooFast(_ *core.Batch, err error) error {
	if failed, ok := errors.AsType[*intake.Failure](err); ok && failed.Fault == intake.FaultOfShare {
		return nil
	}
	return err
}
