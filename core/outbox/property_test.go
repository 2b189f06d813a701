package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// Whatever the control plane does for a while, every accepted event is represented by one that was sent after it had settled,
// and its fate is counted exactly once, at all times. With second looks, every object is looked at after its last commit, however late
// that is within their time.
func TestNothingIsLostWhateverHappens(t *testing.T) {
	runs := 300
	if testing.Short() {
		runs = 30
	}

	first := rand.Uint64()

	for i := range runs {
		seed := first + uint64(i)

		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newModel(t, seed).run() })
		})
	}
}

type address struct {
	manager core.Manager
	key     core.EventKey
}

// model drives an outbox at random, and knows what must come out of it.
type model struct {
	t      *testing.T
	random *rand.Rand
	opts   outbox.Options
	outbox *outbox.Outbox

	mu       sync.Mutex
	trouble  bool
	refuses  bool                  // the control plane refuses events for good, too
	accepted map[address]time.Time // the last time an event was offered
	commits  map[address]time.Time // when the last of the writes behind them is committed
	answered map[address]time.Time // the last time one was sent whose fate was then settled
	counted  map[core.Manager]*outbox.Counts
	received map[core.Manager]uint64 // the highest number that arrived
	beats    int
}

func newModel(t *testing.T, seed uint64) *model {
	t.Helper()

	m := &model{
		t:        t,
		random:   rand.New(rand.NewPCG(seed, 0)),
		trouble:  true,
		accepted: make(map[address]time.Time),
		commits:  make(map[address]time.Time),
		answered: make(map[address]time.Time),
		counted:  make(map[core.Manager]*outbox.Counts),
		received: make(map[core.Manager]uint64),
	}
	m.opts = outbox.Options{
		Settle:         time.Duration(1+m.random.IntN(200)) * ms,
		MaxKeys:        1 + m.random.IntN(30),
		MaxBatch:       1 + m.random.IntN(10),
		InFlight:       1 + m.random.IntN(4),
		ForwardTimeout: 2 * time.Second,
		Random:         m.float,
		Hooks:          outbox.Hooks{Counted: m.count},
	}

	if m.random.IntN(2) == 0 {
		m.opts.Epoch, m.opts.InFlight, m.opts.HeartbeatInterval = "epoch", 1, time.Second
	}

	m.refuses = m.random.IntN(2) == 0
	if m.random.IntN(2) == 0 {
		m.opts.LookAgain = m.opts.Settle + time.Duration(1+m.random.IntN(5000))*ms
	}

	return m
}

func (m *model) run() {
	var stop func()

	m.outbox, stop = run(m.t, core.ForwarderFunc(m.forward), m.opts)

	for range 200 {
		m.accept()
		time.Sleep(time.Duration(m.intn(80)) * ms)
		checkBalance(m.t, m.outbox)
	}

	m.mu.Lock()
	m.trouble = false
	m.mu.Unlock()

	time.Sleep(time.Minute)
	m.checkNothingIsMissing()
	stop()

	if m.opts.Epoch != "" && m.beats < 10 {
		m.t.Errorf("%d heartbeats arrived, want about one each second", m.beats)
	}

	m.checkCounted()
}

func (m *model) accept() {
	manager := core.Manager(fmt.Sprint("manager-", m.intn(2)))
	event := named(fmt.Sprint("object-", m.intn(40)))
	commit := time.Now().Add(time.Duration(m.float() * float64(max(m.opts.Settle, m.opts.LookAgain))))

	if m.outbox.Accept(manager, event) == outbox.Dropped {
		event = core.WatchEvent{Kind: core.KindResync, Owner: event.Owner}
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	a := address{manager, event.Key()}
	m.accepted[a] = time.Now()

	if commit.After(m.commits[a]) {
		m.commits[a] = commit
	}
}

// forward answers at random while there is trouble. The answer is known before the time that it takes.
func (m *model) forward(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
	sent := time.Now()
	err := m.answer(len(events))

	if err == nil && m.intn(3) == 0 {
		time.Sleep(time.Duration(m.intn(500)) * ms)
	}

	if errors.Is(err, context.DeadlineExceeded) {
		<-ctx.Done()
	}

	var partial core.EventErrors
	if err != nil && !errors.As(err, &partial) {
		if len(events) > 1 || !core.IsPermanent(err) {
			return err
		}
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	m.receive(manager, events)

	for i := range events {
		if failure := partial[i]; failure == nil || core.IsPermanent(failure) {
			m.answered[address{manager, events[i].Key()}] = sent
		}
	}

	return err
}

// receive checks that what arrives leaves no number out, and that heartbeats tell of what arrived.
func (m *model) receive(manager core.Manager, events []core.WatchEvent) {
	for _, event := range events {
		last := m.received[manager]

		switch {
		case event.Epoch == "":
		case event.Heartbeat != nil:
			m.beats++

			if event.Heartbeat.Sequence != last {
				m.t.Errorf("heartbeat tells of %d, but %d was the last to arrive", event.Heartbeat.Sequence, last)
			}
		case event.Sequence > last+1:
			m.t.Errorf("%d arrived after %d", event.Sequence, last)
		default:
			m.received[manager] = max(last, event.Sequence)
		}
	}
}

func (m *model) answer(n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	if !m.trouble {
		return nil
	}

	switch m.random.IntN(7) {
	case 0:
		return errDown
	case 1:
		return verdict{reason: "busy", after: time.Duration(m.random.IntN(3000)) * ms}
	case 2:
		return m.refusal()
	case 3:
		return context.DeadlineExceeded
	case 4:
		return core.EventErrors{m.random.IntN(n): errDown, m.random.IntN(n): m.refusal()}
	default:
		return nil
	}
}

func (m *model) refusal() error {
	if m.refuses {
		return errRefused
	}

	return errDown
}

func (m *model) intn(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.random.IntN(n)
}

func (m *model) float() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.random.Float64()
}

func (m *model) count(manager core.Manager, change outbox.Counts) {
	sum := change.Delivered + change.Coalesced + change.Pending
	for _, n := range change.Dropped {
		sum += n
	}

	if change.Accepted != sum {
		m.t.Errorf("unbalanced change %+v", change)
	}

	total := m.counted[manager]
	if total == nil {
		total = &outbox.Counts{Dropped: make(map[string]int64)}
		m.counted[manager] = total
	}

	total.Accepted += change.Accepted
	total.Delivered += change.Delivered
	total.Coalesced += change.Coalesced
	total.Pending += change.Pending

	for reason, n := range change.Dropped {
		total.Dropped[reason] += n
	}
}

func (m *model) checkNothingIsMissing() {
	m.mu.Lock()
	defer m.mu.Unlock()

	for a, last := range m.accepted {
		if got, ok := m.answered[a]; !ok || got.Before(last.Add(m.opts.Settle)) {
			m.t.Errorf("%v was accepted at %v, but sent last at %v", a, last, got)
		}
	}

	// What is refused for good is not looked at, nor what stands in for it if that is refused, too.
	for a, commit := range m.commits {
		if last := m.lastLook(a); m.opts.LookAgain > 0 && !m.refuses && last.Before(commit) {
			m.t.Errorf("%v was committed at %v, but looked at last at %v, with second looks after %v", a, commit, last, m.opts.LookAgain)
		}
	}

	for manager, c := range m.outbox.Counts() {
		if c.Pending != 0 {
			m.t.Errorf("%s: %d events are still pending a minute after the trouble", manager, c.Pending)
		}
	}
}

// lastLook returns when the last look at an object started: its own, or one at the whole runtime.
func (m *model) lastLook(a address) time.Time {
	own, resync := m.answered[a], m.answered[address{a.manager, core.EventKey{Kind: core.KindResync, Owner: a.key.Owner}}]
	if resync.After(own) {
		return resync
	}

	return own
}

func (m *model) checkCounted() {
	for manager, want := range m.outbox.Counts() {
		if diff := cmp.Diff(want, *m.counted[manager]); diff != "" {
			m.t.Errorf("%s: the hook counted otherwise than Counts (-Counts +hook):\n%s", manager, diff)
		}
	}
}
