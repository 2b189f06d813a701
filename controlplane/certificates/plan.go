package certificates

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/installations"
)

// Phase is the phase of a rotation.
type Phase = installations.Phase

// The phases of a rotation, in the order in which it passes through them.
const (
	PhaseBootstrap Phase = "Bootstrap"
	PhaseCreating  Phase = "Creating"
	// PhasePropagating means that listeners are still loading the new CA.
	PhasePropagating Phase = "Propagating"
	PhaseReissuing   Phase = "Reissuing"
	PhaseConfirming  Phase = "Confirming"
	PhaseSwitching   Phase = "Switching"
	// PhaseRetiring means that old CAs lose their keys. They stay in the bundle until they expire.
	PhaseRetiring Phase = "Retiring"
	PhaseStable   Phase = "Stable"
)

const day = 24 * time.Hour

const (
	// rotateBefore and switchBefore are how long before the end of a CA these begin.
	rotateBefore, switchBefore = 120 * day, 14 * day
	// issuingAtOnce bounds the certificates that a rotation has issued at the same time.
	issuingAtOnce = 50

	pollInterval           = 2 * time.Second
	longestRequeue         = 5 * time.Minute // Annotations are read at each reconcile, and need no watch.
	failedIssuanceInterval = time.Minute
)

// maxAuthorities counts CAs with keys: of the server, of the clients, and the next one.
const maxAuthorities = 3

// view is the state of a set, without objects of Kubernetes: the input of the plan, which is a pure
// function of it.
type view struct {
	now time.Time

	authorities []authority // by generation
	// clientSigner and serverSigner are generations, 0 for none.
	clientSigner, serverSigner int

	server   leaf
	runtimes []leaf // sorted by runtime, so that reissueRule and overdue find equal IDs next to each other

	published   published
	unconfirmed []core.RuntimeID

	request      string // annotationRotate
	switchAnyway int    // annotationSwitchAnyway

	propagation time.Duration // Options.Propagation
}

// authority is one generation of the CA.
type authority struct {
	generation  int
	request     string
	fingerprint string
	name        string // its subject in DER, as in the certificates that it signs
	key         string // the identifier of its key, empty if it has none
	notAfter    time.Time
	life        time.Duration // as it was issued
	replaced    bool          // its Secret was lost, and it has another key than in the bundle
	known       bool          // it was imported, and all peers trust it
}

// margins are shorter for a CA with a short life, which would be replaced again and again.
func (a authority) margins() (rotation, switching time.Duration) {
	if a.life > 0 && a.life <= rotateBefore {
		return a.life / 3, a.life / 9
	}
	return rotateBefore, switchBefore
}

func (a authority) rotatesAt() time.Time {
	rotation, _ := a.margins()
	return a.notAfter.Add(-rotation)
}

// hasSigned reports whether this CA has signed a certificate. crypto/x509 leaves out the identifier
// of the CA's key if issuer and subject are equal, or if the CA has no identifier. hasSigned then
// compares the names only.
func (a authority) hasSigned(l leaf) bool {
	isSameKey := l.signer == a.key || l.signer == ""
	return a.fingerprint != "" && l.present && l.issuer == a.name && isSameKey
}

// leaf is one certificate of the server or of a runtime, as the plan sees it.
type leaf struct {
	runtime  core.RuntimeID // empty for the server
	serving  bool           // of a webhook
	name     string
	present  bool
	issuer   string // subject of its CA in DER
	signer   string // identifier of the key of its CA
	notAfter time.Time
	issuing  bool
	created  time.Time
	failed   time.Time // of the last failed issuance, zero if none failed
}

type published struct {
	present bool
	newest  int // highest generation in the bundle
	since   time.Time
	current bool // it is as it should be
}

// action is one step, in words for logs. Its preconditions hold, and it may be repeated.
type action string

const (
	actionNone        action = ""
	actionDiscard     action = "discard a CA that was issued anew"
	actionCreate      action = "create a CA"
	actionSignClients action = "sign for runtimes"
	actionSignServer  action = "sign for the server"

	actionPublish       action = "publish the bundle and the server certificate"
	actionReissue       action = "reissue for runtimes"
	actionReissueServer action = "reissue for the server"
	actionRetire        action = "retire old CAs"
)

// step is the next step. A step without action waits.
type step struct {
	phase      Phase
	action     action
	generation int   // for create and sign
	remove     []int // generations, for discard and retire
	reissue    []leaf
	waiting    []core.RuntimeID
	after      time.Duration
}

// plan returns the next step, which [Certificates.Reconcile] asks for and carries out. The first
// rule that applies decides. A rule only proposes a step. Their order keeps this promise:
//
//	a CA signs nothing before it is in the bundle of every peer that would verify the signature.
//
// Clients are verified by listeners: a changed bundle reaches them within the time of
// propagation. The server is verified by the runtimes: each of them confirms the CA.
func plan(v view) step {
	rules := []func(view) (step, bool){
		discardRule, beginRule, publishRule, renewRule, switchClientsRule, reissueRule, switchServerRule,
		retireRule, awaitIssueRule,
	}
	for _, rule := range rules {
		if s, ok := rule(v); ok {
			return s
		}
	}

	rotation := v.newest().rotatesAt().Sub(v.now)
	return step{phase: PhaseStable, after: min(max(rotation, pollInterval), longestRequeue)}
}

func waitIn(phase Phase) (step, bool) { return step{phase: phase, after: pollInterval}, true }

// newest is the youngest CA that is issued. There is one when beginRule has no more steps.
func (v view) newest() authority {
	for _, a := range slices.Backward(v.authorities) {
		if a.fingerprint != "" {
			return a
		}
	}
	return authority{}
}

// discardRule drops a CA that cert-manager has issued anew: nothing trusts its key.
func discardRule(v view) (step, bool) {
	for _, a := range v.authorities {
		if a.replaced {
			return step{phase: PhaseCreating, action: actionDiscard, remove: []int{a.generation}}, true
		}
	}
	return step{}, false
}

func beginRule(v view) (step, bool) {
	switch {
	case len(v.authorities) == 0:
		return step{phase: PhaseBootstrap, action: actionCreate, generation: v.nextGeneration()}, true
	case !v.hasGeneration(v.clientSigner) && v.oldestIsTrusted():
		return step{phase: PhaseBootstrap, action: actionSignClients, generation: v.authorities[0].generation}, true
	case !v.hasGeneration(v.serverSigner) && v.oldestIsTrusted():
		return step{phase: PhaseBootstrap, action: actionSignServer, generation: v.authorities[0].generation}, true
	case !v.server.present || v.newest().generation == 0:
		return waitIn(PhaseBootstrap)
	case v.published.present || v.isKnown(v.server):
		return step{}, false
	case v.mayReissueServer(): // Its CA is lost, and so is the bundle.
		return step{phase: PhaseBootstrap, action: actionReissueServer}, true
	default:
		return waitIn(PhaseBootstrap)
	}
}

func (v view) isKnown(l leaf) bool {
	return slices.ContainsFunc(v.authorities, func(a authority) bool { return a.hasSigned(l) })
}

func (v view) mayReissueServer() bool {
	return !v.server.issuing && v.now.Sub(v.server.failed) >= failedIssuanceInterval
}

// oldestIsTrusted means that all peers trust it, or that there are none.
func (v view) oldestIsTrusted() bool {
	oldest := v.authorities[0]
	return !v.published.present || oldest.known || oldest.hasSigned(v.server)
}

// nextGeneration is the generation of a new CA. No CA in the bundle has had it.
func (v view) nextGeneration() int {
	last := max(v.clientSigner, v.serverSigner, v.published.newest)
	for _, a := range v.authorities {
		last = max(last, a.generation)
	}
	return last + 1
}

func (v view) hasGeneration(generation int) bool {
	return slices.ContainsFunc(v.authorities, func(a authority) bool { return a.generation == generation })
}

func publishRule(v view) (step, bool) {
	if !v.published.present {
		return step{phase: PhaseBootstrap, action: actionPublish}, true
	}
	return step{phase: PhasePropagating, action: actionPublish}, !v.published.current
}

// renewRule starts a rotation, also during another one, which continues with the newer CA.
func renewRule(v view) (step, bool) {
	last := v.authorities[len(v.authorities)-1]
	expires := !v.now.Before(last.rotatesAt())
	isRequested := last.request != v.request
	if !isRequested && !expires {
		return step{}, false
	}
	if last.fingerprint == "" || v.clientSigner != last.generation || len(v.authorities) >= maxAuthorities {
		return step{}, false
	}
	return step{phase: PhaseCreating, action: actionCreate, generation: v.nextGeneration()}, true
}

// switchClientsRule lets the youngest CA sign for runtimes as soon as every listener trusts it.
func switchClientsRule(v view) (step, bool) {
	newest := v.newest()
	if v.clientSigner == newest.generation {
		return step{}, false
	}
	if wait := v.published.since.Add(v.propagation).Sub(v.now); wait > 0 {
		return step{phase: PhasePropagating, after: min(wait, longestRequeue)}, true
	}
	return step{phase: PhasePropagating, action: actionSignClients, generation: newest.generation}, true
}

// reissueRule has the certificates of runtimes signed by the youngest CA. A runtime has several.
func reissueRule(v view) (step, bool) {
	var (
		s       = step{phase: PhaseReissuing, after: pollInterval}
		issuing int
	)
	for _, r := range v.runtimes {
		if v.newest().hasSigned(r) {
			continue
		}

		s.waiting = append(s.waiting, r.runtime)
		switch {
		case r.issuing, !r.present && r.failed.IsZero():
			issuing++
		case !r.present: // It was refused, and cert-manager retries it.
		case v.now.Sub(r.failed) >= failedIssuanceInterval:
			s.reissue = append(s.reissue, r)
		}
	}

	s.waiting = slices.Compact(s.waiting)
	s.reissue = s.reissue[:min(len(s.reissue), max(issuingAtOnce-issuing, 0))]
	if len(s.reissue) > 0 {
		s.action = actionReissue
		return s, true
	}

	serverMustWait := v.serverLags() && !v.isSwitchForced()
	return s, len(s.waiting) > 0 && serverMustWait
}

func (v view) serverLags() bool {
	return v.serverSigner != v.newest().generation || !v.newest().hasSigned(v.server)
}

// isSwitchForced means that the switch is requested, or that the old CA is about to expire.
func (v view) isSwitchForced() bool {
	if v.switchAnyway == v.newest().generation {
		return true
	}

	old := authority{notAfter: v.server.notAfter} // while its CA is lost
	for _, a := range v.authorities {
		if a.hasSigned(v.server) {
			old = a
		}
	}

	_, switching := old.margins()
	return !v.now.Before(old.notAfter.Add(-switching))
}

// switchServerRule lets the youngest CA sign for the server as soon as every runtime trusts it.
func switchServerRule(v view) (step, bool) {
	newest := v.newest()
	switch {
	case !v.serverLags():
		return step{}, false
	case len(v.unconfirmed) > 0 && !v.isSwitchForced():
		return step{phase: PhaseConfirming, waiting: v.unconfirmed, after: pollInterval}, true
	case v.serverSigner != newest.generation:
		return step{
			phase: PhaseSwitching, action: actionSignServer, generation: newest.generation, waiting: v.unconfirmed,
		}, true
	case v.mayReissueServer():
		return step{phase: PhaseSwitching, action: actionReissueServer, waiting: v.unconfirmed}, true
	default:
		return step{phase: PhaseSwitching, waiting: v.unconfirmed, after: pollInterval}, true
	}
}

// retireRule ends a rotation: a CA that no longer signs needs no key.
func retireRule(v view) (step, bool) {
	s := step{phase: PhaseRetiring, action: actionRetire, waiting: v.unconfirmed}
	for _, a := range v.authorities {
		if a.generation < v.newest().generation {
			s.remove = append(s.remove, a.generation)
		}
	}
	return s, len(s.remove) > 0
}

// awaitIssueRule waits until cert-manager has issued the CA that renewRule has created.
func awaitIssueRule(v view) (step, bool) {
	if v.authorities[len(v.authorities)-1].fingerprint == "" {
		return waitIn(PhaseCreating)
	}
	return step{}, false
}
