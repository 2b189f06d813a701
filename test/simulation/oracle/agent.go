package oracle

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Account counts the events of one manager by their fate.
type Account struct{ Accepted, Delivered, Coalesced, Dropped, Pending int64 }

// Add adds the value of a metric.
func (c *Account) Add(fate string, n int64) {
	switch fate {
	case "accepted_total":
		c.Accepted += n
	case "delivered_total":
		c.Delivered += n
	case "coalesced_total":
		c.Coalesced += n
	case "dropped_total":
		c.Dropped += n
	case "pending":
		c.Pending += n
	}
}

// Agent records one agent process. Its methods may be called concurrently.
type Agent struct {
	history  *History
	runtime  string
	epoch    string
	numbered bool
	from, to time.Time
	killed   bool
	lines    int64
	managers map[core.Manager]*lane
}

// lane records the traffic of an agent with one manager.
type lane struct {
	offered, attempts, whole int
	scraped                  int // of offered, when the last scrape began
	account                  Account
	highest                  uint64
	contents                 map[string]core.WatchEvent
	ids                      map[uint64]string
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
		l = &lane{contents: make(map[string]core.WatchEvent), ids: make(map[uint64]string)}
		a.managers[manager] = l
	}
	return l
}

// Offered records an event from a change source.
func (a *Agent) Offered(manager core.Manager) {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	a.lane(manager).offered++
}

// Sent checks the numbers of a batch before it is sent.
func (a *Agent) Sent(manager core.Manager, batch core.Batch) {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	if !a.numbered {
		return
	}
	if !slices.Contains(a.history.promise.Managers, manager) {
		return // The outbox may evict a manager without an operator. Its numbers then start again.
	}
	l := a.lane(manager)
	for i := range batch.Events {
		a.number(l, &batch.Events[i])
	}
	if beat := batch.Heartbeat; beat != nil && beat.Sequence != l.highest {
		a.history.violate("numbers", "%s: a heartbeat has the sequence %d, the last number is %d", a.epoch, beat.Sequence, l.highest)
	}
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
		l.scraped = l.offered
	}
}

// Attempted records an attempt to send.
func (a *Agent) Attempted(manager core.Manager, err error) {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	l := a.lane(manager)
	l.attempts++
	if err != nil {
		l.whole++
	}
}

// Balance checks that the account of a manager adds up.
func (a *Agent) Balance(manager core.Manager, c Account) {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	if sum := c.Delivered + c.Coalesced + c.Dropped + c.Pending; sum != c.Accepted || c.Pending < 0 {
		a.history.violate("balance", "%s, %s: %+v", a.epoch, manager, c)
	}
	promise := &a.history.promise
	served := slices.Contains(promise.Managers, manager) && !promise.Runtimes[a.runtime].Invented
	if offered := int64(a.lane(manager).scraped); served && c.Accepted < offered {
		a.history.violate("balance", "%s, %s: %d events were offered, %d are accounted for", a.epoch, manager, offered, c.Accepted)
	}
	a.lane(manager).account = c
}

// Ended records the end of the process.
func (a *Agent) Ended(killed bool, lines int64) {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	a.to, a.killed, a.lines = time.Now(), killed, lines
}
