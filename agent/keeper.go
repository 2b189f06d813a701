package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
	"github.com/runtime-watcher/runtime-watcher/internal/submap"
)

// The times of a [webhookKeeper].
const (
	// keepPause is the pause before a repair, up to half more or less. It lets a platform end its
	// edits, and another replica repair. A program that takes the rights of the agent away and then
	// removes the configuration, as the uninstallation does, is done by then.
	keepPause = time.Second
	// keepSettle is the time in which API servers take a configuration into use. A resync follows.
	keepSettle = 2 * time.Second
	// keepShown is the least time for which a problem is reported, so that a heartbeat has it.
	keepShown = 7 * time.Second
	// keepPeer is the time for which another replica may have other settings, as in a rollout.
	keepPeer = 2 * time.Minute
	// keepLess is the time for which such a replica may call for less without a report. A rollout
	// of narrower settings has then ended the replicas with the former ones.
	keepLess = 30 * time.Second
	// keepOverlap is the time for which the CAs of another replica stay, as in a rotation. Kubelets
	// need up to some minutes for new key material.
	keepOverlap = 5 * time.Minute
	// keepLongest is the longest pause of a contest.
	keepLongest = 5 * time.Minute
	// keepCalm is the time without a change after which a contest is not reported any more.
	keepCalm = time.Minute
	// keepForget is the time without a change after which the pauses are short again.
	keepForget = 10 * time.Minute
	// keepStart bounds the wait for the first probe of a kubelet.
	keepStart = 10 * time.Second
	// keepWatch bounds a watch. The API server ends it after 5 min.
	keepWatch = 6 * time.Minute
	// keepContest is the number of changes by others that are a contest.
	keepContest = 3
)

// writtenByPeer begins the problem of standsOfPeer.
const writtenByPeer = "an agent with other settings writes the webhook configuration"

// The results of a keeper, in addition to the results of a comparison.
const (
	webhooksRestored  = "restored"
	webhooksContested = "contested"
)

// webhookKeeper keeps the webhook configuration of a self-managing agent. Each replica does, and
// all have the same intention. A replica that others have overtaken with newer settings waits.
type webhookKeeper struct {
	store ConfigurationStore
	want  intended
	// answers reports whether the API server may call this agent: a kubelet knows that it is ready.
	answers func() bool
	every   time.Duration
	// countCheck counts a repair, a read that failed, and a comparison that finds our own
	// configuration. A comparison with that of another owner or replica is not counted, nor is an
	// intended configuration that cannot be built.
	countCheck func(hook.WebhookCheck)
	// requestResync is called when the webhooks are in place again.
	requestResync func()
	log           lineLimiter

	found finding

	// Only keepWebhooks uses the following fields.

	// applied identifies the configuration that was intended and in place last. New settings have
	// another identity, and replace the settings of other replicas.
	applied string
	// isBroken is set while the configuration is not as intended.
	isBroken bool
	// shownSince is the time of the problem in found.
	shownSince time.Time
	// failures counts the writes that failed, since the last one that did not. unread counts the
	// comparisons that failed.
	failures, unread int
	// changes counts the changes by others, until there was none for keepForget.
	changes    int
	changedAt  time.Time
	repairAt   time.Time
	repairedAt time.Time
	// peerSince is when another replica was first seen to have other settings.
	peerSince time.Time
	// lessSince is when a replica was first seen to call for less than this one, and lessAt when it
	// was last. A return of the intended configuration does not end that time, because a program
	// may write both in turn.
	lessSince, lessAt time.Time
	// overlapSince is the time at which CAs in addition to ours were first observed.
	overlapSince time.Time
	// needsResync is set while writes may have passed without a call.
	needsResync bool
}

// shownProblem is for heartbeats, which only read memory.
func (k *webhookKeeper) shownProblem() string { return k.found.text() }

func (k *webhookKeeper) keepWebhooks(ctx context.Context) error {
	k.awaitAnswers(ctx)

	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() {
		k.followChanges(ctx, func() {
			select {
			case changed <- struct{}{}:
			default: // One is enough.
			}
		})
	})
	defer watching.Wait()

	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-changed:
		case <-next.C:
		}

		if ctx.Err() != nil {
			return nil
		}
		next.Reset(k.keepConfiguration(ctx))
	}
}

// awaitAnswers waits until the agent is ready, and a kubelet has seen that. Without probes, as
// outside of a cluster, it waits for keepStart.
func (k *webhookKeeper) awaitAnswers(ctx context.Context) {
	const step = 100 * time.Millisecond
	for end := time.Now().Add(keepStart); ctx.Err() == nil && !k.answers() && time.Now().Before(end); {
		periodic.Pause(ctx, step)
	}
}

// followChanges watches until ctx ends. Without a watch, the comparisons at intervals remain.
func (k *webhookKeeper) followChanges(ctx context.Context, changed func()) {
	for wait := keepPause; ctx.Err() == nil; wait = min(2*wait, k.every) {
		watching, cancel := context.WithTimeout(ctx, keepWatch)
		began := time.Now()
		err := k.store.Watch(watching, changed)
		cancel()

		if err != nil && ctx.Err() == nil {
			k.log.to.DebugContext(ctx, "the webhook configuration cannot be watched: it is polled",
				slog.String("problem", err.Error()))
		}

		if time.Since(began) > k.every {
			wait = keepPause
		}
		periodic.Pause(ctx, wait)
	}
}

// keepConfiguration compares once, repairs if that is due, and returns the time until the next
// comparison.
func (k *webhookKeeper) keepConfiguration(ctx context.Context) time.Duration {
	asking, cancel := context.WithTimeout(ctx, webhooksTimeout)
	defer cancel()

	live, err := k.store.Read(asking)
	if ctx.Err() != nil {
		return k.every
	}

	if err != nil {
		k.countCheck(hook.WebhookCheck{Result: webhooksFailed})
		k.log.warnPaced(ctx, "cannot read the webhook configuration, so the agent cannot restore it: "+
			"check the error, the ClusterRole and WEBHOOK_CONFIGURATION", err.Error())
		k.unread++
		return k.pauseAfter(k.unread)
	}

	want, err := k.want.buildConfiguration()
	if err != nil {
		k.reportProblem(err.Error())
		k.log.warnPaced(ctx, "cannot build the webhook configuration: check the error", err.Error())
		k.unread++
		return k.pauseAfter(k.unread)
	}

	k.unread = 0
	return k.settleConfiguration(ctx, live, want)
}

// settleConfiguration compares the configuration with the intended one, and writes it if that is
// due. It returns the time until the next comparison.
func (k *webhookKeeper) settleConfiguration(ctx context.Context, live, want *webhookConfiguration) time.Duration {
	state, problem := k.want.judge(live, want)
	if state != standsWithMoreCAs {
		k.overlapSince = time.Time{}
	}

	switch state {
	case standsAsIntended:
		return k.concludeIntended(ctx, live, want)
	case standsWithMoreCAs:
		return k.allowOtherCAs(ctx, live, want)
	case standsForeign:
		k.reportProblem(problem)
		if problem != "" {
			k.log.warnPaced(ctx, "the webhook configuration belongs to another program, "+
				"so the agent does not restore it: "+
				"remove the configuration, or set WEBHOOK_CONFIGURATION to another name", problem)
		}
		return k.every
	case standsOfPeer:
		return k.settleWithPeer(ctx, live, want)
	default:
		return k.repairConfiguration(ctx, live, want, problem)
	}
}

// pauseAfter returns the pause after a number of failures in a row. The first ones are short, as
// the network or the key material of a new agent may come within seconds.
func (k *webhookKeeper) pauseAfter(failures int) time.Duration {
	pause := min(keepPause, k.every)
	for range failures - 1 {
		pause = min(2*pause, k.every)
	}
	return pause
}

// concludeIntended ends a repair, of this replica or of another one. A resync follows when API
// servers use the configuration, and the problem ends when it was shown for long enough.
func (k *webhookKeeper) concludeIntended(ctx context.Context, live, want *webhookConfiguration) time.Duration {
	k.markIntended(live, want)

	settling := keepSettle - time.Since(k.repairedAt)
	if k.needsResync && settling > 0 {
		return settling
	}

	if k.needsResync {
		k.needsResync = false
		k.log.to.InfoContext(ctx, "the webhooks match the intended configuration: a resync is requested")
		k.requestResync() // The API server did not call the agent for some writes.
	}

	left := time.Until(k.shownUntil())
	if k.shownProblem() != "" && left > 0 {
		return min(left, k.every)
	}

	k.reportProblem("")
	k.log.forgetLast()
	return k.every
}

// markIntended notes and counts that the intended configuration is in place.
func (k *webhookKeeper) markIntended(live, want *webhookConfiguration) {
	k.want.noteConditions(live, want)
	k.countCheck(hook.WebhookCheck{Result: webhooksSame})
	k.applied = identityOf(want)
	k.peerSince = time.Time{}

	if k.isBroken {
		k.isBroken = false
		k.repairedAt = time.Now()
	}
}

// shownUntil is when a problem has been reported for long enough. That of a contest is reported
// until the contest has been calm for keepCalm.
func (k *webhookKeeper) shownUntil() time.Time {
	until := k.shownSince.Add(keepShown)
	calm := k.repairedAt.Add(keepCalm)
	if k.changes >= keepContest && calm.After(until) {
		return calm
	}
	return until
}

// allowOtherCAs keeps the CAs of another replica in addition to ours for keepOverlap.
func (k *webhookKeeper) allowOtherCAs(ctx context.Context, live, want *webhookConfiguration) time.Duration {
	if k.overlapSince.IsZero() {
		k.overlapSince = time.Now()
	}

	left := keepOverlap - time.Since(k.overlapSince)
	if left <= 0 {
		return k.applyConfiguration(ctx, live, want)
	}

	return min(k.concludeIntended(ctx, live, want), left)
}

// settleWithPeer writes the settings of this replica if they were never in place, because they are
// newer. Otherwise the other replica has newer settings, as in a rollout: they stay for up to
// keepPeer. After that time, this replica repairs the configuration.
func (k *webhookKeeper) settleWithPeer(ctx context.Context, live, want *webhookConfiguration) time.Duration {
	wasInPlace := k.applied == identityOf(want)
	if !wasInPlace {
		return k.applyConfiguration(ctx, live, want)
	}
	if k.peerSince.IsZero() {
		k.peerSince = time.Now()
	}

	since := k.peerSince
	problem := writtenByPeer
	missing := lessThan(live, want)
	if missing != "" {
		k.needsResync = true // Writes may pass without a call until ours is in place again.
		since = k.beginLess()
		problem += ": " + missing
	}

	elapsed := time.Since(since)
	if elapsed >= keepPeer {
		return k.repairConfiguration(ctx, live, want, problem)
	}

	next := keepPeer - elapsed
	if missing != "" && elapsed >= keepLess {
		k.reportProblem(problem)
	} else if missing != "" {
		next = keepLess - elapsed
	}
	return min(next, k.every)
}

// beginLess begins the time for which a replica calls for less, unless that time has begun, and
// returns when it began.
func (k *webhookKeeper) beginLess() time.Time {
	now := time.Now()
	if now.Sub(k.lessAt) > keepForget {
		k.lessSince = now
	}

	k.lessAt = now
	return k.lessSince
}

// lessThan names the calls that API servers make with want and do not make with live.
func lessThan(live, want *webhookConfiguration) string {
	judged := live.DeepCopy()
	judged.Annotations[admission.RecordAnnotation] = want.Annotations[admission.RecordAnnotation]
	return strings.Join(admission.Differences(judged), "; ")
}

// repairConfiguration puts the configuration back after a pause, which grows in a contest.
func (k *webhookKeeper) repairConfiguration(
	ctx context.Context, live, want *webhookConfiguration, problem string,
) time.Duration {
	if live == nil && k.applied == "" {
		return k.applyConfiguration(ctx, live, want) // The first one.
	}

	now := time.Now()
	if !k.isBroken {
		k.isBroken = true
		k.needsResync = true
		k.noteChange(now)
	}

	if k.changes >= keepContest {
		problem = fmt.Sprintf("contested by %s, %d changes: %s", changerOf(live), k.changes, problem)
	}
	k.reportProblem(problem)

	if k.changes < keepContest {
		k.countCheck(hook.WebhookCheck{Result: webhooksChanged})
		k.log.noteLine(ctx, slog.LevelError, "webhooks differ from the intended configuration, so changes are missed: "+
			"the agent restores them", problem)
	} else {
		k.countCheck(hook.WebhookCheck{Result: webhooksContested})
		k.log.noteLine(ctx, slog.LevelError, "another program repeatedly changes the webhooks, so changes are missed: "+
			"find the program in managedFields of the webhook configuration, and exclude the configuration "+
			"from it", problem)
	}

	if left := k.repairAt.Sub(now); left > 0 {
		return left
	}
	return k.applyConfiguration(ctx, live, want)
}

// noteChange sets the time of the next repair: after about 1 s twice, and then after twice as long
// each time.
func (k *webhookKeeper) noteChange(now time.Time) {
	if now.Sub(k.changedAt) > keepForget {
		k.changes = 0
	}
	k.changes++
	k.changedAt = now

	pause := keepPause
	for range k.changes - (keepContest - 1) {
		pause = min(2*pause, keepLongest)
	}
	k.repairAt = now.Add(pause/2 + rand.N(pause)) //nolint:gosec // It is no secret.
}

// applyConfiguration writes the configuration. Additions of others survive an apply, so a
// configuration that is still wrong is made again. In a contest, it is made again without the
// labels and annotations of others, because such an annotation may cause the changes. If API
// servers cannot verify this replica by the CAs there, these may belong to another replica, and
// stay in addition to ours.
func (k *webhookKeeper) applyConfiguration(ctx context.Context, live, want *webhookConfiguration) time.Duration {
	writing, cancel := context.WithTimeout(ctx, webhooksTimeout)
	defer cancel()

	k.needsResync = true
	next := want
	if k.failures == 0 { // An API server may refuse many CAs.
		next = k.want.withCAsOf(live, want)
	}

	result, err := k.writeConfiguration(writing, live, next)
	if ctx.Err() != nil {
		return k.every
	}

	if err != nil {
		k.countCheck(hook.WebhookCheck{Result: webhooksFailed})
		k.reportProblem(cmp.Or(k.shownProblem(), "the webhook configuration cannot be written: "+err.Error()))
		k.log.warnPaced(ctx, "cannot write the webhook configuration, so changes are missed: "+
			"check the error, the ClusterRole and the policy of the webhooks", err.Error())
		k.failures++
		pause := k.pauseAfter(k.failures)
		k.repairAt = time.Now().Add(pause)
		return pause
	}

	k.failures = 0
	k.countCheck(hook.WebhookCheck{Result: webhooksRestored})
	k.applied = identityOf(want)
	k.isBroken = false
	k.peerSince = time.Time{}
	k.repairedAt = time.Now()
	k.log.to.InfoContext(ctx, "the webhook configuration is written", slog.Int("webhooks", len(result.Webhooks)))
	return keepSettle
}

func (k *webhookKeeper) writeConfiguration(
	ctx context.Context, live, next *webhookConfiguration,
) (*webhookConfiguration, error) {
	result := live
	if live == nil || !k.mustReplace(live, next) {
		var err error
		result, err = k.store.Apply(ctx, next, live)
		if err != nil {
			return nil, err
		}

		k.want.noteConditions(result, next)
		if k.isAsIntended(result, next) {
			return result, nil
		}
	}

	if err := k.store.Delete(ctx, result); err != nil {
		return nil, err
	}

	result, err := k.store.Apply(ctx, next, nil)
	if err != nil {
		return nil, err
	}

	k.want.noteConditions(result, next)
	return result, nil
}

// mustReplace reports whether an apply would leave fields that must go. In a contest, other
// programs may find the configuration by its labels and annotations.
func (k *webhookKeeper) mustReplace(live, next *webhookConfiguration) bool {
	if len(guestsOf(live, next)) > 0 {
		return true
	}

	isContested := k.changes >= keepContest
	return isContested && hasForeignMetadata(live, next)
}

// hasForeignMetadata reports whether a configuration has labels or annotations that this agent does
// not write, such as one by which cert-manager replaces the CA bundle.
func hasForeignMetadata(live, want *webhookConfiguration) bool {
	return !submap.Contains(want.Labels, live.Labels) || !submap.Contains(want.Annotations, live.Annotations)
}

func (k *webhookKeeper) isAsIntended(live, want *webhookConfiguration) bool {
	state, _ := k.want.judge(live, want)
	return state == standsAsIntended
}

// reportProblem is for heartbeats. A problem is shown for keepShown at least.
func (k *webhookKeeper) reportProblem(problem string) {
	problem = bounded(problem)
	if problem != "" && k.shownProblem() == "" {
		k.shownSince = time.Now()
	}
	k.found.setText(problem)
}

// changerOf names the field manager, other than this agent, that changed a configuration last.
func changerOf(live *webhookConfiguration) string {
	if live == nil {
		return "a program that deletes the webhook configuration"
	}

	var last *time.Time
	name := "an unknown program"
	for n := range live.ManagedFields {
		entry := &live.ManagedFields[n]
		isOurs := entry.Manager == canary.FieldManager
		if isOurs || entry.Time == nil {
			continue
		}
		if last != nil && entry.Time.Time.Before(*last) {
			continue
		}

		last = &entry.Time.Time
		name = fmt.Sprintf("the field manager %.64q", entry.Manager)
	}
	return name
}
