package certificates

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Phase is what is being done about the CA and the server certificate.
type Phase string

// The phases, in the order in which a rotation passes through them.
const (
	// PhaseBootstrap means that the first CA or the first server certificate is not there yet.
	PhaseBootstrap Phase = "Bootstrap"
	// PhaseCreating means that a new CA is being made. Nothing uses it.
	PhaseCreating Phase = "Creating"
	// PhasePropagating means that the bundle has the new CA and is on its way to whoever verifies clients.
	PhasePropagating Phase = "Propagating"
	// PhaseReissuing means that the runtimes get certificates of the new CA.
	PhaseReissuing Phase = "Reissuing"
	// PhaseConfirming means that runtimes have yet to say that they trust the new CA.
	PhaseConfirming Phase = "Confirming"
	// PhaseSwitching means that the server gets a certificate of the new CA.
	PhaseSwitching Phase = "Switching"
	// PhaseRetiring means that the old CAs lose their keys. They stay in the bundle until they expire.
	PhaseRetiring Phase = "Retiring"
	// PhaseStable means that there is nothing to do.
	PhaseStable Phase = "Stable"
)

// maxAuthorities are at work at once: that of the server, that of the clients, and the next one.
const maxAuthorities = 3

// view is what is in the cluster, as far as the plan needs it.
type view struct {
	now time.Time

	authorities []authority // by generation
	// clientSigner and serverSigner are the generations that sign for runtimes and for the server; 0 when nothing does yet.
	clientSigner, serverSigner int

	server   leaf
	runtimes []leaf

	published published
	// unconfirmed are the runtimes that have not said that they trust the youngest CA.
	unconfirmed []core.RuntimeID

	request      string // what AnnotationRotate says
	switchAnyway int    // what AnnotationSwitchAnyway says
}

// authority is a CA that may sign. Its fingerprint is empty until it is issued.
type authority struct {
	generation  int
	request     string
	fingerprint string
	notAfter    time.Time
	life        time.Duration // as it was issued
}

// cut returns l, or, for a CA that its issuer gave a shorter life than the options allow for, times in proportion: else it would be replaced
// as soon as it is there, again and again.
func (a authority) cut(l limits) limits {
	if a.life > 0 && a.life <= l.rotateBefore {
		l.rotateBefore, l.switchBefore = a.life/3, a.life/9 //nolint:mnd // As the defaults are to each other.
	}

	return l
}

// leaf is a certificate that is in a Secret of cert-manager's.
type leaf struct {
	runtime core.RuntimeID // empty for the server
	name    string
	present bool
	signer  string // fingerprint of its CA, empty when that is none of ours, or unknown
	issuing bool
	created time.Time
	failed  time.Time // when it could not be issued, zero if it can
}

// published is what the Secret of the listener holds.
type published struct {
	present bool
	bundle  []string // fingerprints
	since   time.Time
	undated bool // since is not known, and has to be written anew
	current bool // the server's certificate is the one that cert-manager has issued
	expired bool // the bundle has a CA that is
}

// action is one thing to do. Everything that it needs to be safe holds before it, and it may be done again.
type action int

const (
	actionNone action = iota
	actionCreate
	actionSignClients
	actionSignServer
	actionPublish
	actionReissue
	actionReissueServer
	actionRetire
)

// step is what to do next. A step without action waits.
type step struct {
	phase      Phase
	action     action
	generation int    // for create, sign and retire
	request    string // for create
	reissue    []leaf
	waiting    []core.RuntimeID
	after      time.Duration
}

// limits are the options that the plan follows.
type limits struct {
	rotateBefore, switchBefore, propagation time.Duration
	issuingAtOnce                           int
}

// plan returns the next step. It is the whole order of a rotation:
//
//	a CA signs nothing before it is in the bundle of everybody who verifies what it would sign.
//
// For clients that is the listener's, and after a change that takes the time of propagation. For the server those are the
// runtimes', and each of them says so.
func plan(v view, l limits) step {
	for _, next := range []func(view, limits) (step, bool){begin, publish, renew, switchClients, reissue, switchServer, retire, create} {
		if s, ok := next(v, l); ok {
			return s
		}
	}

	newest := v.newest()

	return step{phase: PhaseStable, after: clamp(newest.notAfter.Add(-newest.cut(l).rotateBefore).Sub(v.now))}
}

func clamp(d time.Duration) time.Duration { return min(max(d, pollInterval), longestRequeue) }

func waitIn(phase Phase) (step, bool) { return step{phase: phase, after: pollInterval}, true }

// newest is the youngest CA that is issued. There is one when begin is through.
func (v view) newest() authority {
	for _, a := range slices.Backward(v.authorities) {
		if a.fingerprint != "" {
			return a
		}
	}

	return authority{}
}

// begin leads to a CA, to Issuers that sign with it, and to a certificate for the server.
func begin(v view, _ limits) (step, bool) {
	switch {
	case len(v.authorities) == 0:
		return step{phase: PhaseBootstrap, action: actionCreate, generation: 1 + max(v.clientSigner, v.serverSigner), request: v.request}, true
	case v.clientSigner == 0 || !v.has(v.clientSigner):
		// The oldest: whoever trusts any of them trusts that one.
		return step{phase: PhaseBootstrap, action: actionSignClients, generation: v.authorities[0].generation}, true
	case v.serverSigner == 0 || !v.has(v.serverSigner):
		return step{phase: PhaseBootstrap, action: actionSignServer, generation: v.authorities[0].generation}, true
	case !v.server.present || v.newest().generation == 0:
		return waitIn(PhaseBootstrap)
	default:
		return step{}, false
	}
}

func (v view) has(generation int) bool {
	return slices.ContainsFunc(v.authorities, func(a authority) bool { return a.generation == generation })
}

// publish keeps the listener's Secret up to date: every CA that may come to sign, none that is expired, and the server's certificate.
func publish(v view, _ limits) (step, bool) {
	missing := slices.ContainsFunc(v.authorities, func(a authority) bool {
		return a.fingerprint != "" && !v.now.After(a.notAfter) && !slices.Contains(v.published.bundle, a.fingerprint)
	})
	if v.published.present && v.published.current && !v.published.expired && !v.published.undated && !missing {
		return step{}, false
	}

	phase := PhasePropagating
	if !v.published.present {
		phase = PhaseBootstrap
	} else if !missing {
		phase = PhaseSwitching
	}

	return step{phase: phase, action: actionPublish}, true
}

// renew starts a rotation. It may do so while another one is under way: then that goes on with the CA after the next.
func renew(v view, l limits) (step, bool) {
	last := v.authorities[len(v.authorities)-1]
	expires := !v.now.Before(last.notAfter.Add(-last.cut(l).rotateBefore))

	if last.fingerprint == "" || v.clientSigner != last.generation || len(v.authorities) >= maxAuthorities ||
		last.request == v.request && !expires {
		return step{}, false
	}

	return step{phase: PhaseCreating, action: actionCreate, generation: last.generation + 1, request: v.request}, true
}

// create waits for a CA that is being made, when there is nothing else to do.
func create(v view, _ limits) (step, bool) {
	if v.authorities[len(v.authorities)-1].fingerprint == "" {
		return waitIn(PhaseCreating)
	}

	return step{}, false
}

// switchClients lets the youngest CA sign for runtimes as soon as every listener trusts it.
func switchClients(v view, l limits) (step, bool) {
	newest := v.newest()
	if v.clientSigner == newest.generation {
		return step{}, false
	}

	if wait := v.published.since.Add(l.propagation).Sub(v.now); wait > 0 {
		return step{phase: PhasePropagating, after: min(wait, longestRequeue)}, true
	}

	return step{phase: PhasePropagating, action: actionSignClients, generation: newest.generation}, true
}

// reissue has the certificates of runtimes signed by the youngest CA.
func reissue(v view, l limits) (step, bool) {
	var (
		s       = step{phase: PhaseReissuing, after: pollInterval}
		issuing int
	)

	for _, r := range v.runtimes {
		if r.signer == v.newest().fingerprint {
			continue
		}

		s.waiting = append(s.waiting, r.runtime)

		switch {
		case r.issuing, !r.present && r.failed.IsZero():
			issuing++
		case !r.present: // It was refused, and cert-manager tries again by itself.
		case v.now.Sub(r.failed) >= failedIssuanceInterval:
			s.reissue = append(s.reissue, r)
		}
	}

	s.reissue = s.reissue[:min(len(s.reissue), max(l.issuingAtOnce-issuing, 0))]
	if len(s.reissue) > 0 {
		s.action = actionReissue

		return s, true
	}

	return s, len(s.waiting) > 0 && v.serverLags() && !v.anyway(l)
}

// serverLags reports whether the server's certificate is of an older CA than the youngest.
func (v view) serverLags() bool {
	return v.serverSigner != v.newest().generation || v.server.signer != v.newest().fingerprint
}

// anyway reports whether the server switches whoever does not trust its CA: because a user says so, or because the
// old one is about to expire.
func (v view) anyway(l limits) bool {
	if v.switchAnyway == v.newest().generation {
		return true
	}

	old, ok := v.serverAuthority()

	return ok && !v.now.Before(old.notAfter.Add(-old.cut(l).switchBefore))
}

// serverAuthority is the CA that vouches for the server now, which is not the one that will once the switch has begun.
func (v view) serverAuthority() (authority, bool) {
	for _, a := range v.authorities {
		if a.fingerprint != "" && a.fingerprint == v.server.signer {
			return a, true
		}
	}

	for _, a := range v.authorities {
		if a.generation == v.serverSigner {
			return a, true
		}
	}

	return authority{}, false
}

// switchServer lets the youngest CA sign for the server as soon as every runtime trusts it.
func switchServer(v view, l limits) (step, bool) {
	newest := v.newest()

	switch {
	case !v.serverLags():
		return step{}, false
	case len(v.unconfirmed) > 0 && !v.anyway(l):
		return step{phase: PhaseConfirming, waiting: v.unconfirmed, after: pollInterval}, true
	case v.serverSigner != newest.generation:
		return step{phase: PhaseSwitching, action: actionSignServer, generation: newest.generation, waiting: v.unconfirmed}, true
	case !v.server.issuing && v.now.Sub(v.server.failed) >= failedIssuanceInterval:
		return step{phase: PhaseSwitching, action: actionReissueServer, waiting: v.unconfirmed}, true
	default:
		return step{phase: PhaseSwitching, waiting: v.unconfirmed, after: pollInterval}, true
	}
}

// retire ends a rotation: what signs no more needs no key.
func retire(v view, _ limits) (step, bool) {
	if v.authorities[0].generation == v.newest().generation {
		return step{}, false
	}

	return step{phase: PhaseRetiring, action: actionRetire, generation: v.newest().generation, waiting: v.unconfirmed}, true
}
