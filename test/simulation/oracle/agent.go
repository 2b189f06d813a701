package oracle

import (
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Account counts the events of one manager by their fate, with the names of the metrics.
type Account map[string]int64

// Agent records one agent process. Its methods may be called concurrently.
type Agent struct {
	history  *History
	runtime  string
	epoch    string
	numbered bool
	from, to time.Time
	killed   bool
	lines    int64
	conns    int
	// missed counts the canary writes for which the API server got no answer.
	missed   int
	managers map[core.Manager]*lane
}

// lane records the traffic of an agent with one manager.
type lane struct {
	offered  elements // by the change source
	taken    elements // by the receiver
	scraped  int      // of offered, when the last scrape began
	account  Account
	highest  uint64
	contents map[string]core.WatchEvent
	owners   map[types.NamespacedName]bool // of resyncs

	failed     failures
	tooLarge   map[uint64]bool      // by number: whether each batch with it so far was too large
	late       map[uint64]bool      // numbers that were refused as malformed, or as too large
	refused    map[string]*failures // by the ID of an event
	recoveries int
	path       path
	backlog    int64     // that the last heartbeat has named
	named      time.Time // when it was taken; zero: another one may have arrived since
	dropping   bool      // a gateway drops what it acknowledges
	drops      int       // the times in which it did
}

// elements counts the elements of batches.
type elements struct{ changes, resyncs, beats int }

// failures are consecutive failures of a lane or of one event.
type failures struct {
	n        int
	last     time.Time
	notReady bool
}

// add counts a failure now.
func (f *failures) add(err error) {
	f.n, f.last, f.notReady = f.n+1, time.Now(), errors.Is(err, core.ErrNotReady)
}

// end returns the earliest time of the next attempt. The documented wait doubles from 200 ms to 20 s, or 2 s for a
// receiver that is not ready. Half of it is random.
func (f *failures) end() time.Time {
	const least, longest, notReady, most = 200 * time.Millisecond, 20 * time.Second, 2 * time.Second, 10
	wait := min(least<<min(f.n-1, most), longest)
	if f.notReady {
		wait = min(wait, notReady)
	}
	return f.last.Add(wait / 2)
}

// path counts the silences of a sender that a receiver may see.
type path struct {
	heard    time.Time
	silences int
}

func (p *path) hear(silence time.Duration) {
	if !p.heard.IsZero() && time.Since(p.heard) > silence {
		p.silences++
	}
	p.heard = time.Now()
}

// Agent returns the record of a new agent process.
func (h *History) Agent(runtime, epoch string, numbered bool) *Agent {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := &Agent{
		history: h, runtime: runtime, epoch: epoch, numbered: numbered, from: time.Now(), managers: make(map[core.Manager]*lane),
	}
	h.agents = append(h.agents, a)
	return a
}

func (a *Agent) lane(manager core.Manager) *lane {
	l := a.managers[manager]
	if l == nil {
		l = &lane{
			contents: make(map[string]core.WatchEvent), late: make(map[uint64]bool), tooLarge: make(map[uint64]bool), refused: make(map[string]*failures), owners: make(map[types.NamespacedName]bool),
		}
		a.managers[manager] = l
	}
	return l
}

// Killed records that the process is killed. Its earlier reports no longer count.
func (a *Agent) Killed() {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()

	for _, l := range a.managers {
		l.named = time.Time{}
	}
}

// Connected records a new connection.
func (a *Agent) Connected() {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	a.conns++
}

// Missed records a canary write of this agent for which the API server got no answer of any agent.
// The next answered write shows that the watch path works again, and leads to a resync.
func (a *Agent) Missed() {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()

	a.missed++
}

// Offered records an event from a change source.
func (a *Agent) Offered(manager core.Manager, resync bool) {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	a.lane(manager).offered.add(resync)
}

func (n *elements) add(resync bool) {
	if resync {
		n.resyncs++
	} else {
		n.changes++
	}
}

// Sent checks the numbers and the time of a batch before it is sent.
func (a *Agent) Sent(manager core.Manager, batch core.Batch) {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	if !a.numbered {
		return
	}
	l := a.lane(manager)
	if batch.Heartbeat != nil {
		l.named = time.Time{} // It arrives before its answer does.
	}
	if !slices.Contains(a.history.promise.Managers, manager) || a.history.promise.Runtimes[a.runtime].Invented {
		return // The outbox may evict a manager that is not configured. Its numbers then start again.
	}
	a.checkTime(manager, &l.failed)
	for i := range batch.Events {
		a.number(l, &batch.Events[i])
		if f := l.refused[batch.Events[i].ID]; f != nil {
			a.checkTime(manager, f)
		}
	}
	if beat := batch.Heartbeat; beat != nil && beat.Sequence != l.highest && !l.waits(beat.Sequence, batch) {
		a.history.violate("numbers", "%s: a heartbeat has the sequence %d, the last number is %d", a.epoch, beat.Sequence, l.highest)
	}
}

// waits reports whether a heartbeat is sent alone while each number above the number that it names
// waits for a smaller batch: nothing of a batch that is too large has arrived. After any other
// failure, the number may have been seen.
func (l *lane) waits(named uint64, batch core.Batch) bool {
	if len(batch.Events) > 0 {
		return false
	}
	for number := named + 1; number <= l.highest; number++ {
		if !l.tooLarge[number] {
			return false
		}
	}
	return named < l.highest
}

// number checks that numbers rise by one, and that each ID belongs to one content.
func (a *Agent) number(l *lane, event *core.Numbered) {
	switch {
	case event.Sequence == l.highest+1:
		l.highest++
	case event.Sequence == 0 || event.Sequence > l.highest:
		a.history.violate("numbers", "%s: number %d follows %d", a.epoch, event.Sequence, l.highest)
		l.highest = max(l.highest, event.Sequence)
	}
	if said, ok := l.contents[event.ID]; ok && said != event.WatchEvent {
		a.history.violate("numbers", "%s: the ID %s has two contents", a.epoch, event.ID)
	}
	l.contents[event.ID] = event.WatchEvent
}

// Scrapes records that the accounts are read from now on.
func (a *Agent) Scrapes() {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	for _, l := range a.managers {
		l.scraped = l.offered.changes + l.offered.resyncs
	}
}

// checkTime requires that an attempt waits after failures. New key material ends each wait, and a call may begin in the
// moment of a failure.
func (a *Agent) checkTime(manager core.Manager, f *failures) {
	now := time.Now()
	h := a.history
	if f.n > 0 && now.After(f.last) && now.Before(f.end()) && !h.promise.Rotates && len(h.promise.Expired) == 0 {
		h.violate("economy", "%s sends to %s at %s after %d failures, the last at %s, want no attempt before %s",
			a.epoch, manager, h.since(now), f.n, h.since(f.last), h.since(f.end()))
	}
}

// Attempted records an attempt to send, and its answer.
func (a *Agent) Attempted(manager core.Manager, batch core.Batch, started time.Time, err error) {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	l := a.lane(manager)
	if batch.Heartbeat != nil {
		l.named = time.Time{} // It may have arrived.
	}
	var some core.EventErrors
	whole := err != nil && !errors.As(err, &some)
	switch {
	case !whole || core.IsPermanent(err):
		if l.failed.n > 0 && len(batch.Events) > 0 {
			l.recoveries++
		}
		l.failed = failures{}
	case !started.Before(l.failed.last): // The failures of concurrent calls count once.
		l.failed.add(err)
	}
	if whole {
		if core.IsPermanent(err) { // All others wait with a failed batch.
			l.noteLate(&batch)
		}
		for i := range batch.Events {
			number := batch.Events[i].Sequence
			hidden, known := l.tooLarge[number]
			l.tooLarge[number] = errors.Is(err, core.ErrTooLarge) && (hidden || !known)
		}
		return
	}
	for i := range batch.Events {
		l.tooLarge[batch.Events[i].Sequence] = false
	}
	dropped := a.history.dropped[pair{a.runtime, manager}]
	if dropped && !l.dropping {
		l.drops++
	}
	if l.dropping = dropped; dropped {
		return
	}
	if a.isUnheard(&batch, some) {
		l.noteLate(&batch)
		l.take(&batch, some)
		return
	}
	l.path.hear(a.history.silence(a.runtime))
	ofRuntime := a.history.path(a.runtime, manager)
	ofRuntime.hear(a.history.silence(a.runtime))
	if batch.Heartbeat != nil && batch.Heartbeat.Leaving { // Only the other processes count from now on.
		ofRuntime.heard = a.history.heardOfOthers(a, manager)
	}
	l.take(&batch, some)
	if batch.Heartbeat != nil && some[len(batch.Events)] == nil && !batch.Heartbeat.Leaving {
		l.backlog, l.named = batch.Heartbeat.Pending, time.Now()
	}
	a.history.count(a, manager, &batch, some)
}

// isUnheard reports whether the verifier may have let nothing of a batch pass, because it panics.
func (a *Agent) isUnheard(batch *core.Batch, refused core.EventErrors) bool {
	elements := len(batch.Events)
	if batch.Heartbeat != nil {
		elements++
	}
	return a.history.promise.Runtimes[a.runtime].Panics && len(refused) == elements
}

// noteLate notes the numbers of a batch, which the receiver has not seen in their order.
func (l *lane) noteLate(batch *core.Batch) {
	for i := range batch.Events {
		l.late[batch.Events[i].Sequence] = true
	}
}

// heardOfOthers returns when another process of the runtime was heard last, the zero time if none was.
func (h *History) heardOfOthers(but *Agent, manager core.Manager) (last time.Time) {
	for _, a := range h.agents {
		if l := a.managers[manager]; a != but && a.runtime == but.runtime && l != nil {
			last = latest(last, l.path.heard)
		}
	}
	return last
}

// take counts the elements that the receiver took.
func (l *lane) take(batch *core.Batch, refused core.EventErrors) {
	for i := range batch.Events {
		event := &batch.Events[i]
		if errors.Is(refused[i], core.ErrNotSent) {
			continue
		}
		if err := refused[i]; err != nil {
			if l.refused[event.ID] == nil {
				l.refused[event.ID] = new(failures)
			}
			l.refused[event.ID].add(err)
			continue
		}
		delete(l.refused, event.ID)
		l.taken.add(event.Resync)
		if event.Resync {
			l.owners[event.Owner] = true
		}
	}
	if batch.Heartbeat != nil && refused[len(batch.Events)] == nil {
		l.taken.beats++
	}
}

// Balance checks that the account of a manager adds up.
func (a *Agent) Balance(manager core.Manager, c Account) {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	sum := c["delivered_total"] + c["coalesced_total"] + c["dropped_total"] + c["pending"]
	if sum != c["accepted_total"] || c["pending"] < 0 {
		a.history.violate("balance", "%s, %s: %v", a.epoch, manager, c)
	}
	promise := &a.history.promise
	served := slices.Contains(promise.Managers, manager) && !promise.Runtimes[a.runtime].Invented
	if offered := int64(a.lane(manager).scraped); served && c["accepted_total"] < offered {
		a.history.violate("balance", "%s, %s: %d events were offered, %d are accounted for", a.epoch, manager, offered, c["accepted_total"])
	}
	a.lane(manager).account = c
}

// Ended records the end of the process.
func (a *Agent) Ended(killed bool, lines int64) {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	a.to = time.Now()
	a.killed = killed
	a.lines = lines
}
