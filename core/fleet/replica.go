package fleet

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// replica is one agent process, by its epoch. Its record owns it.
type replica struct {
	epoch string

	// The numbers of its events.
	sequence uint64
	kept     []uint64 // the highest ones that the transport has kept, in rising order.
	arrivals arrivals // those that came here, and are not observed yet.
	sharing  sharing

	// Its requests.
	firstRequest    time.Time
	isSeenFromStart bool // the first request has the first event or heartbeat of the epoch.
	lastSeen        time.Time
	paths           paths
	certificate     certificate
	sender          *sender // the last one. A revoked one sends no more.

	// Its heartbeats.
	heartbeat        *core.Heartbeat // the last one, nil before the first.
	heartbeatAt      time.Time
	clock            clock
	proved           time.Time // last call of the API server to the agent, by the clock of this process.
	dropsUntil       time.Time // until then, a drop counts as recent.
	unreachableUntil time.Time // until then, a failed handshake at the webhook counts as recent.

	// gone means that no more requests are expected, and that a resync replaces the pending events
	// of the replica. It is remembered in case that a request comes after all.
	gone bool
	// resend is the resend of the resync for a lost replica, or for the former life of a new
	// replica. It is empty if no resend is to come.
	resend resync
}

func newReplica(batch *core.Batch, now time.Time) *replica {
	p := &replica{epoch: strings.Clone(batch.Epoch), firstRequest: now, isSeenFromStart: hasFirstNumber(batch)}
	if len(batch.Events) > 0 && batch.Events[0].Sequence > 0 {
		p.sequence = batch.Events[0].Sequence - 1 // The resync of a new epoch replaces those before.
	}
	return p
}

// hasFirstNumber reports whether a batch has the first event, or the first heartbeat, of its epoch.
func hasFirstNumber(batch *core.Batch) bool {
	if batch.Heartbeat != nil && batch.Heartbeat.Number == 1 {
		return true
	}
	isFirst := func(event core.Numbered) bool { return event.Sequence == 1 }
	return slices.ContainsFunc(batch.Events, isFirst)
}

// observeRequest takes in a request of the replica. It returns the cause for a resync, "" without a
// cause.
func (p *replica) observeRequest(
	peer core.Peer, batch *core.Batch, refused core.EventErrors, now time.Time,
) (cause hook.ResyncCause) {
	if p.gone { // It has its events still.
		p.gone = false
		p.resend = resync{}
	}

	p.lastSeen = now
	p.certificate = certificate{peer.NotBefore, peer.NotAfter}

	before := p.sequence
	cause, cameHere := p.observeNumbers(batch, now)
	p.paths.notePath(peer.Lost, interval(p.heartbeat))

	hasNewNumbers := p.sequence > before
	isProbed := p.sharing.on && batch.Heartbeat != nil
	showsSharing := hasNewNumbers || isProbed
	// Numbers that came here and were not observed, as after a panic or while a handler hangs, did
	// not go to another replica of the operator. Such a gap keeps its cause.
	isOwnLoss := cause == CauseGap && hasNewNumbers && cameHere
	if showsSharing && !isOwnLoss {
		cause = p.sharing.noteEvidence(cause)
	}

	p.endResendIfTaken(batch, refused)
	if p.noteKept(batch, refused) {
		return cmp.Or(cause, CauseGap)
	}
	return cause
}

// observeNumbers takes in the numbers of a batch and its heartbeat. It also reports whether all
// missing numbers came to this replica of the operator, which has not observed them.
func (p *replica) observeNumbers(batch *core.Batch, now time.Time) (cause hook.ResyncCause, cameHere bool) {
	cameHere = true
	for i := range batch.Events {
		sequence := batch.Events[i].Sequence
		if sequence > p.sequence && sequence-p.sequence > 1 {
			cause = CauseGap
			cameHere = cameHere && p.arrivals.haveAll(p.sequence+1, sequence-1)
		}
		p.sequence = max(p.sequence, sequence)
	}

	if batch.Heartbeat != nil {
		last := p.sequence
		cause = cmp.Or(p.observeHeartbeat(batch.Heartbeat, now), cause)
		cameHere = cameHere && p.arrivals.haveAll(last+1, p.sequence)
	}

	p.arrivals.endAt(p.sequence)
	return cause, cameHere
}

// maxKept bounds the kept events that a replica remembers. A forgotten event leads to another
// resync.
const maxKept = 256

// endResendIfTaken ends the resend of the fleet if the handler took a resync of the batch, because
// the agent sends that resync again itself.
func (p *replica) endResendIfTaken(batch *core.Batch, refused core.EventErrors) {
	if hasResync(batch, refused) {
		p.resend = resync{}
	}
}

// noteKept notes the events that the transport keeps, and reports whether the transport kept one of
// them for the first time. Only a resync replaces that event if the transport gives it up. The
// agent may have got the event back before, so its number may be known and leave no gap.
func (p *replica) noteKept(batch *core.Batch, refused core.EventErrors) (first bool) {
	for i := range batch.Events {
		sequence := batch.Events[i].Sequence
		at, known := slices.BinarySearch(p.kept, sequence)
		if known || !isKept(refused[i]) {
			continue
		}

		first = true
		p.kept = slices.Insert(p.kept, at, sequence)
		p.kept = p.kept[max(len(p.kept)-maxKept, 0):]
	}
	return first
}

// isUpToKept reports whether the transport has kept an event with that number, or a higher one. The
// lower kept numbers may be forgotten (maxKept).
func (p *replica) isUpToKept(sequence uint64) bool {
	return len(p.kept) > 0 && sequence <= p.kept[len(p.kept)-1]
}

// isKept reports whether the transport keeps a refused event. It may lose or terminate the event.
func isKept(err error) bool {
	kept, ok := errors.AsType[core.KeptError](err)
	return ok && kept.Kept()
}

// observeHeartbeat takes in a heartbeat. It returns the cause for a resync, "" without a cause.
func (p *replica) observeHeartbeat(heartbeat *core.Heartbeat, now time.Time) (cause hook.ResyncCause) {
	if p.isOvertaken(heartbeat, now) {
		return ""
	}

	p.noteProofs(heartbeat, now)
	p.clock.noteTime(heartbeat.Time, now)
	if p.sharing.on && p.heartbeat != nil && heartbeat.Number-p.heartbeat.Number > 1 {
		cause = CauseGap
	}

	switch {
	case p.heartbeat == nil && p.sequence == 0: // The first request of this replica.
		p.sequence = heartbeat.Sequence
	case p.heartbeat != nil && heartbeat.Sequence < p.heartbeat.Sequence:
		cause = CauseWentBack
		p.sequence = heartbeat.Sequence
		p.arrivals = nil // They belong to the former numbers.
	case heartbeat.Sequence > p.sequence:
		cause = CauseGap
		p.sequence = heartbeat.Sequence
	} // Otherwise, later events may have overtaken it.

	p.heartbeat = bound(heartbeat)
	p.heartbeatAt = now
	return cause
}

// isOvertaken reports whether a heartbeat came after a later one, or twice.
func (p *replica) isOvertaken(heartbeat *core.Heartbeat, now time.Time) bool {
	return p.heartbeat != nil && heartbeat.Number <= p.heartbeat.Number && now.Sub(p.heartbeatAt) < straggler
}

// noteProofs takes in the calls of the API server, the drops and the failed handshakes of a
// heartbeat.
func (p *replica) noteProofs(heartbeat *core.Heartbeat, now time.Time) {
	if heartbeat.Canary == core.CanaryAlive {
		p.proved = now
	}

	age := heartbeat.Time.Sub(heartbeat.LastReview)
	if !heartbeat.LastReview.IsZero() && age >= 0 {
		p.proved = latest(p.proved, now.Add(-age))
	}

	if drops(heartbeat) > p.knownDrops(heartbeat) {
		p.dropsUntil = now.Add(patience(heartbeat))
	}

	switch {
	case p.heartbeat == nil:
	case heartbeat.Canary == core.CanaryAlive, p.proved.After(p.heartbeatAt):
		p.unreachableUntil = time.Time{}
	case heartbeat.WebhookFailures > p.heartbeat.WebhookFailures:
		p.unreachableUntil = now.Add(patience(heartbeat))
	}
}

// knownDrops returns the drops before the present heartbeat. Those of an epoch that did not begin
// here are as old as it, so a new leader does not take them for recent.
func (p *replica) knownDrops(present *core.Heartbeat) int64 {
	switch {
	case p.heartbeat != nil:
		return drops(p.heartbeat)
	case p.isSeenFromStart:
		return 0
	default:
		return drops(present)
	}
}

// trimHeartbeat keeps only the fields by which the replica is known again: a fleet remembers many.
func (p *replica) trimHeartbeat() {
	if p.heartbeat == nil {
		return
	}
	p.heartbeat = &core.Heartbeat{
		Number:          p.heartbeat.Number,
		Interval:        p.heartbeat.Interval,
		Sequence:        p.heartbeat.Sequence,
		Instance:        p.heartbeat.Instance,
		Canary:          p.heartbeat.Canary,
		Dropped:         p.heartbeat.Dropped,
		WebhookFailures: p.heartbeat.WebhookFailures,
	}
}

// isInstance reports whether the last heartbeat comes from the instance with a name.
func (p *replica) isInstance(name string) bool {
	return name != "" && p.heartbeat != nil && p.heartbeat.Instance == name
}

// proofLasts is the time for which a review by a client certificate, or a living canary, proves
// that the API server calls the agent.
const proofLasts = 10 * time.Minute

// isProved lasts for proofLasts, and at least until the next heartbeat is missed.
func (p *replica) isProved(now time.Time) bool {
	return now.Sub(p.proved) <= max(proofLasts, patience(p.heartbeat))
}

func (p *replica) isSilent(now time.Time) bool {
	silence := now.Sub(p.lastSeen)
	if p.sharing.on {
		return silence > sharedPatience*patience(p.heartbeat)
	}
	return silence > patience(p.heartbeat) || p.paths.areOver(now)
}

// isSpeaking reports whether the replica sends events or heartbeats.
func (p *replica) isSpeaking(now time.Time) bool {
	return !p.gone && !p.sender.isRevoked() && !p.isSilent(now)
}

// isAlive reports whether the replica sends heartbeats.
func (p *replica) isAlive(now time.Time) bool {
	return p.heartbeat != nil && p.isSpeaking(now)
}

// isExpired means that the certificate ended at the last requests, which explains the silence.
func (p *replica) isExpired(now time.Time) bool {
	expiry := p.certificate.notAfter
	return p.heartbeat != nil && !now.Before(expiry) && !p.lastSeen.Add(patience(p.heartbeat)).Before(expiry)
}

// isPunctual reports whether the replica sends heartbeats, and the next one is not overdue.
func (p *replica) isPunctual(now time.Time) bool {
	if p.heartbeat == nil || p.gone || p.sender.isRevoked() {
		return false
	}
	return p.paths.lost.IsZero() && now.Sub(p.lastSeen) <= interval(p.heartbeat)
}

func (p *replica) status() Replica {
	return Replica{
		Epoch:             p.epoch,
		Sequence:          p.sequence,
		LastSeen:          p.lastSeen,
		Heartbeat:         p.heartbeat,
		Proved:            p.proved,
		CertificateExpiry: p.certificate.notAfter,
		ClockSkew:         p.clock.skew(),
	}
}
