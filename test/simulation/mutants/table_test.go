package mutants

// mutant is a fault that is put into the code: old becomes new in a file.
type mutant struct{ name, old, new string }

// table has mutants by their file in this repository: one for each mechanism, and faults that were found and mended
// once. Mutants of the economy send or do twice as much.
var table = map[string][]mutant{
	"adapters/admission/body.go": {
		{"admission: room for the announced length (row 13)", "step < believedFrom || int64(step) > announced", "int64(step) > announced"},
	},
	"adapters/admission/handler.go": {
		{"admission: nothing for a review that cannot be parsed (row 6)", "missed: true, refusal: badReview(err)", "refusal: badReview(err)"},
		{"admission: nothing for a review without room (row 5)", "decision: hook.DecisionUnread, missed: true", "decision: hook.DecisionUnread"},
	},
	"adapters/admission/record.go": {
		{"admission: a missing webhook is no difference", "differences = append(differences, name+\" is missing\")", "_ = name"},
	},
	"adapters/admission/registration.go": {
		{"admission: a selector matches all objects", "labelSelector(r.Selector)", "&metav1.LabelSelector{}"},
	},
	"adapters/admission/review.go": {{"admission: dry runs are events", "DryRun:      q.dryRun,", "DryRun:      false,"}},
	"adapters/admission/target.go": {
		{"admission: each watch is of the spec", "if r.Field == core.FieldStatus {", "if r.Field == core.FieldStatus && subresource != \"\" {"},
	},
	"adapters/controllerruntime/mapfunc.go": {
		{"source: a label finds no object", "for i, name := range names {", "for i, name := range names[:0] {"},
	},
	"adapters/controllerruntime/awaited.go": {
		{"source: a read before the commit counts", "if a.version > event.Base {", "if a.version >= event.Base {"},
		{"source: an absent object has no later writes", "return deleted || ended", "return deleted && ended"},
	},
	"adapters/controllerruntime/client.go": {
		{"source: the newest read of a reconcile counts", "if r.known[a] {", "if r.known[a] && r.reads == nil {"},
		{"source: a read counts for nothing", "a.version = version\n\t\t\ta.read = now", "_, _ = version, now"},
		{"source: absence before a creation counts", "a.absent = read.absent && existed && a.sinceOrder <= r.began", "a.absent = read.absent || existed"},
	},
	"adapters/controllerruntime/deliver.go": {
		{
			"source: resyncs are not enqueued",
			"case d.Event.Resync:\n\t\t\tto.addResync(r, 0)", "case d.Event.Resync:\n\t\t\t_ = r",
		},
	},
	"adapters/controllerruntime/raise.go": {
		{
			"source: only five resyncs wait for a change's priority",
			"earlier == nil || end.Before(earlier.end) {", "(earlier == nil || end.Before(earlier.end)) && len(r.raised) < 5 {",
		},
	},
	"adapters/controllerruntime/reads.go": {
		{"source: earlier reads count after a resync", "a.version = 0\n", "_ = a.version\n"},
		{"source: an early read is not repeated", "return !a.hasReadLately(&event, now)", "return a.hasRead(&event) && now.IsZero()"},
		{"source: a read before the check counts for nothing", "return !a.hasReadLately(&event, now)", "return !now.Before(c.end) || a.hasRead(&event)"},
	},
	"adapters/controllerruntime/source.go": {
		{"source: a check is named that is not made", "if err != nil || !to.reads.isMatched() {", "if err != nil || to == nil {"},
		{"source: a failed map function is an acknowledgement", "return nil, classify(err)", "return nil, nil"},
	},
	"adapters/httpmtls/fallback.go": {
		{
			"httpmtls: a refused heartbeat delays events",
			"if !now.older && len(batch.Events) == 0 {", "if now.older && len(batch.Events) > len(batch.Events) {",
		},
	},
	"adapters/httpmtls/forwarder.go": {
		{"httpmtls: new key material is not used", "if f.pool == nil || f.pool.material != material {", "if f.pool == nil {"},
	},
	"adapters/httpmtls/answer.go": {
		{"httpmtls: failures are taken for success", "const firstSuccess, lastSuccess = 200, 299", "const firstSuccess, lastSuccess = 200, 503"},
	},
	"adapters/natsjetstream/conclude.go": {
		{"natsjetstream: a message that is handled is not acknowledged", "hook.FateEnqueued, \"\", j.msg.Ack()", "hook.FateEnqueued, \"\", nil"},
		{"natsjetstream: a message that comes again is dropped", "Redelivered(hook.Redelivery{Manager: manager})", "Redelivered(hook.Redelivery{Manager: manager})\n\t\t_ = j.msg.Ack()\n\t\treturn"},
		{
			"natsjetstream: a refused message holds up its runtime",
			"j.msg.NakWithDelay(wait)", "func() error { <-time.NewTimer(wait).C; return j.msg.Nak() }()",
		},
		{"natsjetstream: an old heartbeat proves that a runtime is fresh", "if j.age > staleHeartbeat {", "if j.age < 0 {"},
	},
	"adapters/natsjetstream/message.go": {
		{
			"natsjetstream: a refusal that is taken back is a delivery",
			"return true, f.takeBack(m, msg, &answer)", "_ = f.takeBack(m, msg, &answer)\n\t\treturn true, nil",
		},
	},
	"adapters/natsjetstream/pull.go": {
		{
			"natsjetstream: a malformed message keeps its slot",
			"reasons.Malformed, err)\n\t\t<-q.slots\n\t\treturn", "reasons.Malformed, err)\n\t\treturn",
		},
		{"natsjetstream: a replica asks once whether it leads", "for ctx.Err() == nil {\n\t\tif c.intake", "for range 1 {\n\t\tif c.intake"},
	},
	"adapters/natsjetstream/returns.go": {
		{
			"natsjetstream: an offer never gives its place back",
			"case r.slots <- struct{}{}:\n\t\tdefer func() { <-r.slots }()", "case r.slots <- struct{}{}:",
		},
	},
	"agent/keeper.go": {
		{"agent: no resync after its webhooks are put back", "k.requestResync()", "_ = k.requestResync"},
		{"agent: its webhooks are put back late", "keepPause = time.Second", "keepPause = 20 * time.Second"},
	},
	"agent/webhookwatch.go": {
		{"agent: a changed webhook is not reported", "w.found.setText(problem)", "_ = problem"},
		{"agent: no resync when the webhooks are right again", "w.requestResync()", "_ = former"},
	},
	"agent/webhook.go":        {{"agent: the review of a stranger is a proof", "if b.keys.callers != nil {\n inbox.Proved(review.Manager)", "if b.opts.Logger != nil {\n inbox.Proved(review.Manager)"}},
	"core/contract/encode.go": {{"contract: a heartbeat is not cut (row 27)", "heartbeat := cutHeartbeat(sent)", "_, heartbeat := cutHeartbeat(sent), *sent"}},
	"core/contract/meaning.go": {
		{"contract: a foreign 403 is a refusal (row 34)", "foreign && r.Status == statusForbidden", "!foreign && foreign"},
	},
	"core/filter.go": {{"core: other labels are no change", "!sameSpec(c) || !c.sameSelection()", "!sameSpec(c)"}},
	"core/fleet/deliver.go": {
		twice("CauseNewEpoch"), twice("CauseGap"), twice("CauseReturned"), twice("CauseReplicaLost"),
		{"fleet: a resync that the handler does not take is lost", "f.giveBack(k, claimed)", "_ = claimed"},
		{
			"fleet: a resync of a forgotten runtime is put back",
			"if f.records[k] != nil {\n\t\tf.resyncs.giveBack", "if f.records != nil {\n\t\tf.resyncs.giveBack",
		},
	},
	"core/fleet/fleet.go": {
		{"fleet: no resync for a return", "case cause != \"\":\n", "case cause != \"\" && cause != CauseReturned:\n"},
	},
	"core/fleet/judge.go": {
		{"fleet: fresh without proof (row 26)", "case !proved:\n\t\treturn Unproved, \"\"\n", ""},
	},
	"core/fleet/observe.go": {
		{"fleet: no resync for a lost replica", "return r.dismissReplicas(resendOfLoss(now)", "return now.IsZero() && r.dismissReplicas(resendOfLoss(now)"},
		{
			"fleet: the resync for a lost replica is not resent",
			"p.gone = true\n\t\t\tp.resend = again", "p.gone = true\n\t\t\tp.resend = resync{}\n\t\t\t_ = again",
		},
		{"fleet: a new fleet asks once only", "r.resend.postpone(CauseNewEpoch, resendOfLoss(now).due)", "_ = resendOfLoss(now)"},
		{"fleet: a replica is lost while all are cut off", "return p.isPunctual(now) })", "return p.isAlive(now) })"},
		{"fleet: no resync for a new epoch", "return CauseNewEpoch", "p.resend, r.resend = resync{}, resync{}"},
		{"fleet: a replica that leaves is lost", "if heartbeat.Leaving {", "if heartbeat.Leaving && p.gone {"},
		{"fleet: each heartbeat is a return", "r.endProofs()\n\t}", "r.endProofs()\n\t} else {\n\t\tcause = CauseReturned\n\t}"},
	},
	"core/fleet/paths.go": {
		{"fleet: the end of a connection does not count", "now.Sub(p.lost) > reconnectWithin", "now.Sub(p.lost) > maxInterval"},
		{"fleet: no time to connect again", "return !p.lost.IsZero() && now.Sub(p.lost) > reconnectWithin", "return !p.lost.IsZero()"},
	},
	"core/fleet/query.go": {
		{
			"fleet: the first unproved manager decides on the polling",
			"wait = f.opts.PollUnproved", "return f.opts.PollUnproved",
		},
		{"fleet: one stale manager does not count", "default:\n\t\t\treturn f.opts.PollOtherwise", "default:"},
	},
	"core/fleet/replica.go": {
		{"fleet: no resync for a gap", "cause = CauseGap\n\t\tp.sequence = heartbeat.Sequence", "p.sequence = heartbeat.Sequence"},
		{"fleet: each batch is a gap", "if sequence > p.sequence && sequence-p.sequence > 1 {", "if sequence > p.sequence {"},
	},
	"core/fleet/resync.go": {
		{
			"fleet: a resync for an owner counts for the runtime (row 4)",
			"if e.Resync && e.Owner == (types.NamespacedName{}) && refused[i] == nil {",
			"if _ = (types.NamespacedName{}); e.Resync && refused[i] == nil {",
		},
	},
	"core/fleet/resyncs.go": {
		{"fleet: a resync stays due", "delete(s.toCome, k)\n\t\ts.underWay[k] = true", "s.underWay[k] = true"},
	},
	"core/fleet/sharing.go": {
		{"fleet: active replicas resync for each gap", "case s.on && cause == CauseGap:", "case s.on && cause == \"\":"},
	},
	"core/fleet/summary.go": {
		{"fleet: a negative backlog hides those of others", "min(max(p.heartbeat.Pending, 0), mostPending)", "min(p.heartbeat.Pending, mostPending)"},
		{"fleet: a huge backlog overflows", "min(max(p.heartbeat.Pending, 0), mostPending)", "max(p.heartbeat.Pending, 0)"},
	},
	"core/fleet/trouble.go": {
		{"fleet: a lost canary does not count (row 26)", "return m.heartbeat.Canary == core.CanaryLost", "return false && m.heartbeat == nil"},
		{"fleet: changed webhooks do not count", "return m.heartbeat.WebhookError != \"\"", "return false && m.heartbeat == nil"},
		{"fleet: drops degrade for ever", "return m.now.Before(m.dropsUntil)", "return !m.dropsUntil.IsZero()"},
	},
	"core/intake/receive.go": {
		{
			"intake: all events refused is the request refused (row 1)",
			"refusal := t.verifySender(ctx)\n", "refusal := t.verifySender(ctx)\n\tif refusal == nil && allRefused {\n\t\trefusal = o.Failed[0]\n\t}\n",
		},
		{"intake: a replica that does not lead takes heartbeats", "f = t.askReady(ctx)\n\t}", "f = nil\n\t}"},
		{"intake: a panic costs the whole batch", "f = newFailure(err) })\n\tif f", "panic(err) })\n\tif f"},
		{"intake: a replica that does not lead refuses events", "!o.verified || o.isOfReplica() || len(o.Failed) == 0", "t.opts.Fleet != nil"},
		{"intake: a panic of the verifier hides a number", "isKnown := o.verified && !allRefused", "isKnown := !allRefused"},
	},
	"core/outbox/accept.go": {{"outbox: renewed key material ends no wait", "l.endWaits(now)", "_, _ = l, now"}},
	"core/outbox/backoff.go": {
		{"outbox: a wait that the receiver asks for is ignored", "wait = max(wait, asked+o.jitter(asked/4))", "wait = max(wait, 0)"},
		{"outbox: no backoff", "wait = wait/2 + o.jitter(wait/2)", "wait = 20 * time.Millisecond"},
	},
	"core/outbox/call.go": {
		{
			"outbox: events that were not sent are delivered (row 3)",
			"case errors.Is(refusal, core.ErrNotSent):\n\t\treturn unsent", "case errors.Is(refusal, core.ErrNotSent):\n\t\treturn delivered",
		},
	},
	"core/outbox/conclude.go": {
		{"outbox: no resync for an event that is given up", "l.replaceByResync(e.newest, core.IsPermanent(refusal), a.now)", "_ = refusal"},
		{
			"outbox: a failed batch loses its events",
			"case failed:\n\t\te.seen = true\n\t\tl.enqueueEntry(e)", "case failed:\n\t\tl.freeEntry(e)\n\t\tl.counts.Pending--\n\t\tl.counts.Delivered++",
		},
		{
			"outbox: a refusal pauses the lane (row 1)",
			"a := newAnswer(c, time.Now())",
			"a := newAnswer(c, time.Now())\n\tif len(a.events) > 0 && len(a.events) == len(c.batch.Events) {\n\t\ta.events, a.whole = nil, c.err\n\t}",
		},
		{"economy: half of the wait after a refusal", "e.due = a.now.Add(wait)", "e.due = a.now.Add(wait / 2)"},
	},
	"core/outbox/entry.go": {
		{"outbox: a merged event keeps its ID (row 10)", "e.revision++\n\t\te.ID = \"\"", "e.revision++"},
		{"outbox: refused events are never given up (row 1)", "!e.Resync && e.refusals > 0 && now.Sub(e.refused) >= limit", "false"},
		{"outbox: a resync of the runtime is given up", "return !e.Resync || e.Owner", "return true || e.Owner"},
	},
	"core/outbox/heartbeat.go": {
		{"outbox: no last heartbeat", "l.pause.isOn() && l.schedule.leaving == stays", "l.pause.failures >= 0"},
		{"outbox: no heartbeat after the end of a connection", "disconnects != l.schedule.disconnects", "disconnects < l.schedule.disconnects"},
		{"outbox: a last heartbeat does not name the resends that wait", "heartbeat.Pending += int64(len(l.resends))", "_ = l.resends"},
		{"economy: heartbeats twice as often", "interval - l.opts.jitter(interval/10)", "interval / 2"},
	},
	"core/outbox/keep.go": {
		{"outbox: events do not settle", "usual := max(l.opts.Settle, 0)", "usual := max(l.opts.Settle, 0) / 1000"},
	},
	"core/outbox/lanes.go": {
		{"outbox: invented managers keep their lanes (row 14)", "case l.isUnproved():", "case l.isUnproved() && l.manager == \"\":"},
	},
	"core/outbox/outbox.go": {
		{"outbox: no resync first", "if !o.opts.ResyncFirst || o.opts.ResyncOwners {", "if !o.opts.ResyncFirst || !o.opts.ResyncOwners {"},
	},
	"core/outbox/owners.go": {
		{"outbox: resyncs have no pace", "return latest(due, last.Add(resyncInterval))", "return latest(due, last)"},
	},
	"core/outbox/pause.go": {
		{"outbox: calls in flight count as failures in a row (row 2)", "return started.Before(p.began)", "return started.IsZero() && p.began.IsZero()"},
		{"economy: half of the wait after failures", "p.ends = now.Add(wait)", "p.ends = now.Add(wait / 2)"},
	},
	"core/outbox/resend.go": {
		{"outbox: resyncs are not resent (rows 5, 47)", "delays = []time.Duration{o.ResendResync}", "delays = nil"},
		{"outbox: nothing is resent (row 54)", "return at, l.onGrid(at), again", "return at, l.onGrid(at), again && l.totals.keys < 0"},
		{"outbox: only the first resend", "for _, delay := range delays {", "for _, delay := range delays[:1] {"},
		{"economy: each change six times", "delays := o.Resend", "delays := append([]time.Duration{1e9, 2e9, 8e9}, o.Resend...)"},
		{"economy: each resync four times", "{o.ResendResync}", "{o.ResendResync / 3, o.ResendResync / 2, o.ResendResync}"},
	},
	"core/outbox/resync.go": {{"outbox: no resync after an overflow", "if !first && room {", "if !first {"}},
	"core/outbox/room.go": {
		{"outbox: no resync for an event that gives way", "hog.keepResync(e.Owner, now)", "_ = hog"},
		{"outbox: the first manager takes all keys (row 14)", "if !s.giveUpResend(l, most, now) && !s.giveUpEvent(l, most, now) {", "if most.more > 0 {"},
	},
	"core/outbox/schedule.go": {
		{"outbox: early heartbeats without a change", "return present != r.state || hasNewLosses", "return present == r.state || hasNewLosses"},
		{"outbox: no early heartbeats", "if s.leaving == stays && at.Before(s.next) {", "if s.leaving == stays && at.Before(s.extra) {"},
	},
	"core/outbox/store.go": {
		{
			"outbox: a newer event replaces one that travels",
			"case e.next == nil:\n\t\te.next = ", "case e.queue == nil:\n\t\te.WatchEvent = event\n\n\t\treturn core.Coalesced\n\tcase e.next == nil:\n\t\te.next = ",
		},
		{"outbox: new events do not wake the dispatcher", "s.putInQueue(q, e)", "q.addEntry(e)"},
	},
	"core/outbox/take.go": {
		{"outbox: a lone heartbeat names less than was seen", "&& !l.mayBeSeen()", ""},
		{
			"outbox: heartbeats overtake events",
			"if !withHeartbeat || !l.travelsAlone() {",
			"if !withHeartbeat {",
		},
	},
	"core/owner.go": {
		{"core: the owner before a change", "c.New.Annotation(c.ownerAnnotation())", "c.Old.Annotation(c.ownerAnnotation())"},
	},
	"internal/shared/canary/canary.go": {
		{"canary: no resync when the webhook is back", "c.opts.Recovered()\n", "_ = state\n"},
		{"canary: a lower version is no restore", "if version < before || isRaised {", "if isRaised {"},
		{"canary: a much higher version is no restore", "if version < before || isRaised {", "if _ = isRaised; version < before {"},
	},
	"internal/pacedlog/handler.go": {
		{"outbox: a log line for each failure", "if now.Before(k.next) {", "if now.Before(k.next.Add(-p.every)) {"},
	},
	"keys/files.go": {
		{
			"keys: key material is followed by the leader only (row 28)",
			"func (*Files) NeedLeaderElection() bool { return false }", "func (*Files) NeedLeaderElection() bool { return true }",
		},
	},
	"keys/tlsconfig.go": {
		{
			"keys: client CAs wait for a new serving certificate",
			"last.serving != serving || last.clients != clients", "last.serving != serving",
		},
	},
	"listener/checker.go": {{"listener: a certificate that expires stays valid on its connection", "&& !now.After(v.notAfter)", ""}},
	"listener/exchange.go": {
		{
			"listener: wrong paths are free (row 16)",
			"if tooFast := x.intake.Enter(account, x.chargedSize()); tooFast != nil {",
			"if tooFast := x.intake.Enter(account, x.chargedSize()); tooFast != nil && x.version != \"\" {",
		},
	},
	"listener/pinning.go": {{"listener: no SAN pinning", "case !hasSAN(&peer, domain):", "case !hasSAN(&peer, domain) && domain == \"\":"}},
}

// twice counts two resyncs in place of one.
func twice(cause string) mutant {
	const delivered = "f.noteDelivered(k.manager, claimed.cause)"
	return mutant{
		"economy: two resyncs of the fleet, cause " + cause,
		delivered, delivered + "\n\tif claimed.cause == " + cause + " {\n\t\t" + delivered + "\n\t}",
	}
}
