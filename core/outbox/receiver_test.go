package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// address is an object as a manager knows it.
type address struct {
	manager core.Manager
	key     core.EventKey
}

func resyncOf(manager core.Manager) address { return address{manager, core.EventKey{Resync: true}} }

// receiver is a control plane as the sender cannot see it: it notes which events arrived, whatever
// the answer was.
type receiver struct {
	t      *testing.T
	random *rand.Rand
	// dedupes is the behaviour of a transport that ignores an ID that it has seen.
	dedupes bool
	// bad has the answer to each object that is refused for ever.
	bad map[string]error
	// poison is an object because of which a batch with others is refused as a whole. Empty: none.
	poison string
	// outage is the same for all calls while there is trouble. 0: the faults of calls differ.
	outage  int
	mu      sync.Mutex
	trouble bool
	looks   map[address]time.Time // when the last look started
	seen    map[core.Manager]uint64
	beats   map[core.Manager]core.Heartbeat
	acked   map[core.Manager]int64 // events with an answer that means delivered
	gaps    map[core.Manager]int
	content map[string]core.WatchEvent // by ID
	busy    time.Time                  // of the last call with events
	arrived int                        // heartbeats
}

func newReceiver(t *testing.T, random *rand.Rand) *receiver {
	t.Helper()
	return &receiver{
		t: t, random: random, trouble: true,
		bad:     make(map[string]error),
		looks:   make(map[address]time.Time),
		seen:    make(map[core.Manager]uint64),
		beats:   make(map[core.Manager]core.Heartbeat),
		acked:   make(map[core.Manager]int64),
		gaps:    make(map[core.Manager]int),
		content: make(map[string]core.WatchEvent),
	}
}

func (r *receiver) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	f := r.nextFault(batch)
	if !sleep(ctx, f.before) {
		return ctx.Err() // The request did not arrive.
	}
	if f.refusal != nil {
		return f.refusal
	}
	err := r.receive(manager, batch, &f)
	if !sleep(ctx, f.after) {
		return ctx.Err() // The answer did not arrive.
	}
	if f.answer != nil {
		return f.answer
	}
	r.acknowledge(manager, batch, err)
	if err == nil {
		return nil
	}
	return fmt.Errorf("answer of %s: %w", manager, err)
}

// sleep reports whether the time passed before the end of ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// trouble is the fate of one call. The zero value is none.
type trouble struct {
	before, after time.Duration
	refusal       error         // nothing has an effect
	answer        error         // lost: everything has its effect
	cut           int           // only so many events are sent, if cuts
	cuts          bool          // the batch is cut
	events        map[int]error // refused individually
	beat          error         // refused individually
}

// nextFault draws the fate of a call.
func (r *receiver) nextFault(batch core.Batch) (f trouble) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(batch.Events)
	f.before = r.upTo(50 * ms)
	f.after = r.upTo(50 * ms)
	switch {
	case n > 1 && r.isPoisoned(batch):
		f.refusal = errRefused
		return f
	case !r.trouble:
		return f
	}

	fault := r.random.IntN(faults)
	if r.outage > 0 {
		fault = r.outage
	}

	switch fault {
	case 1:
		f.refusal = errDown
	case 2:
		f.before = time.Hour
	case 3:
		f.after = time.Hour
	case 4:
		f.events = r.refusals(n, true)
	case 5:
		f.refusal = verdict{reason: "busy", after: r.upTo(3 * time.Second)}
	case 6:
		if n != 1 {
			f.refusal = verdict{reason: "too_large", permanent: true}
		}
	case 7:
		f.answer = errDown
	case 8:
		f.cut = r.random.IntN(n + 1)
		f.cuts = true
	case 9:
		f.cut = r.random.IntN(n + 1)
		f.cuts = true
		f.events = r.refusals(n, false)
	case 10:
		f.events = r.refusals(n, false)
	case 11:
		f.beat = verdict{reason: "too_fast"}
	}

	return f
}

func (r *receiver) isPoisoned(batch core.Batch) bool {
	return r.poison != "" && slices.ContainsFunc(batch.Events, func(event core.Numbered) bool {
		return event.Watched.Name == r.poison
	})
}

// The faults from 1 on, of which the first may last: refused, hanging, without answers, refused by
// event.
const (
	outages = 4
	faults  = 16
)

// refusals refuses some events individually, or all of them for a while.
func (r *receiver) refusals(n int, all bool) map[int]error {
	refused := make(map[int]error)
	for i := range n {
		switch {
		case all || r.random.IntN(6) == 0:
			refused[i] = verdict{reason: "not_mapped", after: r.upTo(2 * time.Second)}
		case r.random.IntN(6) == 0:
			refused[i] = errRefused
		}
	}

	return refused
}

func (r *receiver) upTo(d time.Duration) time.Duration {
	return time.Duration(r.random.Int64N(int64(d)))
}

// receive takes the part of a batch that was sent, and returns the answer.
func (r *receiver) receive(manager core.Manager, batch core.Batch, f *trouble) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failed := core.EventErrors{}
	for i := range batch.Events {
		if err := r.receiveEvent(manager, batch.Epoch, &batch.Events[i], i, f); err != nil {
			failed[i] = err
		}
	}

	if batch.Heartbeat != nil {
		if err := r.receiveHeartbeat(manager, batch.Heartbeat, f); err != nil {
			failed[len(batch.Events)] = err
		}
	}

	if len(failed) == 0 {
		return nil
	}
	return failed
}

func (r *receiver) receiveEvent(manager core.Manager, epoch string, event *core.Numbered, i int, f *trouble) error {
	r.busy = time.Now()
	if f.cuts && i >= f.cut {
		return core.ErrNotSent
	}
	r.checkIdentity(manager, epoch, event)

	if err := r.bad[event.Watched.Name]; err != nil {
		return err
	}

	// A resync that is refused for ever has no stand-in: there is no guarantee then.
	if err := f.events[i]; err != nil && (!event.Resync || !core.IsPermanent(err)) {
		return err
	}
	_, duplicate := r.content[event.ID]
	if r.content[event.ID] = event.WatchEvent; event.ID == "" || !duplicate || !r.dedupes {
		r.looks[address{manager, event.Key()}] = time.Now()
	}
	return nil
}

// checkIdentity checks the number and the ID of an event that arrives, whether it is refused or
// not.
func (r *receiver) checkIdentity(manager core.Manager, epoch string, event *core.Numbered) {
	if epoch == "" {
		if event.Sequence != 0 || event.ID != "" {
			r.t.Errorf("event %+v has a number or an ID, want none without epoch", event)
		}
		return
	}

	if event.Sequence > r.seen[manager]+1 {
		r.gaps[manager]++
	}
	r.seen[manager] = max(r.seen[manager], event.Sequence)
	if known, ok := r.content[event.ID]; event.ID == "" || ok && known != event.WatchEvent {
		r.t.Errorf("ID %q is that of %+v and of %+v", event.ID, known, event.WatchEvent)
	}
}

func (r *receiver) receiveHeartbeat(manager core.Manager, beat *core.Heartbeat, f *trouble) error {
	if f.cuts {
		return core.ErrNotSent
	}
	if f.beat != nil {
		return f.beat
	}

	last := r.beats[manager]
	if beat.Number <= last.Number || beat.ID == last.ID {
		r.t.Errorf("heartbeat %d %q arrived after %d %q", beat.Number, beat.ID, last.Number, last.ID)
	}

	if beat.Sequence > r.seen[manager] {
		r.gaps[manager]++
	}
	r.seen[manager] = max(r.seen[manager], beat.Sequence)
	r.beats[manager] = *beat
	r.arrived++
	return nil
}

// acknowledge counts the events that the sender knows to be delivered.
func (r *receiver) acknowledge(manager core.Manager, batch core.Batch, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	failed, _ := err.(core.EventErrors) //nolint:errorlint // It is this receiver's own.
	for i := range batch.Events {
		if failed[i] == nil {
			r.acked[manager]++
		}
	}
}

func (r *receiver) heartbeats() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.arrived
}

func (r *receiver) setTrouble(trouble bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble = trouble
}
