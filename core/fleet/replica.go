package fleet

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

const (
	minInterval     = time.Second
	maxInterval     = time.Hour
	defaultInterval = 30 * time.Second
	// straggler is longer than a request can be under way: a heartbeat with a lower number that
	// comes later is of a restarted sequence.
	straggler = time.Minute
)

// replica is one agent process, by its epoch.
type replica struct {
	epoch    string
	sequence uint64
	// kept has the highest numbers of the events that the transport has kept, in rising order.
	kept []uint64
	// arrivals has the numbers that came here, and are not observed yet.
	arrivals arrivals
	first    time.Time // request
	// begins means that the first request has the first event or heartbeat of the epoch.
	begins   bool
	lastSeen time.Time
	beat     *core.Heartbeat
	beatAt   time.Time
	paths    paths
	// proved is the last call of the API server to the agent, by the clock of this process.
	proved time.Time
	// dropping and unreachable end the time in which a drop, or a failed handshake at the webhook,
	// counts as recent.
	dropping, unreachable time.Time
	certificate           certificate
	clock                 clock
	// sender is the last one. A revoked one sends no more.
	sender  *sender
	sharing sharing
	// gone means that no more requests are expected, and that a resync stands for the pending
	// events of the replica. It is remembered in case that a request comes after all.
	gone bool
	// resend is the resend of the resync for a lost replica, or for the former life of a new one.
	// It is empty if there is none.
	resend resync
}

type certificate struct{ notBefore, notAfter time.Time }

func newReplica(batch *core.Batch, now time.Time) *replica {
	p := &replica{epoch: strings.Clone(batch.Epoch), first: now, begins: begins(batch)}
	if len(batch.Events) > 0 && batch.Events[0].Sequence > 0 {
		p.sequence = batch.Events[0].Sequence - 1 // The resync of a new epoch stands for those before.
	}
	return p
}

// begins reports whether a batch has the first event, or the first heartbeat, of its epoch.
func begins(batch *core.Batch) bool {
	first := func(event core.Numbered) bool { return event.Sequence == 1 }
	return slices.ContainsFunc(batch.Events, first) || batch.Heartbeat != nil && batch.Heartbeat.Number == 1
}

func (p *replica) observe(
	peer core.Peer, batch *core.Batch, refused core.EventErrors, now time.Time,
) (cause hook.ResyncCause) {
	if p.gone {
		p.gone, p.resend = false, resync{} // It has its events still.
	}
	p.lastSeen = now
	p.certificate = certificate{peer.NotBefore, peer.NotAfter}
	before := p.sequence
	cameHere := true // All missing numbers came to this replica, which has not observed them.
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
	p.paths.observe(peer.Lost, interval(p.beat))

	isEvidence := p.sequence > before || p.sharing.on && batch.Heartbeat != nil
	if cause == CauseGap && p.sequence > before && cameHere {
		isEvidence = false
	}
	if isEvidence {
		cause = p.sharing.observe(cause)
	}
	if p.keep(batch, refused) {
		return cmp.Or(cause, CauseGap)
	}
	return cause
}

// maxKept bounds the kept events that a replica remembers. A forgotten one leads to another resync.
const maxKept = 256

// keep notes the events that the transport keeps, and reports whether it kept one of them for the
// first time. Nothing else stands in for that one: the agent may have sent it before, and got it
// back then. A resync that the handler took ends the resend of the fleet.
func (p *replica) keep(batch *core.Batch, refused core.EventErrors) (first bool) {
	if resyncTaken(batch, refused) {
		p.resend = resync{} // It resends that one itself.
	}
	for i := range batch.Events {
		at, known := slices.BinarySearch(p.kept, batch.Events[i].Sequence)
		if known || !isKept(refused[i]) {
			continue
		}
		first, p.kept = true, slices.Insert(p.kept, at, batch.Events[i].Sequence)
		p.kept = p.kept[max(len(p.kept)-maxKept, 0):]
	}
	return first
}

func (p *replica) hasKept(sequence uint64) bool {
	return len(p.kept) > 0 && sequence <= p.kept[len(p.kept)-1]
}

// isKept reports whether the transport keeps a refused event. It may lose or terminate the event.
func isKept(err error) bool {
	kept, ok := errors.AsType[core.KeptError](err)
	return ok && kept.Kept()
}

func (p *replica) observeHeartbeat(beat *core.Heartbeat, now time.Time) (cause hook.ResyncCause) {
	if p.beat != nil && beat.Number <= p.beat.Number && now.Sub(p.beatAt) < straggler {
		return "" // Overtaken, or sent twice.
	}
	p.prove(beat, now)
	p.clock.observe(beat.Time, now)
	if p.sharing.on && p.beat != nil && beat.Number-p.beat.Number > 1 {
		cause = CauseGap
	}
	switch {
	case p.beat == nil && p.sequence == 0: // The first request of this replica.
		p.sequence = beat.Sequence
	case p.beat != nil && beat.Sequence < p.beat.Sequence:
		cause, p.sequence = CauseWentBack, beat.Sequence
		p.arrivals = nil // They are of the former numbers.
	case beat.Sequence > p.sequence:
		cause, p.sequence = CauseGap, beat.Sequence
	} // Otherwise, later events may have overtaken it.
	p.beat, p.beatAt = bound(beat), now
	return cause
}

func (p *replica) prove(beat *core.Heartbeat, now time.Time) {
	if beat.Canary == core.CanaryAlive {
		p.proved = now
	}

	if age := beat.Time.Sub(beat.LastReview); !beat.LastReview.IsZero() && age >= 0 {
		p.proved = latest(p.proved, now.Add(-age))
	}

	if drops(beat) > p.knownDrops(beat) {
		p.dropping = now.Add(patience(beat))
	}

	switch {
	case p.beat == nil:
	case beat.Canary == core.CanaryAlive, p.proved.After(p.beatAt):
		p.unreachable = time.Time{}
	case beat.WebhookFailures > p.beat.WebhookFailures:
		p.unreachable = now.Add(patience(beat))
	}
}

// knownDrops returns the drops before the present heartbeat. Those of an epoch that did not begin
// here are as old as it, so a new leader does not take them for recent.
func (p *replica) knownDrops(present *core.Heartbeat) int64 {
	switch {
	case p.beat != nil:
		return drops(p.beat)
	case p.begins:
		return 0
	default:
		return drops(present)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Bounds on a heartbeat that is kept: about 6 KiB.
const (
	maxText         = 256
	maxFingerprints = 32
	maxReasons      = 16
)

func bound(beat *core.Heartbeat) *core.Heartbeat {
	b := *beat
	for _, text := range []*string{
		&b.ID, &b.Instance, &b.Version, &b.CertificateFingerprint, &b.KeyMaterialError, &b.ConfigHash, &b.ConfigError,
		&b.CanaryError, &b.WebhookError, (*string)(&b.Canary), (*string)(&b.Interruption.Reason), &b.Interruption.Error,
	} {
		*text = boundText(*text)
	}

	b.CAFingerprints = make([]string, min(len(beat.CAFingerprints), maxFingerprints))
	for i := range b.CAFingerprints {
		b.CAFingerprints[i] = boundText(beat.CAFingerprints[i])
	}

	b.Dropped = make(map[core.Reason]int64, min(len(beat.Dropped), maxReasons))

	for i, reason := range slices.Sorted(maps.Keys(beat.Dropped)) {
		if i >= maxReasons-1 {
			b.Dropped["other"] += beat.Dropped[reason]
		} else {
			b.Dropped[core.Reason(boundText(string(reason)))] += beat.Dropped[reason]
		}
	}

	return &b
}

func boundText(text string) string { return strings.Clone(text[:min(len(text), maxText)]) }

// shrink keeps only the fields by which the replica is known again: a fleet remembers many.
func (p *replica) shrink() {
	if p.beat == nil {
		return
	}
	p.beat = &core.Heartbeat{
		Number: p.beat.Number, Interval: p.beat.Interval, Sequence: p.beat.Sequence, Instance: p.beat.Instance,
		Canary: p.beat.Canary, Dropped: p.beat.Dropped, WebhookFailures: p.beat.WebhookFailures,
	}
}

func drops(beat *core.Heartbeat) (n int64) {
	for _, dropped := range beat.Dropped {
		n += dropped
	}
	return n
}

func interval(beat *core.Heartbeat) time.Duration {
	if beat == nil || beat.Interval <= 0 {
		return defaultInterval
	}
	return min(max(beat.Interval, minInterval), maxInterval)
}

func patience(beat *core.Heartbeat) time.Duration { return 2 * interval(beat) }

func (p *replica) isSilent(now time.Time) bool {
	silence := now.Sub(p.lastSeen)
	if p.sharing.on {
		return silence > sharedPatience*patience(p.beat)
	}
	return silence > patience(p.beat) || p.paths.areOver(now)
}

// isSpeaking reports whether the replica sends events or heartbeats.
func (p *replica) isSpeaking(now time.Time) bool {
	return !p.gone && !p.sender.isRevoked() && !p.isSilent(now)
}

// isAlive reports whether the replica sends heartbeats.
func (p *replica) isAlive(now time.Time) bool {
	return p.beat != nil && p.isSpeaking(now)
}

// expired means that the certificate ended at the last requests, which explains the silence.
func (p *replica) expired(now time.Time) bool {
	expiry := p.certificate.notAfter
	return p.beat != nil && !now.Before(expiry) && !p.lastSeen.Add(patience(p.beat)).Before(expiry)
}

// isPunctual reports whether the replica sends heartbeats, and the next one is not overdue.
func (p *replica) isPunctual(now time.Time) bool {
	return p.beat != nil && !p.gone && !p.sender.isRevoked() && p.paths.lost.IsZero() && now.Sub(p.lastSeen) <= interval(p.beat)
}

func (p *replica) status() Replica {
	return Replica{
		Epoch: p.epoch, Sequence: p.sequence, LastSeen: p.lastSeen, Heartbeat: p.beat,
		Proved: p.proved, CertificateExpiry: p.certificate.notAfter, ClockSkew: p.clock.skew(),
	}
}
