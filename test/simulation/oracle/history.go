// Package oracle judges a schedule of the simulation from the guarantees of this project alone:
// safety, liveness, isolation, economy and truth. It depends on no code except the types of core.
package oracle

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Promise contains the expectations of one schedule.
type Promise struct {
	// Runtimes contains every runtime by its name.
	Runtimes map[string]Runtime
	Managers []core.Manager
	// Faults counts the faults that end. Windows contains their times.
	Faults  int
	Windows []Window
	// Expired contains the windows in which a runtime has no valid certificate.
	Expired map[string]Window
	// Followers is the number of replicas that do not lead. A request may reach them first.
	Followers int
	// Replicas is the number of replicas that work.
	Replicas int
	// Deletions counts the faults in which a fleet forgets a runtime.
	Deletions int
	// NATS says whether a stream stores batches while no operator accepts them.
	NATS bool
	// NewLeaders says whether another replica may become the leader.
	NewLeaders bool
	// Backlog is the time that one worker needs to reconcile all objects.
	Backlog time.Duration
	// ReviewMemoryFull says whether strangers may use up the memory for reviews. A resync replaces
	// a review without memory.
	ReviewMemoryFull bool
	// FalseAcks says whether a gateway acknowledges events that it does not forward.
	FalseAcks bool
	// Refusals counts the faults in which a gateway refuses individual events.
	Refusals int
	// AnswersLost says whether answers may get lost, so that agents repeat requests.
	AnswersLost bool
	// Holds says whether a stream holds heartbeats while a map function hangs. Each agent may then
	// count as lost once.
	Holds bool
	// CleanStops says whether each agent stops with nothing pending, and restarts soon.
	CleanStops bool
	// RequestsRepeat says whether a gateway repeats requests, up to 30 s later.
	RequestsRepeat bool
	// Loud says whether one runtime has more changes than the worker can reconcile.
	Loud bool
	// Short says whether all faults are too short for a silence.
	Short bool
	// Rotates says whether key material is replaced, and may be broken for a while.
	Rotates bool
	// Rate and Burst are the rate limit of a runtime, in requests per second and in requests in one
	// burst. 0 means that the limit is not reached.
	Rate, Burst int
	// Refused contains the objects with events that are refused permanently.
	Refused map[string]bool
	// HandedBack contains the objects in Refused for which the sender must learn of the refusal. A
	// panic concerns only the operator.
	HandedBack map[string]bool
}

// Runtime contains the expectations of one runtime.
type Runtime struct {
	// Numbered says whether events have numbers, and heartbeats are sent.
	Numbered bool
	// Canary says whether the agent has a canary.
	Canary bool
	// Rare says whether heartbeats are sent only every 5 min.
	Rare bool
	// Overflows contains the managers with more keys than their share of MaxKeys. Their events may
	// be dropped.
	Overflows map[core.Manager]bool
	// FallsBack says whether the runtime may use an older contract in the end.
	FallsBack bool
	// Learns says whether the agent learns its managers from events.
	Learns bool
	// Invented says whether invented managers may take all places of an agent that learns. Events
	// without a place count for no manager.
	Invented bool
	// Loses says whether an agent is killed and never replaced.
	Loses bool
	// Refused says whether the runtime itself is refused permanently. Its reconciles are not
	// measured.
	Refused bool
	// Lies says whether the runtime invents its heartbeats. The states of this runtime mean
	// nothing.
	Lies bool
	// Expected says whether the control plane expects heartbeats to each manager, so that it knows
	// all managers.
	Expected bool
	// Panics says whether the verifier panics for a while for all of the runtime. The fleet does
	// not observe a request of which the verifier accepts nothing.
	Panics bool
	// Callers says whether the webhook demands a client certificate, so that reviews prove the
	// runtime fresh.
	Callers bool
}

// Window is the time of a fault, from the start of the schedule.
type Window struct {
	From, To time.Duration
	// Settles is the last part of the window: the fault has ended, and its effects may continue.
	Settles time.Duration
	// Refuses is the runtime with refused connections, if that is the only fault of the window. Its agents
	// connect again within their backoff.
	Refuses string
	// Manager is the only manager that the fault affects, "" if it affects all managers.
	Manager core.Manager
	// Renews says whether new key material ends the window. The agents then connect immediately.
	Renews bool
}

// Violation is a broken rule.
type Violation struct {
	Rule string
	Text string
}

// String returns the rule and the text.
func (v Violation) String() string { return v.Rule + ": " + v.Text }

type target struct {
	runtime, object string
	manager         core.Manager
}

// commit is a write that the API server has committed.
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
	named   bool
}

type sample struct {
	at            time.Time
	runtime       string
	manager       core.Manager
	state, reason string
}

// outage is a time in which no write of a runtime reaches the control plane, for one cause.
type outage struct {
	runtime, cause string
	manager        core.Manager // "": all
	from, to       time.Time    // to is zero while it lasts
}

type pair struct {
	runtime string
	manager core.Manager
}

type resyncKey struct {
	operator string
	manager  core.Manager
	cause    string
}

// History records a schedule. Its methods may be called concurrently.
type History struct {
	promise Promise
	began   time.Time

	mu      sync.Mutex
	calm    time.Time
	commits map[target][]commit
	looks   map[target][]look
	samples []sample
	outages []*outage
	agents  []*Agent
	resyncs map[resyncKey]int
	changed map[target][]time.Time              // reviews of writes that change something, without runtime
	asked   map[pair][]time.Time                // resyncs that agents requested
	waits   map[pair]time.Time                  // end of the last Retry-After
	paths   map[pair]*path                      // of all agents of a runtime
	dropped map[pair]bool                       // whether a gateway dropped the last request, and acknowledged it
	failed  map[string]map[core.WatchEvent]bool // events of a runtime that the operator did not take immediately
	polls   []poll
	handled []handling // resyncs that reach the operator
	counted []counting // refused events that an agent counts as delivered
	elected time.Time  // when the present leader was elected
	found   []Violation
}

// New returns an empty history that starts now.
func New(promise Promise) *History {
	return &History{
		promise: promise, began: time.Now(), commits: make(map[target][]commit),
		looks: make(map[target][]look), resyncs: make(map[resyncKey]int), changed: make(map[target][]time.Time),
		asked: make(map[pair][]time.Time), waits: make(map[pair]time.Time), paths: make(map[pair]*path), dropped: make(map[pair]bool),
		failed: make(map[string]map[core.WatchEvent]bool),
	}
}

func (h *History) violate(rule, format string, args ...any) {
	h.found = append(h.found, Violation{rule, fmt.Sprintf(format, args...)})
}

// since returns the virtual time of a moment, for messages.
func (h *History) since(at time.Time) time.Duration { return at.Sub(h.began).Round(time.Millisecond) }

// Commit records a new version of an object in etcd, with the delay since its review, for a manager
// that watches the object before or after it. Blind means that no webhook was called and no canary
// notices it. Paced means that a resync replaces the event.
func (h *History) Commit(runtime, object string, manager core.Manager, version int, delay time.Duration, blind, paced bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := target{runtime, object, manager}
	h.commits[key] = append(h.commits[key], commit{version, time.Now(), delay, blind, paced})
}

// Changes records the review of a write that changes what a manager watches. A dry run does not.
func (h *History) Changes(object string, manager core.Manager) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := target{object: object, manager: manager}
	h.changed[key] = append(h.changed[key], time.Now())
}

// Kept reports a violation if agents that keep their webhooks have not put them back in time.
func (h *History) Kept(runtime string, isKept bool, problem string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !isKept {
		h.violate("webhooks", "those of %s are not back at %s: %s", runtime, h.since(time.Now()), problem)
	}
}

// Served reports a violation if a runtime got more answers than its rate limit allows. Answers with 429 do not
// count.
func (h *History) Served(runtime string, served int, within time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if most := h.promise.Burst + int(float64(h.promise.Rate)*(within.Seconds()+1)); served > most {
		h.violate("share", "%s got %d answers within %s, want at most %d", runtime, served, within, most)
	}
}

// Requested reports a violation if a request comes before the end of the last Retry-After.
func (h *History) Requested(runtime string, manager core.Manager) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if until := h.waits[pair{runtime, manager}]; time.Now().Before(until) {
		h.violate("economy", "%s sends a request for %s at %s, before the end of Retry-After at %s", runtime, manager, h.since(time.Now()), h.since(until))
	}
}

// Dropped records that a gateway acknowledges a request and drops it, or that it forwards one.
func (h *History) Dropped(runtime string, manager core.Manager, dropped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropped[pair{runtime, manager}] = dropped
}

// Failed records that the code of the operator did not take an event.
func (h *History) Failed(runtime string, event core.WatchEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed[runtime] == nil {
		h.failed[runtime] = make(map[core.WatchEvent]bool)
	}
	h.failed[runtime][event] = true
}

// path returns the path of a runtime.
func (h *History) path(runtime string, manager core.Manager) *path {
	key := pair{runtime, manager}
	if h.paths[key] == nil {
		h.paths[key] = new(path)
	}
	return h.paths[key]
}

// silence returns the shortest time without requests that a receiver may take for a silence: two intervals, or the time
// to connect again where heartbeats are rare. Requests may be under way for a while.
func (h *History) silence(runtime string) time.Duration {
	const usual, rare = 50 * time.Second, 30 * time.Second
	if h.promise.Runtimes[runtime].Rare {
		return rare
	}
	return usual
}

// RetryAfter records an answer with Retry-After.
func (h *History) RetryAfter(runtime string, manager core.Manager, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waits[pair{runtime, manager}] = time.Now().Add(wait)
}

// Connected reports a violation if a replica of the operator rejects the new key material.
func (h *History) Connected(replica string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.violate("rotation", "%s rejects the new key material: %v", replica, err)
	}
}

// Looked records that the operator has read an object for a manager. Named says whether that
// reconcile is for the object alone.
func (h *History) Looked(runtime string, manager core.Manager, object string, version int, named bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := target{runtime, object, manager}
	h.looks[key] = append(h.looks[key], look{version, time.Now(), named})
}

// Delivered records a delivery, and reports a violation if a runtime triggers another runtime.
func (h *History) Delivered(sender, triggered string, manager core.Manager, event core.WatchEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if event.Resync {
		h.asked[pair{sender, manager}] = append(h.asked[pair{sender, manager}], time.Now())
	}
	if sender != triggered {
		h.violate("trigger", "%s triggered %s", sender, triggered)
	}
	if !event.Resync && len(h.changed[target{object: event.Watched.Name, manager: manager}]) == 0 {
		h.violate("economy", "an event for %s, which did not change for %s", event.Watched.Name, manager)
	}
	if w, ok := h.promise.Expired[sender]; ok && !event.Resync && h.within(w) {
		h.violate("trigger", "%s triggered with an expired certificate at %s", sender, h.since(time.Now()))
	}
	if !event.Resync && !strings.HasPrefix(event.Watched.Name, triggered+"-") {
		h.violate("trigger", "object %s came as one of %s", event.Watched.Name, triggered)
	}
}

func (h *History) longestAnswer() time.Duration {
	if h.promise.ReviewMemoryFull {
		return longestAnswer + roomPatience
	}
	return longestAnswer
}

// within reports whether now is in a window. A request may be in flight at its start.
func (h *History) within(w Window) bool {
	const handled = 5 * time.Second // The sender is verified when the request arrives.
	now := time.Since(h.began)
	return now > w.From+handled+time.Second && now < w.To
}

// Answered reports a violation if an API server waits too long, or if a write is denied.
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

// Break records the start of an outage. The returned function records its end.
func (h *History) Break(runtime, cause string) (mend func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open(runtime, cause) == nil {
		h.outages = append(h.outages, &outage{runtime: runtime, cause: cause, from: time.Now()})
	}
	return func() { h.Mend(runtime, cause) }
}

// BreakManager records the start of an outage for one manager. The returned function records its end.
func (h *History) BreakManager(runtime string, manager core.Manager, cause string) (mend func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := &outage{runtime: runtime, cause: cause, manager: manager, from: time.Now()}
	h.outages = append(h.outages, o)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		o.to = time.Now()
	}
}

// concerns reports whether an outage affects a manager.
func (o *outage) concerns(manager core.Manager) bool { return o.manager == "" || o.manager == manager }

// Mend records the end of an outage.
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

// Elected records that an operator leads.
func (h *History) Elected(string) {
	h.mu.Lock()
	h.elected = time.Now()
	h.mu.Unlock()
	for runtime := range h.promise.Runtimes {
		h.Mend(runtime, "no leader")
	}
}

// BreakAll records the start of an outage of all runtimes.
func (h *History) BreakAll(cause string) {
	for runtime := range h.promise.Runtimes {
		h.Break(runtime, cause)
	}
}

// Calm records that all faults have ended.
func (h *History) Calm() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calm = time.Now()
}

// State records the freshness in the fleet of the leader.
func (h *History) State(runtime string, manager core.Manager, state, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.samples = append(h.samples, sample{time.Now(), runtime, manager, state, reason})
}

// Resynced records a resync that a fleet requested.
func (h *History) Resynced(operator string, manager core.Manager, cause string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resyncs[resyncKey{operator, manager, cause}]++
}
