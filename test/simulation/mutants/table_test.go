package mutants

// mutant is a fault that is put into the code: old becomes new in one file of this repository.
type mutant struct {
	name     string
	file     string
	old, new string
}

// table has one mutant for each mechanism, and faults that were found and mended once.
func table() []mutant {
	var all []mutant
	all = append(all, outboxMutants()...)
	all = append(all, fleetMutants()...)
	all = append(all, economyMutants()...)
	all = append(all, streamMutants()...)
	return append(all, pathMutants()...)
}

const (
	accept   = "core/outbox/accept.go"
	conclude = "core/outbox/conclude.go"
	resend   = "core/outbox/resend.go"
	lane     = "core/outbox/lane.go"
	entry    = "core/outbox/entry.go"
	room     = "core/outbox/room.go"
	resync   = "core/outbox/resync.go"
	receive  = "core/intake/receive.go"
)

func outboxMutants() []mutant {
	return []mutant{
		{
			"outbox: events do not settle", room,
			"due := now.Add(max(l.opts.Settle, 0))", "due := now",
		},
		{
			"outbox: nothing is resent (row 54)", conclude,
			"l.opts.resendAt(e, sent); again {", "l.opts.resendAt(e, sent); again && l.allKeys < 0 {",
		},
		{
			"outbox: resyncs are not resent (rows 5, 47)", resend,
			"delays = []time.Duration{o.ResendResync}", "delays = nil",
		},
		{
			"outbox: no resync after an overflow", resync,
			"if first || !room {", "if first {",
		},
		{
			"outbox: no resync for an event that gives way", room,
			"hog.resync(e.Owner, now)", "_ = hog",
		},
		{
			"outbox: no resync for an event that is given up", conclude,
			"l.standIn(e.newest, core.IsPermanent(refusal), now)", "_ = now",
		},
		{
			"outbox: refused events are never given up (row 1)", conclude,
			"return !e.Resync && e.refusals > 0 && now.Sub(e.refused) >= limit", "return false",
		},
		{
			"outbox: no resync first", "core/outbox/outbox.go",
			"if !o.opts.ResyncFirst || o.opts.ResyncOwners {", "if !o.opts.ResyncFirst || !o.opts.ResyncOwners {",
		},
		{
			"outbox: a newer event replaces one that travels", lane,
			"case e.next == nil:\n", "case e.queue == nil:\n\t\te.WatchEvent = event\n\n\t\treturn core.Coalesced, false\n\tcase e.next == nil:\n",
		},
		{
			"outbox: a merged event keeps its ID (row 10)", entry,
			"e.revision++\n\t\te.ID = \"\"", "e.revision++",
		},
		{
			"outbox: a failed batch loses its events", conclude,
			"e.alone = e.alone || core.IsPermanent(whole)\n\t\tl.enqueue(e)", "l.free(e)\n\t\tl.counts.Pending--\n\t\tl.counts.Delivered++",
		},
		{
			"outbox: a wait that the receiver asks for is ignored", conclude,
			"wait = max(wait, asked+o.jitter(asked/4))", "wait = max(wait, 0)",
		},
		{
			"outbox: renewed key material ends no wait", "core/outbox/outbox.go",
			"l.retry(now)", "_, _ = l, now",
		},
		{
			"outbox: resyncs have no pace", room,
			"again && event.Resync && next.After(due)", "again && event.Resync && next.Before(last)",
		},
		{
			"outbox: no last heartbeat", "core/outbox/heartbeat.go",
			"case l.pulse.next.IsZero(), l.failures > 0 && l.pulse.leaving == stays:", "case l.pulse.next.IsZero(), l.failures >= 0:",
		},
		{
			"outbox: events that were not sent are delivered (row 3)", conclude,
			"case errors.Is(refusal, core.ErrNotSent):\n\t\tl.enqueue(e)\n\tcase refusal == nil:", "case refusal == nil, errors.Is(refusal, core.ErrNotSent):",
		},
		{
			"outbox: no backoff", conclude,
			"wait = wait/2 + o.jitter(wait/2)", "wait = 20 * time.Millisecond",
		},
		{
			"outbox: a refusal pauses the lane (row 1)", conclude,
			"events, whole := c.split()",
			"events, whole := c.split()\n\tif len(events) > 0 && len(events) == len(c.batch.Events) {\n\t\tevents, whole = nil, c.err\n\t}",
		},
		{
			"outbox: new events do not wake the dispatcher", lane,
			"l.await(q, e)", "q.add(e)",
		},
		{
			"outbox: heartbeats overtake events", lane,
			"batch = l.takeEvents(limit, now)\n\tbeat = l.pulse.due(now) && !isAlone(batch)",
			"beat = l.pulse.due(now)\n\tif !beat {\n\t\tbatch = l.takeEvents(limit, now)\n\t}",
		},
		{
			"outbox: a log line for each failure", "internal/pacedlog/handler.go",
			"if now.Before(k.next) {", "if now.Before(k.next.Add(-p.every)) {",
		},
		{
			"outbox: invented managers keep their lanes (row 14)", accept,
			"case l.isUnproved():", "case l.isUnproved() && l.manager == \"\":",
		},
		{
			"outbox: the first manager takes all keys (row 14)", room,
			"return o.giveUpResend(l, now) || o.giveUpEvent(l, now)", "return false",
		},
		{
			"outbox: only the first resend", resend,
			"for _, delay := range delays {", "for _, delay := range delays[:1] {",
		},
		{
			"outbox: a resync of the runtime is given up", conclude,
			"return !e.Resync || e.Owner", "return true || e.Owner",
		},
		{
			"outbox: no heartbeat after the end of a connection", "core/outbox/heartbeat.go",
			"if disconnects != l.pulse.disconnects {", "if disconnects < l.pulse.disconnects {",
		},
		{
			"outbox: a last heartbeat does not name the resends that wait", "core/outbox/heartbeat.go",
			"beat.Pending += int64(len(l.resends))", "_ = l.resends",
		},
		{
			"outbox: early heartbeats without a change", "core/outbox/heartbeat.go",
			"if stateOf(&beat) != last.state || loses", "if stateOf(&beat) == last.state || loses",
		},
		{
			"outbox: no early heartbeats", "core/outbox/heartbeat.go",
			"if p.leaving == stays && at.Before(p.next) {", "if p.leaving == stays && at.Before(p.extra) {",
		},
		{
			"outbox: calls in flight count as failures in a row (row 2)", conclude,
			"case whole == nil, ctx.Err() != nil, c.started.Before(l.paused):", "case whole == nil, ctx.Err() != nil:",
		},
	}
}

const (
	judge   = "core/fleet/judge.go"
	record  = "core/fleet/record.go"
	replica = "core/fleet/replica.go"
)

func fleetMutants() []mutant {
	return []mutant{
		{
			"fleet: no resync for a lost replica", record,
			"return r.dismiss(resendOfLoss(now), func", "return now.IsZero() && r.dismiss(resendOfLoss(now), func",
		},
		{
			"fleet: the resync for a lost replica is not resent", record,
			"true, true, again\n", "true, true, resync{}\n\t\t\t_ = again\n", //nolint:dupword // It is code.
		},
		{
			"fleet: a new fleet asks once only", record,
			"r.unknown = resync{causeNewEpoch, resendOfLoss(now).due}", "_ = resendOfLoss(now)",
		},
		{
			"fleet: a replica is lost while all are cut off", record,
			"return p.isPunctual(now) })", "return p.isAlive(now) })",
		},
		{
			"fleet: the end of a connection does not count", "core/fleet/paths.go",
			"return !p.lost.IsZero() && now.Sub(p.lost) > reconnectWithin", "return !p.lost.IsZero() && now.Sub(p.lost) > maxInterval",
		},
		{
			"fleet: no time to connect again", "core/fleet/paths.go",
			"return !p.lost.IsZero() && now.Sub(p.lost) > reconnectWithin", "return !p.lost.IsZero()",
		},
		{
			"fleet: no resync for a gap", replica,
			"cause, p.sequence = causeGap, beat.Sequence", "p.sequence = beat.Sequence",
		},
		{
			"fleet: no resync for a new epoch", record,
			"if first {\n\t\treturn causeNewEpoch\n\t}", "if first {\n\t\tp.resend, r.unknown = resync{}, resync{}\n\t}",
		},
		{
			"fleet: no resync for a return", "core/fleet/fleet.go",
			"case cause != \"\":\n", "case cause != \"\" && cause != causeReturned:\n",
		},
		{
			"fleet: a resync that the handler does not take is lost", "core/fleet/deliver.go",
			"f.giveBack(k, claimed)", "_ = claimed",
		},
		{
			"fleet: a resync for an owner stands for the runtime (row 4)", "core/fleet/fleet.go",
			"if e.Resync && e.Owner == (types.NamespacedName{}) && refused[i] == nil {",
			"if _ = (types.NamespacedName{}); e.Resync && refused[i] == nil {",
		},
		{
			"fleet: a resync stays due", "core/fleet/deliver.go",
			"claimed := f.resyncs[k]\n\tdelete(f.resyncs, k)", "claimed := f.resyncs[k]",
		},
		{
			"fleet: fresh without proof (row 26)", judge,
			"case !proved:\n\t\treturn Unproved, \"\"\n", "",
		},
		{
			"agent: the review of a stranger is a proof", "agent/webhook.go",
			"if b.keys.callers != nil {", "if b.opts.Logger != nil {",
		},
		{
			"fleet: a lost canary does not count (row 26)", judge,
			"case p.beat.Canary == core.CanaryLost:\n\t\treturn reasons.CanaryLost\n", "",
		},
		{
			"fleet: a replica that leaves is lost", record,
			"if beat.Leaving {", "if beat.Leaving && p.gone {",
		},
		{
			"fleet: each batch is a gap", replica,
			"if sequence > p.sequence && sequence-p.sequence > 1 {", "if sequence > p.sequence {",
		},
		{
			"fleet: each heartbeat is a return", record,
			"cause = causeReturned\n\t\tr.disprove()\n\t}", "cause = causeReturned\n\t\tr.disprove()\n\t} else {\n\t\tcause = causeReturned\n\t}",
		},
		{
			"fleet: drops degrade for ever", judge,
			"case now.Before(p.dropping):", "case !p.dropping.IsZero():",
		},
	}
}

// economyMutants send twice as much, or do twice as much work.
func economyMutants() []mutant {
	twice := func(cause string) mutant {
		return mutant{
			"economy: two resyncs of the fleet, cause " + cause, "core/fleet/deliver.go",
			"f.delivered(k.manager, claimed.cause)",
			"f.delivered(k.manager, claimed.cause)\n\tif claimed.cause == " + cause + " {\n\t\tf.delivered(k.manager, claimed.cause)\n\t}",
		}
	}
	return []mutant{
		twice("causeNewEpoch"), twice("causeGap"), twice("causeReturned"), twice("causeReplicaLost"),
		{
			"economy: each change six times", resend,
			"delays := o.Resend", "delays := append([]time.Duration{time.Second, 2 * time.Second, 8 * time.Second}, o.Resend...)",
		},
		{
			"economy: each resync four times", resend,
			"delays = []time.Duration{o.ResendResync}", "delays = []time.Duration{o.ResendResync / 3, o.ResendResync / 2, o.ResendResync}",
		},
		{
			"economy: heartbeats twice as often", "core/outbox/heartbeat.go",
			"l.pulse.next = now.Add(interval - l.opts.jitter(interval/10))", "l.pulse.next = now.Add(interval / 2)",
		},
		{
			"economy: half of the wait after failures", conclude,
			"l.paused, l.resumes = now, now.Add(wait)", "l.paused, l.resumes = now, now.Add(wait / 2)",
		},
		{
			"economy: half of the wait after a refusal", conclude,
			"e.due = now.Add(l.waitAfter(e.refusals, l.opts.MaxBackoff, refusal, started))",
			"e.due = now.Add(l.waitAfter(e.refusals, l.opts.MaxBackoff, refusal, started) / 2)",
		},
		{
			"fleet: active replicas resync for each gap", "core/fleet/sharing.go",
			"case s.on && cause == causeGap:", "case s.on && cause == \"\":",
		},
	}
}

// streamMutants are of NATS JetStream.
func streamMutants() []mutant {
	const conclude, pull = "adapters/natsjetstream/conclude.go", "adapters/natsjetstream/pull.go"
	return []mutant{
		{
			"natsjetstream: a message that is handled is not acknowledged", conclude,
			"c.settled(j, manager, fateEnqueued, \"\", j.msg.Ack())", "c.settled(j, manager, fateEnqueued, \"\", nil)",
		},
		{
			"natsjetstream: a message that comes again is dropped", conclude,
			"c.opts.Hooks.Redelivered(manager)", "c.opts.Hooks.Redelivered(manager)\n\t\t_ = j.msg.Ack()\n\t\treturn",
		},
		{
			"natsjetstream: a refused message holds up its runtime", conclude,
			"j.msg.NakWithDelay(wait)", "errors.Join(sleep(context.Background(), wait), j.msg.Nak())",
		},
		{
			"natsjetstream: a replica asks once whether it leads", pull,
			"\tfor ctx.Err() == nil {\n\t\tif c.intake.Ready(manager) == nil {",
			"\tfor range 1 {\n\t\tif c.intake.Ready(manager) == nil {",
		},
		{
			"natsjetstream: a refusal that is taken back is a delivery", "adapters/natsjetstream/message.go",
			"return true, f.takeBack(m, msg, &answer)", "_ = f.takeBack(m, msg, &answer)\n\t\treturn true, nil",
		},
		{
			"natsjetstream: an old heartbeat proves that a runtime is fresh", conclude,
			"if j.age > staleHeartbeat {", "if j.age < 0 {",
		},
	}
}

func pathMutants() []mutant {
	return []mutant{
		{
			"source: only five resyncs wait for a change's priority", "adapters/controllerruntime/target.go",
			"!waits || end.Before(earlier) {", "(!waits || end.Before(earlier)) && len(t.raised) < 5 {",
		},
		{
			"source: a label finds no object", "adapters/controllerruntime/mapfunc.go",
			"for i, name := range names {", "for i, name := range names[:0] {",
		},
		{
			"intake: all events refused is the request refused (row 1)", receive,
			"sender := t.verifySender(ctx)\n",
			"sender := t.verifySender(ctx)\n\tif sender == nil && refused {\n\t\tsender = o.Failed[0]\n\t}\n",
		},
		{
			"intake: a replica that does not lead takes heartbeats", receive,
			"f = t.askReady(ctx)\n\t}", "f = nil\n\t}",
		},
		{
			"listener: wrong paths are free (row 16)", "listener/exchange.go",
			"if tooFast := x.intake.Enter(account, x.size()); tooFast != nil {",
			"if tooFast := x.intake.Enter(account, x.size()); tooFast != nil && x.version != \"\" {",
		},
		{
			"listener: a certificate that expires stays valid on its connection", "listener/checker.go",
			"!now.After(v.notAfter) && ", "",
		},
		{
			"listener: no SAN pinning", "listener/pinning.go",
			"case !hasSAN(&peer, domain):", "case !hasSAN(&peer, domain) && domain == \"\":",
		},
		{
			"intake: a panic costs the whole batch", receive,
			"}, func(err error) { f = newFailure(err) })\n\tif f != nil {", "}, func(err error) { panic(err) })\n\tif f != nil {",
		},
		{
			"intake: a replica that does not lead refuses events", receive,
			"if !o.verified || o.isOfReplica() || len(o.Failed) == 0 {", "if t.opts.Fleet != nil {",
		},
		{
			"intake: a panic of the verifier hides a number", receive,
			"if t.Contract.NeedsOwner() || o.verified && !refused {", "if t.Contract.NeedsOwner() || !refused {",
		},
		{
			"httpmtls: a refused heartbeat delays events", "adapters/httpmtls/fallback.go",
			"if !now.older && len(batch.Events) == 0 {", "if now.older && len(batch.Events) > len(batch.Events) {",
		},
		{
			"httpmtls: failures are taken for success", "adapters/httpmtls/request.go",
			"const firstSuccess, lastSuccess = 200, 299", "const firstSuccess, lastSuccess = 200, 503",
		},
		{
			"keys: key material is followed by the leader only (row 28)", "keys/files.go",
			"func (*Files) NeedLeaderElection() bool { return false }", "func (*Files) NeedLeaderElection() bool { return true }",
		},
		{
			"httpmtls: new key material is not used", "adapters/httpmtls/forwarder.go",
			"if f.pool == nil || f.pool.material != material {", "if f.pool == nil {",
		},
		{
			"contract: a heartbeat is not cut (row 27)", "core/contract/encode.go",
			"beat := cut(sent)", "_, beat := cut(sent), *sent",
		},
		{
			"admission: nothing for a review that cannot be parsed (row 6)", "adapters/admission/handler.go",
			"return reply{manager: manager, missed: true, refusal: badReview(err)}", "return reply{manager: manager, refusal: badReview(err)}",
		},
		{
			"admission: nothing for a review without room (row 5)", "adapters/admission/handler.go",
			"return reply{manager: manager, uid: uid, decision: unread, missed: true}", "return reply{manager: manager, uid: uid, decision: unread}",
		},
		{
			"core: other labels are no change", "core/filter.go",
			"!sameSpec(c) || !c.sameSelection()", "!sameSpec(c)",
		},
		{
			"core: the owner before a change", "core/owner.go",
			"c.New.Annotation(OwnerAnnotation)", "c.Old.Annotation(OwnerAnnotation)",
		},
		{
			"admission: a selector matches all objects", "adapters/admission/registration.go",
			"webhook.ObjectSelector = labelSelector(r.Selector)", "webhook.ObjectSelector = &metav1.LabelSelector{}",
		},
		{
			"admission: each watch is of the spec", "adapters/admission/target.go",
			"if r.Field == core.FieldStatus {", "if r.Field == core.FieldStatus && subresource != \"\" {",
		},
		{
			"admission: dry runs are events", "adapters/admission/review.go",
			"DryRun:      q.dryRun,", "DryRun:      false,",
		},
		{
			"admission: room for the announced length (row 13)", "adapters/admission/body.go",
			"if step > size && (step < believedFrom || int64(step) > announced) {", "if step > size && int64(step) > announced {",
		},
		{
			"canary: no resync when the webhook is back", "internal/canary/canary.go",
			"c.opts.Recovered()\n", "_ = state\n",
		},
		{
			"source: a failed map function is an acknowledgement", "adapters/controllerruntime/source.go",
			"return nil, classify(err)", "return nil, nil",
		},
		{
			"source: a read before the commit counts", "adapters/controllerruntime/reads.go",
			"return a.version > event.Base || a.gone", "return a.version >= event.Base || a.gone",
		},
		{
			"source: the newest read of a reconcile counts", "adapters/controllerruntime/reads.go",
			"a.since <= r.turn && !r.known[a]", "a.since <= r.turn",
		},
		{
			"source: a read counts for nothing", "adapters/controllerruntime/reads.go",
			"r.known[a], a.version = true, max(a.version, version)", "_ = version",
		},
		{
			"source: resyncs are not enqueued", "adapters/controllerruntime/source.go",
			"to.addResync(r, 0)", "_ = r",
		},
		{
			"contract: a foreign 403 is a refusal (row 34)", "core/contract/meaning.go",
			"case v == V3 && foreign && r.Status == statusForbidden:", "case v == V3 && !foreign && foreign:",
		},
	}
}
