package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// scenario is a fault, or a load, of a fleet that works. run returns when the fault is over. Then
// all runtimes must become fresh, and all changes must be reconciled.
type scenario struct {
	name string
	run  func(ctx context.Context, w *world, r *recorder) error
}

// scenarios returns all scenarios in the order in which they are played.
func scenarios() []scenario {
	return []scenario{
		{"steady", steady},
		{"storm", storm},
		{"restart", restart},
		{"leader", leader},
		{"rotation", rotation},
		{"flapping", flapping},
		{"flood", flood},
		{"silence", silence},
	}
}

// steady has heartbeats and random changes only.
func steady(ctx context.Context, w *world, _ *recorder) error { return sleep(ctx, w.hold) }

// storm changes many objects of all runtimes in a short time.
func storm(ctx context.Context, w *world, r *recorder) error {
	began, total := time.Now(), w.n*w.stormEvents
	for i := range total {
		due := time.Duration(float64(w.storm) * float64(i) / float64(total))
		if wait := due - time.Since(began); wait > 0 {
			if err := sleep(ctx, max(wait, 5*time.Millisecond)); err != nil {
				return err
			}
		}
		w.agents[i%w.n].change(i / w.n)
	}
	r.faultEnds()
	if _, err := w.awaitSeen(ctx); err != nil {
		return err
	}
	r.note("all changes reconciled %s after the last one", round(r.ended.since()))
	return sleep(ctx, w.afterStorm)
}

// restart kills the operator, changes all runtimes, and starts the operator again. The lab removes
// the lease of the leader, so that the operator leads at once, as one without leader election.
func restart(ctx context.Context, w *world, r *recorder) error {
	w.operator().kill()
	r.faultEnds()
	if err := w.cluster.removeLease(ctx, w.namespace); err != nil {
		return err
	}
	for _, a := range w.agents {
		a.change(0)
	}
	operator, err := w.startReplica()
	if err != nil {
		return err
	}
	w.service.set(operator.address)
	return w.awaitLeader(ctx, r)
}

// leader kills the leader beside another replica, and changes all runtimes.
func leader(ctx context.Context, w *world, r *recorder) error {
	old := w.operator()
	standby, err := w.startReplica()
	if err != nil {
		return err
	}
	err = w.await(ctx, "the other replica serves", func() bool { return standby.last.Load().Listening })
	if err != nil {
		return err
	}
	w.service.set(old.address, standby.address)
	old.kill()
	r.faultEnds()
	w.service.set(standby.address)
	for _, a := range w.agents {
		a.change(0)
	}
	return w.awaitLeader(ctx, r)
}

func (w *world) awaitLeader(ctx context.Context, r *recorder) error {
	operator := w.operator()
	if err := w.await(ctx, "the operator leads", func() bool { return operator.last.Load().Leading }); err != nil {
		return err
	}
	r.led = now()
	r.note("leads %s after the kill", round(r.led.sub(r.ended)))
	return nil
}

// agentPoll is the time after which each agent has read its key material.
const agentPoll = 5500 * time.Millisecond

// rotation replaces the CA, all leaves of runtimes and that of the operator, with overlap.
func rotation(ctx context.Context, w *world, r *recorder) error {
	next, err := testpki.NewCA("CA "+r.began.String(), testpki.Options{})
	if err != nil {
		return err
	}
	old, both, after := w.ca, newTrust(w.ca, next), newTrust(next)
	for _, step := range []func() error{
		func() error { return w.rotateOperator(ctx, old, old, next) },
		func() error { return w.rolling(ctx, func(a *agent) error { a.keys.trusting(both); return nil }) },
		func() error { return sleep(ctx, agentPoll) },
		func() error { return w.rotateOperator(ctx, next, old, next) },
		func() error {
			return w.rolling(ctx, func(a *agent) error { return a.keys.issue(next, a.name, both) })
		},
		func() error { return w.rolling(ctx, func(a *agent) error { a.keys.trusting(after); return nil }) },
		func() error { return sleep(ctx, agentPoll) },
		func() error { return w.rotateOperator(ctx, next, next) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	w.ca, w.trust = next, after
	r.faultEnds()
	return nil
}

// rotateOperator waits until the operator has read its new files.
func (w *world) rotateOperator(ctx context.Context, issuer *testpki.CA, bundle ...*testpki.CA) error {
	if err := w.serve(issuer, bundle...); err != nil {
		return err
	}
	return sleep(ctx, w.poll*2)
}

// rolling calls change for each agent, spread over half of the duration of a fault.
func (w *world) rolling(ctx context.Context, change func(*agent) error) error {
	for _, a := range w.agents {
		if err := change(a); err != nil {
			return err
		}
		if err := sleep(ctx, w.hold/2/time.Duration(w.n)); err != nil {
			return err
		}
	}
	return nil
}

// flapping kills and starts one agent of a hundred again and again, after a change each time.
func flapping(ctx context.Context, w *world, r *recorder) error {
	const oneIn = 100
	var (
		flaps atomic.Int64
		all   sync.WaitGroup
		errs  = make(chan error, w.n/oneIn+1)
		over  = time.Now().Add(w.hold)
	)
	for i := 0; i < w.n; i += oneIn {
		all.Go(func() {
			for time.Now().Before(over) {
				flaps.Add(1)
				if err := w.flap(ctx, w.agents[i]); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	r.faultEnds()
	r.note("%d restarts of agents", flaps.Load())
	return <-errs
}

// flap loses the changes that an agent has not sent.
func (w *world) flap(ctx context.Context, a *agent) error {
	const objects = 10
	for i := range objects {
		a.change(i)
	}
	a.stop()
	if err := a.start(); err != nil {
		return err
	}
	return sleep(ctx, w.hold/time.Duration(objects))
}

// flood lets one runtime send as much as it can.
func flood(ctx context.Context, w *world, r *recorder) error {
	const senders = 32
	ctx, stop := context.WithTimeout(ctx, w.hold)
	defer stop()
	var (
		all           sync.WaitGroup
		sent, refused atomic.Int64
	)
	loud, err := w.agents[0].forwarder()
	if err != nil {
		return err
	}
	defer loud.Close()
	for sender := range senders {
		all.Go(func() {
			for ctx.Err() == nil {
				sent.Add(1)
				if sendOne(ctx, loud, sender, sent.Load()) != nil {
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	r.faultEnds()
	r.note("%d requests of the loud runtime, %d refused", sent.Load(), refused.Load())
	return nil
}

// sendOne sends one event around the outbox.
func sendOne(ctx context.Context, forward core.Forwarder, sender int, number int64) error {
	ctx, cancel := context.WithTimeout(ctx, outbox.Defaults().ForwardTimeout)
	defer cancel()
	return forward.Forward(ctx, manager, core.Batch{
		Epoch:  "flood-" + strconv.Itoa(sender),
		Events: []core.Numbered{{WatchEvent: event(int(number)), Sequence: uint64(number)}},
	})
}

// silence cuts off a third of the runtimes without a packet, until they are stale.
func silence(ctx context.Context, w *world, r *recorder) error {
	const oneIn = 3
	some := w.agents[:w.n/oneIn]
	for _, a := range some {
		a.link.kill()
		a.change(0)
	}
	err := w.await(ctx, "a third is stale", func() bool {
		return w.operator().last.Load().Runtimes[fleet.Stale] >= len(some)
	})
	if err != nil {
		return err
	}
	r.note("stale %s after the cut", round(r.began.since()))
	for _, a := range some {
		a.link.revive()
	}
	r.faultEnds()
	return nil
}

// play plays one scenario, and returns its result unless the lab fails.
func (w *world) play(ctx context.Context, s scenario) (*result, error) {
	w.say("scenario %s begins", s.name)
	r := w.record()
	defer r.stop()
	if err := s.run(ctx, w, r); err != nil {
		return nil, err
	}
	if r.ended == 0 {
		r.faultEnds()
	}
	missed, err := w.awaitSeen(ctx)
	rested := w.await(ctx, "all are fresh, and no resync is to come", func() bool {
		return w.fresh() == w.n && w.operator().last.Load().ToCome == 0
	})
	r.stop()
	result := r.result(s.name)
	result.missed, err = missed, errors.Join(rested, err)
	w.say("scenario %s: %s", s.name, result)
	if w.profile {
		err = errors.Join(err, w.operator().profile(), sleep(ctx, time.Second))
	}
	return result, err
}

// awaitSeen waits until all changes so far are reconciled. It returns the number of runtimes for
// which that is not so within the patience of the lab.
func (w *world) awaitSeen(ctx context.Context) (missed int, err error) {
	began := now()
	for missed = w.oracle.missing(began); missed > 0 && began.since() < w.patience; missed = w.oracle.missing(began) {
		if w.operator().hasEnded() {
			return missed, errEnded
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return missed, fmt.Errorf("while changes were not reconciled: %w", err)
		}
	}
	return missed, nil
}
