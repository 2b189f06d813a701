package outbox_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

var seedFlag = flag.Uint64("outbox.seed", 0, "seed of the only run of the property test; 0: from 1 on")

// The guarantee, whatever the control plane and the path to it do for a while: after the last
// commit of each object, a look at it starts, or at its whole runtime. Each event has one counted
// fate at all times.
func TestNothingIsLostWhateverHappens(t *testing.T) {
	runs := 300
	first := uint64(1) // A seed that fails must fail each time.
	switch {
	case *seedFlag != 0:
		runs = 1
		first = *seedFlag
	case testing.Short():
		runs = 30
	}

	for i := range runs {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newModel(t, seed).run() })
		})
	}
}

// model drives an outbox at random, and knows which looks must come of it.
type model struct {
	t        *testing.T
	random   *rand.Rand
	opts     outbox.Options
	horizon  time.Duration // the longest time between a review and the commit
	phases   bool          // the managers have events one after the other
	resyncs  bool          // the source asks for resyncs: they hide missing looks
	ghosts   bool          // events for managers that do not exist
	outbox   *outbox.Outbox
	receiver *receiver
	writes   int64
	required map[address]time.Time // when the last look must have started
	checks   map[core.Manager]bool // the last answer names a check, nil if no answer does
}

const (
	calm  = time.Minute      // enough for everything to arrive
	quiet = 20 * time.Second // the end of calm, in which nothing is left to send
)

func newModel(t *testing.T, seed uint64) *model {
	t.Helper()

	random := rand.New(rand.NewPCG(seed, 0))
	m := &model{
		t: t, random: random, receiver: newReceiver(t, rand.New(rand.NewPCG(seed, 1))),
		required: make(map[address]time.Time),
	}

	m.opts = outbox.Options{
		Settle:         time.Duration(1+random.IntN(200)) * ms,
		Resend:         []time.Duration{},
		ResendResync:   -1,
		GiveUpAfter:    5 * time.Second,
		MaxKeys:        []int{1, 10, 30, 45, 1000}[random.IntN(5)],
		MaxManagers:    4,
		MaxBatch:       1 + random.IntN(10),
		InFlight:       1 + random.IntN(4),
		ForwardTimeout: time.Second,
		MaxBackoff:     3 * time.Second,
		Random:         jitter(seed),
	}

	m.horizon = m.opts.Settle
	m.drawOptions()
	return m
}

// drawOptions adds options that only some runs have.
func (m *model) drawOptions() {
	if m.phases = m.chance(2); m.chance(2) {
		m.opts.Epoch = "epoch"
		m.opts.InFlight = 1
		m.opts.HeartbeatInterval = time.Second
		m.receiver.dedupes = m.chance(2)
	}

	if !m.chance(3) {
		first := m.opts.Settle + ms + m.upTo(time.Second)
		m.horizon = first + m.upTo(3*time.Second)
		m.opts.Resend = []time.Duration{first, m.horizon}
		m.opts.ResendResync = m.horizon
	}

	m.resyncs = m.chance(4)
	if m.ghosts = m.chance(3); m.ghosts {
		m.opts.Managers = []core.Manager{"manager-0", "manager-1"}
	}
	if m.chance(2) {
		m.receiver.bad["object-1"] = errRefused
		m.receiver.bad["object-2"] = verdict{reason: "not_mapped"}
	}
	if m.chance(2) {
		m.receiver.outage = 1 + m.random.IntN(outages)
	}
	if m.chance(3) {
		m.receiver.poison = "object-3"
		m.receiver.bad["object-3"] = errRefused
	}
	if m.chance(2) {
		m.opts.ResendEvery = -1
		m.opts.Gather = -1
	}
	if m.chance(2) {
		m.opts.ResendEvery = ms + m.upTo(1500*ms)
		m.opts.Gather = ms + m.upTo(300*ms)
	}

	if m.opts.InFlight == 1 && m.chance(2) {
		m.checks = make(map[core.Manager]bool)
		m.opts.SettleChecked = ms + m.upTo(50*ms)
		m.opts.RecheckAfter = m.recheckAfter
	}

	if m.chance(3) {
		m.opts.MaxBytes = 5000 + m.random.IntN(40_000)
	}
}

func (m *model) run() {
	m.outbox = newOutbox(m.t, core.ForwarderFunc(m.forward), m.opts)
	stop := startOutbox(m.t, m.outbox)
	m.steps(200, 0)
	time.Sleep(m.upTo(8 * time.Second))
	m.steps(m.random.IntN(100), 1)
	m.receiver.setTrouble(false)
	m.steps(m.random.IntN(100), m.random.IntN(2))
	time.Sleep(calm - quiet)
	beats := m.receiver.heartbeats()
	time.Sleep(quiet)
	m.checkRest(m.receiver.heartbeats() - beats)
	m.checkLooks()
	m.checkNumbers()
	m.checkRoom()

	stop()
	m.checkLeave()
}

func (m *model) steps(n, manager int) {
	for range n {
		if !m.phases {
			manager = m.random.IntN(2)
		}
		m.step(core.Manager(fmt.Sprint("manager-", manager)))
		time.Sleep(m.upTo(80 * ms))
		m.checkCounts()
	}
}

// step is one action of a change source.
func (m *model) step(manager core.Manager) {
	switch n := m.random.IntN(40); {
	case n == 0:
		m.outbox.Retry()
	case n == 1 && m.resyncs:
		m.resync()
	case n < 10 && m.ghosts:
		m.outbox.Accept(core.Manager(fmt.Sprint("ghost-", m.random.IntN(20))), m.event())
	default:
		m.write(manager)
	}
}

func (m *model) event() core.WatchEvent {
	m.writes++
	event := named(fmt.Sprint("object-", m.random.IntN(40)))
	event.Generation = m.writes
	event.UID = []types.UID{"", "first", "second"}[m.random.IntN(3)]
	return event
}

// write is reviewed now, and committed later.
func (m *model) write(manager core.Manager) {
	event := m.event()
	m.outbox.Accept(manager, event)
	m.require(address{manager, event.Key()}, time.Now().Add(m.upTo(m.horizon)))
}

// resync asks all known managers for a look.
func (m *model) resync() {
	m.outbox.Resync()
	for manager := range m.outbox.Counts() {
		if isServed(manager) {
			m.require(resyncOf(manager), time.Now().Add(m.upTo(m.horizon)))
		}
	}
}

// isServed reports whether the control plane knows the manager.
func isServed(manager core.Manager) bool { return strings.HasPrefix(string(manager), "manager-") }

// served returns the number of served managers that the outbox knows.
func (m *model) served() (n int) {
	for manager := range m.outbox.Counts() {
		if isServed(manager) {
			n++
		}
	}
	return n
}

// require demands a look after the settle time and after the commit.
func (m *model) require(a address, commit time.Time) {
	settled := time.Now().Add(m.opts.Settle)
	for _, at := range []time.Time{settled, commit} {
		if at.After(m.required[a]) {
			m.required[a] = at
		}
	}
}

func (m *model) forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	m.checkCounts()
	if !isServed(manager) {
		return core.ErrUnknownManager
	}
	began := time.Now()
	err := m.receiver.Forward(ctx, manager, batch)
	if m.checks != nil {
		m.checkReads(manager, batch, began)
	}
	return err
}

// checkReads lets the receiver check about half of its reads, and look again after the settle time.
func (m *model) checkReads(manager core.Manager, batch core.Batch, began time.Time) {
	m.receiver.mu.Lock()
	defer m.receiver.mu.Unlock()
	m.checks[manager] = m.receiver.random.IntN(2) == 0
	for i := range batch.Events {
		a := address{manager, batch.Events[i].Key()}
		look := m.receiver.looks[a]
		if m.checks[manager] && batch.Events[i].UID != "" && !look.Before(began) {
			m.receiver.looks[a] = look.Add(m.opts.Settle)
		}
	}
}

func (m *model) recheckAfter(manager core.Manager) time.Duration {
	m.receiver.mu.Lock()
	defer m.receiver.mu.Unlock()
	if m.checks[manager] {
		return m.opts.Settle
	}
	return 0
}

// checkCounts checks that each event has one fate, and that the number of events is bounded.
func (m *model) checkCounts() {
	checkBalance(m.t, m.outbox)
	if counted, have := m.outbox.Sizes(); counted != have {
		m.t.Errorf("entries count for %d bytes, want %d", counted, have)
	}
	counts := m.outbox.Counts()
	if len(counts) > m.opts.MaxManagers+1 {
		m.t.Errorf("counts of %d managers, want at most %d", len(counts), m.opts.MaxManagers+1)
	}

	var pending int64
	for _, c := range counts {
		pending += c.Pending
	}

	// An event, and a newer one that has not settled, for each key and for the resync of each
	// manager.
	if most := int64(2 * (m.opts.MaxKeys + m.opts.MaxManagers)); pending < 0 || pending > most {
		m.t.Errorf("%d events are pending, want 0 to %d", pending, most)
	}
}

// checkRest checks the end of a long time without trouble: only heartbeats are sent.
func (m *model) checkRest(beats int) {
	m.receiver.mu.Lock()
	defer m.receiver.mu.Unlock()
	if ago := time.Since(m.receiver.busy); ago < quiet {
		m.t.Errorf("events were sent %v ago, want none to be left %v after the trouble", ago, calm-quiet)
	}

	if want := m.served() * int(quiet/time.Second); m.opts.Epoch != "" && (beats < want || beats > want*5/4) {
		m.t.Errorf("%d heartbeats arrived within %v, want %d, and up to a tenth more", beats, quiet, want)
	}

	for manager, c := range m.outbox.Counts() {
		if c.Pending != 0 && isServed(manager) {
			m.t.Errorf("%s: %d events are pending %v after the trouble", manager, c.Pending, calm)
		}
		if acked := m.receiver.acked[manager]; c.Delivered != acked {
			m.t.Errorf("%s: %d events are counted as delivered, but %d were acknowledged", manager, c.Delivered, acked)
		}
	}
}

// checkLooks checks that each object was looked at in time, itself or with its whole runtime.
func (m *model) checkLooks() {
	m.receiver.mu.Lock()
	defer m.receiver.mu.Unlock()
	for a, required := range m.required {
		look := m.receiver.looks[a]
		if whole := m.receiver.looks[resyncOf(a.manager)]; whole.After(look) {
			look = whole
		}
		if look.Before(required) {
			m.t.Errorf("%v was looked at %v before the time at which its last write had settled and was committed",
				a, required.Sub(look))
		}
	}
}

// checkNumbers checks that a receiver sees a gap only when an event was lost.
func (m *model) checkNumbers() {
	m.receiver.mu.Lock()
	defer m.receiver.mu.Unlock()
	for manager, gaps := range m.receiver.gaps {
		if lost := m.outbox.Counts()[manager].Dropped["overflow"]; int64(gaps) > lost {
			m.t.Errorf("%s: %d gaps in the numbers that arrived, but %d events were lost", manager, gaps, lost)
		}
	}
}

// checkRoom checks that nothing that is delivered takes up room.
func (m *model) checkRoom() {
	for _, manager := range []core.Manager{"manager-0", "manager-1"} {
		event := m.event()
		if got := m.outbox.Accept(manager, event); got != core.Accepted && m.opts.MaxKeys > 1 {
			m.t.Errorf("an event after the trouble is %s, want accepted: there is room for %d", got, m.opts.MaxKeys)
		}
	}
}

// checkLeave checks that a process that has lost events, or not sent resends, does not take its
// leave.
func (m *model) checkLeave() {
	for manager, beat := range m.receiver.beats {
		if lost := m.outbox.Counts()[manager].Dropped["shutdown"]; beat.Leaving && lost > 0 {
			m.t.Errorf("%s: the last heartbeat takes leave although %d events were lost", manager, lost)
		}
	}
}

func (m *model) chance(n int) bool { return m.random.IntN(n) == 0 }

func (m *model) upTo(d time.Duration) time.Duration {
	return time.Duration(m.random.Float64() * float64(d))
}

// jitter returns a source of random numbers for concurrent use.
func jitter(seed uint64) func() float64 {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 2))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Float64()
	}
}
