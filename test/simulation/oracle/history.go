// Package oracle judges a schedule of the simulation from the guarantees of this project alone:
// safety, liveness, isolation, economy and truth. It knows no code but the types of core.
package oracle

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Promise is what a schedule allows to expect.
type Promise struct {
	// Runtimes are all that exist.
	Runtimes map[string]Runtime
	Managers []core.Manager
	// Watches has the managers of each object.
	Watches map[string][]core.Manager
	// Faults is the number of faults that end, Windows are the times in which they last.
	Faults  int
	Windows []Window
	// Expired has the times in which runtimes have no valid certificate.
	Expired map[string]Window
	// Detours is the number of replicas that a request may reach although they do not lead.
	Detours int
	// Backlog is the time that an operator needs for all objects, one after the other.
	Backlog time.Duration
	// Full is whether an agent may have no memory for a review, which then has a resync that stands in.
	Full bool
	// Lies is whether events are acknowledged that were not delivered.
	Lies bool
	// Refusals is the number of faults in which a gateway refuses each event for itself. A heartbeat may then arrive
	// before the resync of which it states the number.
	Refusals int
	// Resent is whether answers get lost, so that the same request comes several times.
	Resent bool
	// Tidy is whether each process ends with nothing to send, and has a successor soon.
	Tidy bool
	// Repeats is whether requests arrive a second time, much later.
	Repeats bool
	// Rate and Burst bound the requests of a runtime in a second, and at once. 0: nothing comes near the bounds.
	Rate, Burst int
	// Refused has the objects with events that are refused for ever.
	Refused map[string]bool
}

// Runtime is what can be expected of one runtime.
type Runtime struct {
	// Numbered is whether events have numbers, and heartbeats are sent.
	Numbered bool
	// Canary is whether the agent proves that it is called.
	Canary bool
	// Small has the managers with so many objects that the agent may drop events for want of memory.
	Small map[core.Manager]bool
	// FallsBack is whether the runtime may speak an older contract in the end.
	FallsBack bool
	// Learns is whether the agent learns its managers from events.
	Learns bool
	// Loses is whether an agent is killed and never replaced.
	Loses bool
	// Lazy is whether a new agent asks for no resync, so that the control plane asks for it and for its resend.
	Lazy bool
	// Refused is whether the runtime itself is refused for ever: it is its own fault if nothing is seen.
	Refused bool
}

// Window is a time from the beginning of the schedule on.
type Window struct {
	From, To time.Duration
	// Refuses is the runtime of which nothing else happens than that connections are refused. Its agents
	// come back soon after.
	Refuses string
	// Renews is whether the end of the window is known to the agents, which come back at once.
	Renews bool
}

// Violation is a guarantee that did not hold.
type Violation struct {
	Rule string
	Text string
}

// String returns the rule and the text.
func (v Violation) String() string { return v.Rule + ": " + v.Text }

// target is an object and a manager that watches it.
type target struct {
	runtime, object string
	manager         core.Manager
}

type commit struct {
	version int
	at      time.Time
	delay   time.Duration
	blind   bool
	paced   bool
}

type look struct {
	version int
	at      time.Time
}

type sample struct {
	at            time.Time
	runtime       string
	manager       core.Manager
	state, reason string
}

// outage is a time in which a write in a runtime would not be seen, for one cause.
type outage struct {
	runtime, cause string
	from, to       time.Time // to is zero while it lasts
}

// pair is a runtime and a manager.
type pair struct {
	runtime string
	manager core.Manager
}

type resyncKey struct {
	operator string
	manager  core.Manager
	cause    string
}

// History is what happened. Its methods may be called concurrently.
type History struct {
	promise Promise
	began   time.Time

	mu      sync.Mutex
	calm    time.Time
	commits map[[2]string][]commit
	looks   map[target][]look
	samples []sample
	outages []*outage
	agents  []*Agent
	resyncs map[resyncKey]int
	changed map[string]bool      // objects with a write that changes something
	asked   map[pair][]time.Time // resyncs that runtimes asked for
	waits   map[pair]time.Time   // until which a sender is to wait
	found   []Violation
}

// New returns an empty history that begins now.
func New(promise Promise) *History {
	return &History{
		promise: promise, began: time.Now(), commits: make(map[[2]string][]commit),
		looks: make(map[target][]look), resyncs: make(map[resyncKey]int), changed: make(map[string]bool),
		asked: make(map[pair][]time.Time), waits: make(map[pair]time.Time),
	}
}

func (h *History) violate(rule, format string, args ...any) {
	h.found = append(h.found, Violation{rule, fmt.Sprintf(format, args...)})
}

// since is the virtual time of a moment, for texts.
func (h *History) since(at time.Time) time.Duration { return at.Sub(h.began).Round(time.Millisecond) }

// Commit notes that etcd has a new version of an object, that long after its review. Blind means
// that nothing can learn of it: there was no webhook, and nothing finds that out. Paced means that a
// resync stands in for its event.
func (h *History) Commit(runtime, object string, version int, delay time.Duration, blind, paced bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	key := [2]string{runtime, object}
	h.commits[key] = append(h.commits[key], commit{version, time.Now(), delay, blind, paced})
}

// Changes notes that a write to an object is reviewed that changes something. A dry run does not.
func (h *History) Changes(object string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.changed[object] = true
}

// Charged checks that a runtime is answered within its share. Served is the number of answers that do not tell
// it to wait, within a time.
func (h *History) Charged(runtime string, served int, within time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if most := h.promise.Burst + int(float64(h.promise.Rate)*(within.Seconds()+1)); served > most {
		h.violate("share", "%s was served %d times within %s, want at most %d", runtime, served, within, most)
	}
}

// Requested checks that a request does not come before the time that its sender was told.
func (h *History) Requested(runtime string, manager core.Manager) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if until := h.waits[pair{runtime, manager}]; time.Now().Before(until) {
		h.violate("economy", "%s asks for %s at %s, although it is to wait until %s", runtime, manager, h.since(time.Now()), h.since(until))
	}
}

// Waits notes that a sender is told to wait.
func (h *History) Waits(runtime string, manager core.Manager, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.waits[pair{runtime, manager}] = time.Now().Add(wait)
}

// Connected checks that the present key material connects with each replica.
func (h *History) Connected(replica string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if err != nil {
		h.violate("rotation", "%s does not follow the key material: %v", replica, err)
	}
}

// Looked notes that the operator has read an object for a manager.
func (h *History) Looked(runtime string, manager core.Manager, object string, version int) {
	h.mu.Lock()
	defer h.mu.Unlock()

	key := target{runtime, object, manager}
	h.looks[key] = append(h.looks[key], look{version, time.Now()})
}

// Delivered checks that a runtime triggers itself only.
func (h *History) Delivered(sender, triggered string, manager core.Manager, event core.WatchEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if event.Resync {
		h.asked[pair{sender, manager}] = append(h.asked[pair{sender, manager}], time.Now())
	}

	if sender != triggered {
		h.violate("trigger", "%s triggered %s", sender, triggered)
	}

	if !event.Resync && !h.changed[event.Watched.Name] {
		h.violate("economy", "an event for %s, of which nothing changed", event.Watched.Name)
	}

	if w, ok := h.promise.Expired[sender]; ok && !event.Resync && h.within(w) {
		h.violate("trigger", "%s triggered with an expired certificate at %s", sender, h.since(time.Now()))
	}

	if !event.Resync && !strings.HasPrefix(event.Watched.Name, triggered+"-") {
		h.violate("trigger", "object %s came as one of %s", event.Watched.Name, triggered)
	}
}

func (h *History) longestAnswer() time.Duration {
	if h.promise.Full {
		return longestAnswer + roomPatience
	}

	return longestAnswer
}

// within reports whether a window lasts now. A request may be under way when it begins.
func (h *History) within(w Window) bool {
	now := time.Since(h.began)

	return now > w.From+time.Second && now < w.To
}

// Answered checks the answer to an API server.
func (h *History) Answered(runtime string, took time.Duration, body string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if took > h.longestAnswer() {
		h.violate("answer", "the API server of %s waited for %s at %s", runtime, took, h.since(time.Now()))
	}

	if strings.Contains(body, `"allowed":false`) {
		h.violate("answer", "a write in %s was denied", runtime)
	}
}

// Break notes that writes in a runtime are not seen, until the returned function is called.
func (h *History) Break(runtime, cause string) (mend func()) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.open(runtime, cause) == nil {
		h.outages = append(h.outages, &outage{runtime: runtime, cause: cause, from: time.Now()})
	}

	return func() { h.Mend(runtime, cause) }
}

// Mend ends what Break began.
func (h *History) Mend(runtime, cause string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if o := h.open(runtime, cause); o != nil {
		o.to = time.Now()
	}
}

func (h *History) open(runtime, cause string) *outage {
	for _, o := range h.outages {
		if o.runtime == runtime && o.cause == cause && o.to.IsZero() {
			return o
		}
	}

	return nil
}

// Elected notes that an operator leads.
func (h *History) Elected(string) {
	for runtime := range h.promise.Runtimes {
		h.Mend(runtime, "no leader")
	}
}

// BreakAll notes that no write of any runtime is seen.
func (h *History) BreakAll(cause string) {
	for runtime := range h.promise.Runtimes {
		h.Break(runtime, cause)
	}
}

// Calm notes that all faults are over.
func (h *History) Calm() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.calm = time.Now()
}

// State notes the freshness that an operator believes in.
func (h *History) State(runtime string, manager core.Manager, state, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.samples = append(h.samples, sample{time.Now(), runtime, manager, state, reason})
}

// Resynced notes a resync that the control plane asked for.
func (h *History) Resynced(operator string, manager core.Manager, cause string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.resyncs[resyncKey{operator, manager, cause}]++
}
