package oracle

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Bounds from the guarantees, or from defaults.
const (
	// longestAnswer bounds the answer to a review. Computing takes no virtual time.
	longestAnswer = 100 * time.Millisecond
	// roomPatience is added to it while a review waits for memory.
	roomPatience = 250 * time.Millisecond
	// prompt bounds the time from a commit to the reconcile, far from faults.
	prompt = 2 * time.Second
	// keysPoll is the time after which an agent uses new key material.
	keysPoll = 5 * time.Second
	// resyncWait bounds the time from a resync to the reconcile of the runtime.
	resyncWait = 10 * time.Second
	// pace is the shortest time between two resyncs of a manager (core/outbox).
	pace = 5 * time.Second
	// followerDelay is the longest delay by a replica that does not lead. It answers 503 with a
	// wait of up to 3.75 s, and a gateway may choose it several times in a row.
	followerDelay = 15 * time.Second
	// late bounds the time to the reconcile of a late commit: the last resend, and prompt.
	late = 37 * time.Second
	// inTime bounds the time from the last fault to the reconcile. If no commit is late, the bound
	// is soon, because a lost replica is noticed after 60 s.
	inTime = 90 * time.Second
	soon   = 72 * time.Second
	// givenUp is the same for an object with events that are refused for ever (GiveUpAfter).
	givenUp = 8 * time.Minute
	// noticed is the time after which a runtime in an outage must not be fresh. unproven is the same for a webhook
	// without a canary.
	noticed  = 2 * time.Minute
	unproven = 12 * time.Minute
	// natsReconnect is the longest time between two attempts to connect with a NATS server: a second, and its jitter.
	natsReconnect = 2 * time.Second
	// longestBackoff bounds the wait of an agent after failures.
	longestBackoff = 25 * time.Second
	// warmUp is the time after the start in which the strict bounds do not hold.
	warmUp = 90 * time.Second
	// shortDelay bounds the commits that are not late.
	shortDelay = 60 * time.Millisecond
)

// Check returns all violations.
func (h *History) Check() []Violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checkLiveness()
	h.checkTruth()
	h.checkStates()
	h.checkFinalStates()
	h.checkResyncs()
	h.checkWaits()
	h.checkPace()
	h.checkAgents()
	h.checkPolls()
	h.checkHandled()
	h.checkCounted()
	return h.found
}

// checkLiveness requires a look after each commit, within its bound.
func (h *History) checkLiveness() {
	for t, commits := range h.commits {
		for _, c := range commits {
			h.checkCommit(t, c, commits[len(commits)-1].version)
			h.checkRepeats(t, c)
		}
	}
}

// checkCommit checks one commit. Near a fault, only the last commit of an object counts.
func (h *History) checkCommit(t target, c commit, last int) {
	// The control plane has received the number of a refused event, so a false acknowledgement leaves no gap.
	if h.promise.FalseAcks && h.promise.Refused[t.object] {
		return
	}
	bound, strict := h.bound(t, c)
	if c.blind || !strict && c.version != last || h.isTraceless(t, c) {
		return
	}
	seen, ok := h.firstLook(t, c.version)
	switch {
	case !ok:
		h.violate("liveness", "%s: version %d of %s, committed at %s, was never looked at", t.manager, c.version, t.object, h.since(c.at))
	case seen.After(bound):
		h.violate("liveness", "%s: version %d of %s, committed at %s, was seen at %s, want %s",
			t.manager, c.version, t.object, h.since(c.at), h.since(seen), h.since(bound))
	}
}

// checkRepeats requires one reconcile of each replica for a change that is committed immediately,
// without another write or a fault near it. A stream repeats a message with a refused event as a
// whole, so it has no such bound.
func (h *History) checkRepeats(t target, c commit) {
	r := h.promise.Runtimes[t.runtime]
	if h.promise.NATS && len(h.promise.Refused) > 0 || c.delay > shortDelay || !r.Numbered || r.FallsBack || !h.isCalm(c.at, t.manager, nil) {
		return
	}
	near := func(at time.Time) bool { return at.Sub(c.at).Abs() < 2*late }
	endsReads := func(c handling) bool { return c.runtime == t.runtime && c.manager == t.manager && near(c.at) }
	if slices.ContainsFunc(h.handled, endsReads) {
		return // After a resync, an earlier read spares no reconcile.
	}
	reviews := slices.DeleteFunc(slices.Clone(h.changed[target{object: t.object, manager: t.manager}]), func(at time.Time) bool { return !near(at) })
	early, looks := h.countLooks(t, c, near)
	if len(reviews) == 1 && (looks > h.promise.Replicas || early > h.promise.Replicas) {
		h.violate("economy", "%d reconciles for version %d of %s, committed at %s, and %d that read too early, want %d of each at most",
			looks, c.version, t.object, h.since(c.at), early, h.promise.Replicas)
	}
}

// isTraceless reports whether the review of a commit may have gone to an agent that learns its managers, and either
// has no place for this one, or never reached it and is lost for ever.
func (h *History) isTraceless(t target, c commit) bool {
	r := h.promise.Runtimes[t.runtime]
	switch {
	case r.Invented && h.promise.FalseAcks: // An acknowledged manager keeps its place.
		return true
	case !r.Learns || !r.Loses:
		return false
	}
	reviewed := c.at.Add(-c.delay)
	return slices.ContainsFunc(h.agents, func(a *Agent) bool {
		l := a.managers[t.manager]
		ran := !reviewed.Before(a.from) && !reviewed.After(a.to)
		return a.runtime == t.runtime && a.killed && ran && l != nil && l.path.heard.IsZero()
	})
}

// bound returns the time by which a commit must be looked at. It is strict if no fault is near.
func (h *History) bound(t target, c commit) (bound time.Time, strict bool) {
	if h.promise.Refused[t.object] {
		return latest(c.at, h.calm).Add(givenUp), false
	}
	if w := h.refused(t, c.at); w != nil {
		var connects time.Duration
		if h.promise.NATS {
			connects = natsReconnect
		}
		back := connects + min(2*(w.To-w.From+connects), longestBackoff) + prompt + h.promise.Backlog
		if w.Renews {
			back = keysPoll + prompt + h.promise.Backlog
		}
		bound := latest(c.at, h.began.Add(w.To)).Add(back + time.Duration(h.promise.Followers)*followerDelay)
		if c.delay > shortDelay { // The event was sent before the window, and its resend comes after it.
			return latest(bound, c.at.Add(late)), false
		}
		return bound, false
	}
	small := h.promise.ReviewMemoryFull || h.promise.Runtimes[t.runtime].Overflows[t.manager]
	if h.isCalm(c.at, t.manager, nil) && (!small || h.isCalm(c.at.Add(late), t.manager, nil)) { // Other events put the resend of a resync off.
		bound := c.at.Add(time.Duration(h.promise.Followers)*followerDelay + h.promise.Backlog)
		if small || c.paced { // A resync may replace the event.
			bound = bound.Add(pace)
		}
		switch {
		case c.delay <= shortDelay:
			return bound.Add(prompt), true
		case small:
			return bound.Add(2 * late), true // The resend of a resync may also replace the event.
		default:
			return bound.Add(late), true
		}
	}
	if c.delay <= shortDelay {
		return latest(c.at, h.calm).Add(soon + h.promise.Backlog + time.Duration(h.promise.Followers)*followerDelay), false
	}
	return latest(c.at, h.calm).Add(inTime), false
}

// refused returns the window of refused connections at a moment, if no other fault is near.
func (h *History) refused(t target, at time.Time) *Window {
	for i := range h.promise.Windows {
		w := &h.promise.Windows[i]
		during := at.After(h.began.Add(w.From)) && at.Before(h.began.Add(w.To))
		if w.Refuses == t.runtime && during && h.isCalm(at, t.manager, w) && h.isCalm(h.began.Add(w.To), t.manager, w) {
			return w
		}
	}
	return nil
}

// isCalm reports whether no fault that a manager feels is near a moment, except one.
func (h *History) isCalm(at time.Time, manager core.Manager, but *Window) bool {
	if at.Sub(h.began) < warmUp || h.promise.Rate > 0 {
		return false
	}
	for i := range h.promise.Windows {
		w := &h.promise.Windows[i]
		felt := w.Manager == "" || w.Manager == manager
		if felt && w != but && at.Add(late).After(h.began.Add(w.From)) && at.Before(h.began.Add(w.To+2*inTime)) {
			return false
		}
	}
	return true
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (h *History) firstLook(t target, version int) (time.Time, bool) {
	for _, l := range h.looks[t] {
		if l.version >= version {
			return l.at, true
		}
	}
	return time.Time{}, false
}

// checkTruth requires that no runtime is fresh in an outage.
func (h *History) checkTruth() {
	told := make(map[*outage]bool)
	for _, s := range h.samples {
		if s.state != "fresh" {
			continue
		}
		for _, o := range h.outages {
			if o.runtime == s.runtime && o.concerns(s.manager) && o.covers(s.at, h.patience(o)) && !told[o] {
				told[o] = true
				h.violate("truth", "%s is fresh for %s at %s, broken since %s: %s",
					s.runtime, s.manager, h.since(s.at), h.since(o.from), o.cause)
			}
		}
	}
}

func (h *History) patience(o *outage) time.Duration {
	if o.cause == "webhook" && !h.promise.Runtimes[o.runtime].Canary {
		return unproven
	}
	return noticed
}

// covers reports whether an outage holds at a moment, and is older than a time.
func (o *outage) covers(at time.Time, lasted time.Duration) bool {
	return at.Sub(o.from) > lasted && (o.to.IsZero() || at.Before(o.to))
}

// checkStates requires the right state of each runtime far from any fault. An agent that learns its managers sends
// no heartbeats after a restart before its first review.
func (h *History) checkStates() {
	if h.promise.Replicas > 1 {
		return // Each replica sees a part of the heartbeats.
	}
	told := make(map[target]bool)
	for _, s := range h.samples {
		r := h.promise.Runtimes[s.runtime]
		t := target{runtime: s.runtime, manager: s.manager}
		if _, expires := h.promise.Expired[s.runtime]; told[t] || expires || r.Lies || r.Learns || r.FallsBack || r.Invented || h.isBroken(s) || !h.isCalm(s.at, s.manager, nil) {
			continue
		}
		if h.mayDegrade(r) && s.state == "degraded" {
			continue // Refused and dropped events hide no heartbeat.
		}
		if !r.allows(s) && (!h.promise.Rotates || s.reason != "key_material") {
			told[t] = true
			h.violate("state", "%s is %s for %s at %s, reason %q", s.runtime, s.state, s.manager, h.since(s.at), s.reason)
		}
	}
}

// mayDegrade reports whether events of a runtime may be dropped at any time.
func (h *History) mayDegrade(r Runtime) bool { return len(h.promise.Refused)+len(r.Overflows) > 0 }

// isBroken reports whether an outage without end holds, or ended less than inTime ago.
func (h *History) isBroken(s sample) bool {
	return slices.ContainsFunc(h.outages, func(o *outage) bool {
		return o.runtime == s.runtime && o.concerns(s.manager) && !s.at.Before(o.from) && (o.to.IsZero() || s.at.Before(o.to.Add(inTime)))
	})
}

// checkFinalStates checks the last state of each runtime.
func (h *History) checkFinalStates() {
	if h.promise.Replicas > 1 {
		return
	}
	final := make(map[target]sample)
	for _, s := range h.samples {
		final[target{runtime: s.runtime, manager: s.manager}] = s
	}
	for _, s := range final {
		r := h.promise.Runtimes[s.runtime]
		if s.at.Sub(h.calm) > inTime && !r.FallsBack && !r.Lies && !r.allows(s) {
			h.violate("state", "%s is %s for %s in the end, reason %q", s.runtime, s.state, s.manager, s.reason)
		}
	}
}

func (r Runtime) allows(s sample) bool {
	state := s.state
	switch {
	case !r.Numbered, r.Learns && state == "unknown":
		return state == "unknown"
	case r.Rare && s.reason == "dropping": // Only the next heartbeat shows that nothing is dropped any more.
		return true
	case r.Canary:
		return state == "fresh"
	case r.Callers && state == "fresh": // A review came from the API server.
		return true
	default:
		return state == "unproved"
	}
}

// checkResyncs bounds the resyncs of a fleet by their causes.
func (h *History) checkResyncs() {
	for key, n := range h.resyncs {
		if allowed := h.allowed(key.manager, key.cause); n > allowed {
			h.violate("economy", "%s asked for %d resyncs for %s, cause %s, want at most %d", key.operator, n, key.manager, key.cause, allowed)
		}
	}
}

// checkWaits bounds the time from a resync to the reconcile of a runtime while another runtime is
// loud.
func (h *History) checkWaits() {
	if !h.promise.Loud {
		return
	}
	for key, times := range h.asked {
		for t, looks := range h.looks {
			if t.runtime == key.runtime && t.manager == key.manager {
				h.checkWait(t, looks, times)
			}
		}
	}
}

func (h *History) checkWait(t target, looks []look, asked []time.Time) {
	for _, at := range asked {
		if !slices.ContainsFunc(looks, func(l look) bool { return l.at.After(at) && l.at.Sub(at) <= resyncWait }) {
			h.violate("wait", "%s was resynced for %s at %s, and not reconciled within %s", t.runtime, t.manager, h.since(at), resyncWait)
			return
		}
	}
}

// checkPace bounds the rate of resyncs that an agent requests, as foreign input can cause them.
func (h *History) checkPace() {
	const most, within = 12, 10 * time.Second
	if h.promise.AnswersLost {
		return
	}
	for key, times := range h.asked {
		for i := most; i < len(times); i++ {
			if took := times[i].Sub(times[i-most]); took < within {
				h.violate("economy", "%s asked for %d resyncs for %s within %s at %s", key.runtime, most+1, key.manager, took, h.since(times[i]))
				break
			}
		}
	}
}

// allowed returns the most resyncs of a cause for a manager in one life of an operator. The oracle counts the causes
// itself. Where a former agent may have seen a write that is committed late, each has a resend.
func (h *History) allowed(manager core.Manager, cause string) int {
	lives := 0
	lost := 0
	gaps := 0
	returned := 0
	falls := 0
	for key, p := range h.paths {
		if key.manager == manager && h.promise.Runtimes[key.runtime].Numbered {
			returned += p.silences
		}
	}
	for _, a := range h.agents {
		l := a.managers[manager]
		if !a.numbered || l == nil || l.path.heard.IsZero() && !h.promise.AnswersLost {
			continue
		}
		lives++
		lost, gaps = lost+l.path.silences, gaps+h.gaps(a, l)
		if h.promise.Holds || a.to.Before(h.calm.Add(atMostToStop)) {
			lost++
		}
		if h.promise.Runtimes[a.runtime].FallsBack {
			falls++
		}
	}
	switch cause {
	case "new_epoch":
		if h.promise.RequestsRepeat { // After the end of a process, a repeated request shows it again.
			lives *= 2
		}
		return 2 * lives * (1 + h.promise.Deletions) // A deletion makes each of them new again.
	case "replica_lost":
		if h.promise.CleanStops {
			return 0
		}
		return 2 * (lost + falls)
	case "returned":
		if h.promise.Replicas > 1 {
			return mostToLearn * len(h.promise.Runtimes)
		}
		if h.promise.Short {
			return 0
		}
		if h.promise.AnswersLost { // A request with a lost answer ends a silence that the agent does not see.
			returned *= 2
		}
		return returned + falls
	case "went_back": // Numbers only rise.
		return 0
	default:
		if h.promise.Replicas > 1 {
			return mostToLearn * len(h.promise.Runtimes)
		}
		return gaps + falls // Events may travel by an older contract.
	}
}

// gaps returns the most gaps in the numbers of an agent. A gap leads to one resync, and has a number of its own that
// did not come in its order: a gateway refused or dropped it, the outbox dropped it, or a stream kept it.
func (h *History) gaps(a *Agent, l *lane) int {
	most := l.drops + len(l.late) + h.unheard(l)
	if len(h.promise.Runtimes[a.runtime].Overflows) > 0 { // The control plane has the number of an event that it refused itself.
		most += int(l.account["dropped_total"])
	}
	if h.promise.NATS {
		most += sends * len(h.failed[a.runtime])
	}
	return most
}

// unheard returns how often a fleet may miss a number of an agent that it does not know: a new fleet, one that has
// forgotten the runtime, or the agent that left. A gateway repeats requests in any order, so each change may show a gap.
func (h *History) unheard(l *lane) int {
	switch {
	case h.promise.RequestsRepeat:
		return h.promise.Deletions + l.taken.changes
	case h.promise.NewLeaders && len(h.promise.Refused) > 0:
		return h.promise.Deletions + 1
	default:
		return h.promise.Deletions
	}
}

// atMostToStop is how long an agent runs after the fault that ends it: the time for its last requests, and a second.
const atMostToStop = 11 * time.Second

// mostToLearn bounds the resyncs of an active replica until it knows that others take a part of the numbers.
const mostToLearn = 10

// checkAgents bounds what each agent process sent and logged. A request that fails waits for its turn, and each other
// one carries an element that is counted here.
func (h *History) checkAgents() {
	for _, a := range h.agents {
		for manager, l := range a.managers {
			if slices.Contains(h.promise.Managers, manager) {
				h.checkTraffic(a, manager, l)
			}
		}
		if most := h.mostLines(a); a.lines > most {
			h.violate("economy", "%s wrote %d log lines in %s, want at most %d", a.epoch, a.lines, a.life(), most)
		}
	}
}

func (a *Agent) life() time.Duration { return a.to.Sub(a.from).Round(time.Second) }

// sends is the number of times that a change travels: immediately, after 3 s and after 35 s.
const sends = 3

// mostSends returns how often an agent may send a change. An early event may reach a receiver that does not check the reads
// of its reconciles: a new leader, or any receiver after a fallback to an older contract. The agent then sends the event
// again after the regular delay.
func (h *History) mostSends(a *Agent) int {
	if h.promise.NewLeaders || h.promise.Runtimes[a.runtime].FallsBack {
		return sends + 1
	}
	return sends
}

// checkTraffic bounds the elements that the receiver took.
func (h *History) checkTraffic(a *Agent, manager core.Manager, l *lane) {
	for _, of := range []struct {
		what       string
		sent, most int
	}{
		{"changes", l.taken.changes, h.mostSends(a) * l.offered.changes},
		{"resyncs", l.taken.resyncs, h.mostResyncs(a, l)},
		{"heartbeats", l.taken.beats, h.mostBeats(a, l)},
	} {
		if of.sent > of.most {
			h.violate("economy", "%s sent %d %s to %s in %s, want at most %d", a.epoch, of.sent, of.what, manager, a.life(), of.most)
		}
	}
}

// mostResyncs allows one resend for the resync at the start, for each that the change source requests, for each canary
// write that the API server missed, and for two in each fault. A canary whose API server reaches one of two agents is lost
// and found again for as long as the fault lasts, so its recoveries have no bound by the number of faults. Where events may be dropped, checkPace alone bounds them.
func (h *History) mostResyncs(a *Agent, l *lane) int {
	const sends = 2
	if h.mayDegrade(h.promise.Runtimes[a.runtime]) || h.promise.Refusals > 0 {
		return math.MaxInt
	}
	return sends * max(len(l.owners), 1) * (1 + l.offered.resyncs + a.missed + 2*h.promise.Faults)
}

// mostBeats allows a heartbeat in each interval, the first and the last one, one after each recovery, and early ones:
// for the first review, for the canary and in faults. Rare heartbeats have one more for each connection that ends.
func (h *History) mostBeats(a *Agent, l *lane) int {
	const first, perFault, perRotation = 4, 4, 20
	between := beat
	if h.promise.Runtimes[a.runtime].Rare && h.promise.Faults == 0 {
		between *= 10
	}
	most := first + int(a.to.Sub(a.from)/between) + l.recoveries + perFault*h.promise.Faults
	if h.promise.Runtimes[a.runtime].Rare {
		most += a.conns
	}
	if h.promise.Rotates {
		most += perRotation
	}
	if h.mayDegrade(h.promise.Runtimes[a.runtime]) {
		most += int(a.to.Sub(a.from) / (5 * time.Second)) // A first loss after each.
	}
	return most
}

// beat is the shortest interval: up to a tenth is taken off 30 s.
const beat = 27 * time.Second

// mostLines allows a few lines for each fault and manager, and one every two minutes for a lasting failure.
// Managers without an operator have lines, too, and their number is bounded.
func (h *History) mostLines(a *Agent) int64 {
	const each, lasting = 6, 2 * time.Minute
	served := int64(len(h.promise.Managers) + 1)
	all := int64(len(a.managers))
	most := each * int64(h.promise.Faults+len(h.promise.Refused)+2) * served
	return most + all*(4+int64(a.to.Sub(a.from)/lasting))
}

// Latencies returns the times from a commit to the first reconcile, of all objects that are not refused.
func (h *History) Latencies() []time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []time.Duration
	for t, commits := range h.commits {
		if h.promise.Refused[t.object] || h.promise.Runtimes[t.runtime].Refused {
			continue
		}
		for _, c := range commits {
			if seen, ok := h.firstLook(t, c.version); ok {
				all = append(all, max(seen.Sub(c.at), 0))
			} else {
				all = append(all, givenUp)
			}
		}
	}
	return all
}

// String lists violations.
func String(found []Violation) string {
	lines := make([]string, len(found))
	for i, v := range found {
		lines[i] = v.String()
	}
	return strings.Join(lines, "\n")
}
