package oracle

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The documented intervals of polling, with the tenth that is random: 30 min while a runtime is fresh for all its
// managers, 5 min while it is fresh or unproved, and otherwise 1 min.
const (
	freshPoll    = 27 * time.Minute
	leastProved  = 270 * time.Second
	mostUnproved = 330 * time.Second
	mostPoll     = 66 * time.Second
)

// forgotten is longer than a call of a handler for a runtime that is deleted meanwhile.
const forgotten = 10 * time.Second

type poll struct {
	at      time.Time
	runtime string
	after   time.Duration
}

type handling struct {
	at      time.Time
	runtime string
	manager core.Manager
}

type counting struct {
	at      time.Time
	epoch   string
	object  string
	manager core.Manager
}

// Polled records the interval of polling of a runtime, and the states of the same moment, one for each manager. It
// reports a violation if the interval does not follow the worst of them.
func (h *History) Polled(runtime string, states []string, after time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.polls = append(h.polls, poll{time.Now(), runtime, after})

	is := func(state string) bool { return slices.Contains(states, state) }
	wrong := false
	switch {
	case is("stale") || is("degraded"):
		wrong = after > mostPoll
	case is("unknown"): // Which managers a runtime has is learned from its requests.
	case is("unproved"):
		wrong = after < leastProved || after > mostUnproved
	default:
		wrong = after < freshPoll
	}
	if wrong {
		h.violate("poll", "%s is polled after %s at %s, and is %v for its managers", runtime, after, h.since(time.Now()), states)
	}
}

// checkPolls requires frequent polling in an outage of any manager.
func (h *History) checkPolls() {
	reported := make(map[*outage]bool)
	for _, p := range h.polls {
		for _, o := range h.outages {
			if !h.promise.Runtimes[p.runtime].Expected || o.runtime != p.runtime || reported[o] || !o.covers(p.at, h.patience(o)) {
				continue
			}
			most := mostPoll
			if o.cause == "webhook" && !h.promise.Runtimes[o.runtime].Canary {
				most = mostUnproved
			}
			if p.after > most && !h.isAfterFault(p.at) {
				reported[o] = true
				h.violate("poll", "%s is polled after %s at %s, want at most %s: broken since %s, %s %s",
					p.runtime, p.after, h.since(p.at), most, h.since(o.from), o.cause, o.manager)
			}
		}
	}
}

// isAfterFault reports whether some fault has just ended, even if its effects still continue. The first request after a
// silence may have events alone, which prove nothing, and the heartbeat that names the outage follows within its interval.
// A new agent that the API server does not call says so after 30 s.
func (h *History) isAfterFault(at time.Time) bool {
	return slices.ContainsFunc(h.promise.Windows, func(w Window) bool {
		end := h.began.Add(w.To)
		return at.After(end.Add(-w.Settles)) && at.Before(end.Add(2*inTime))
	})
}

// Backlog reports a violation if the number of events that wait for a manager in all runtimes is
// negative, or less than the sum that agents have certainly reported. No runtime hides the events
// of other runtimes.
func (h *History) Backlog(manager core.Manager, pending int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if least := h.reported(manager); pending < least {
		h.violate("backlog", "%d events wait for %s at %s, want at least %d", pending, manager, h.since(time.Now()), least)
	}
}

// reported is the sum of the last heartbeats of all honest agents, where nothing between the agent and the leader can
// make another one the last.
func (h *History) reported(manager core.Manager) (sum int64) {
	const recent = 15 * time.Second // The shortest time after which a replica counts as silent is longer.
	p := &h.promise
	if p.NATS || p.Replicas > 1 || p.Deletions > 0 || p.RequestsRepeat || p.FalseAcks {
		return 0
	}
	for _, a := range h.agents {
		l := a.managers[manager]
		r := p.Runtimes[a.runtime]
		if l == nil || r.Lies || r.FallsBack || !a.numbered || !a.to.IsZero() {
			continue
		}
		if l.named.After(h.elected) && time.Since(l.named) < recent {
			sum += l.backlog
		}
	}
	return sum
}

// Handled records that a resync of a runtime reaches the operator, whether or not the operator
// accepts it.
func (h *History) Handled(runtime string, manager core.Manager) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handled = append(h.handled, handling{time.Now(), runtime, manager})
}

// checkHandled requires that no resync of a runtime comes any more that the control plane has deleted.
func (h *History) checkHandled() {
	reported := make(map[*outage]bool)
	for _, c := range h.handled {
		for _, o := range h.outages {
			if o.runtime == c.runtime && o.cause == "runtime deleted" && !reported[o] && o.covers(c.at, forgotten) {
				reported[o] = true
				h.violate("economy", "a resync of %s for %s at %s, which was deleted at %s", c.runtime, c.manager, h.since(c.at), h.since(o.from))
			}
		}
	}
}

// count notes the events of a batch that an agent counts as delivered, and that the operator refuses for ever.
func (h *History) count(a *Agent, manager core.Manager, batch *core.Batch, refused core.EventErrors) {
	for i := range batch.Events {
		event := &batch.Events[i]
		if !event.Resync && refused[i] == nil && h.promise.HandedBack[event.Watched.Name] {
			h.counted = append(h.counted, counting{time.Now(), a.epoch, event.Watched.Name, manager})
		}
	}
}

// checkCounted requires that a sender learns of each refusal, far from faults: it must give the event its true fate.
func (h *History) checkCounted() {
	for _, c := range h.counted {
		if h.promise.FalseAcks || !h.isCalm(c.at, c.manager, nil) {
			continue
		}
		h.violate("fate", "%s counts an event for %s as delivered to %s at %s, which the operator refuses", c.epoch, c.object, c.manager, h.since(c.at))
		return
	}
}

// Called reports a violation if a webhook answers a caller with a certificate of a removed
// authority, or does not answer a caller with a certificate of its successor.
func (h *History) Called(agent string, former, present bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if former {
		h.violate("rotation", "%s answers a caller of an authority that was removed, at %s", agent, h.since(time.Now()))
	}
	if !present {
		h.violate("rotation", "%s does not answer a caller of the new authority, at %s", agent, h.since(time.Now()))
	}
}
