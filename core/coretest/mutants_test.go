package coretest_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// mutantVariable names the mutant that a child process of this test runs.
const mutantVariable = "CORETEST_MUTANT"

// forward is the signature of a forwarder, and middle changes one.
type (
	forward = core.ForwarderFunc
	middle  = func(next forward) forward
)

// mutant is a transport with one fault, and a part of the failure that must name it.
type mutant struct {
	failure string
	middle  middle
}

// A suite that cannot fail proves nothing: each fault must be found, named and found soon.
func TestSuitesFindMutants(t *testing.T) {
	t.Parallel()

	for name, m := range forwarderMutants() {
		t.Run(name, func(t *testing.T) { t.Parallel(); checkFound(t, "TestMutantForwarder", name, m.failure) })
	}

	for name, m := range receiverMutants() {
		t.Run(name, func(t *testing.T) { t.Parallel(); checkFound(t, "TestMutantReceiver", name, m.failure) })
	}

	for name, m := range verifierMutants() {
		t.Run(name, func(t *testing.T) { t.Parallel(); checkFound(t, "TestMutantVerifier", name, m.failure) })
	}
}

// checkFound runs the suite for a mutant in a child process. The failures of that process are the
// result.
func checkFound(t *testing.T, suite, mutant, failure string) {
	t.Helper()

	const soon = 3 * time.Minute // On a busy machine. A mutant that hangs takes 2 s.
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+suite+"$")
	child.Env = append(os.Environ(), mutantVariable+"="+mutant)

	output, err := child.CombinedOutput()
	if failed, ok := errors.AsType[*exec.ExitError](err); !ok || failed.ExitCode() != 1 {
		t.Errorf("the suite passes a mutant that %s: %v\n%s", mutant, err, output)
	}
	if !strings.Contains(string(output), failure) {
		t.Errorf("want %q among the failures of a mutant that %s:\n%s", failure, mutant, output)
	}
}

// chosen returns the mutant that this process runs.
func chosen[T any](t *testing.T, mutants map[string]T) T {
	t.Helper()

	m, ok := mutants[os.Getenv(mutantVariable)]
	if !ok {
		t.Skip("is run by TestSuitesFindMutants")
	}
	return m
}

// TestSuitesFindMutants runs this test in a child process, and expects it to fail.
func TestMutantForwarder(t *testing.T) {
	m := chosen(t, forwarderMutants())
	t.Run("suite", func(t *testing.T) {
		coretest.TestForwarder(t, func(_ *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
			memory := coretest.NewMemory(farEnd)
			return coretest.ForwarderHarness{
				Forwarder:  m.middle(memory.Forward),
				Disconnect: func() { memory.SetDown(true) },
			}
		}, coretest.ForwarderOptions{Patience: 2 * time.Second})
	})
}

func forwarderMutants() map[string]mutant {
	all := map[string]mutant{
		"ignores ctx":             {"Forward ignores ctx", ignoresContext},
		"hides the error of ctx":  {"lost the error of ctx", mapsErrors(plainly)},
		"calls for nothing":       {"empty batch reached the far end", callsForNothing},
		"serves one manager only": {"events that arrived for manager-b differ", oneManager},
		"keeps the batch":         {"Forward keeps the batch after it has returned", keepsTheBatch},
		"changes the events":      {"Forward changes the batch", after(changesEvents)},
		"changes the heartbeat":   {"Forward changes the batch", changesHeartbeat},
		"acknowledges at once":    {"but another batch arrived", acknowledgesAtOnce},
		"never sends the rest":    {"Forward sends nothing", neverSendsTheRest},
		"breaks for ever":         {"though the far end accepts everything", breaksForEver()},
		"retries":                 {"Forward retries", again(func(err error) bool { return err != nil && !core.IsPermanent(err) })},
		"sends twice":             {"Forward sends a batch again", again(func(err error) bool { return err == nil })},
		"serialises":              {"Forward took more than", serialises},
	}

	maps.Copy(all, losingMutants())
	maps.Copy(all, answeringMutants())
	return all
}

// losingMutants lose a part of each batch.
func losingMutants() map[string]mutant {
	return map[string]mutant{
		"loses resyncs":       {"but another batch arrived", keepsEvents(func(e *core.Numbered) bool { return !e.Resync })},
		"turns resyncs":       {"Resync", eachEvent(func(e *core.Numbered) { e.Resync = false })},
		"loses owners":        {"Owner", eachEvent(func(e *core.Numbered) { e.Owner.Name = "" })},
		"loses the trace":     {"TraceParent", eachEvent(func(e *core.Numbered) { e.TraceParent = "" })},
		"loses the operation": {"Operation", eachEvent(func(e *core.Numbered) { e.Operation = "" })},
		"loses the UID":       {"UID", eachEvent(func(e *core.Numbered) { e.UID = "" })},
		"loses the base":      {"Base", eachEvent(func(e *core.Numbered) { e.Base = 0 })},
		"rounds times":        {"Time", eachEvent(func(e *core.Numbered) { e.Time = e.Time.Truncate(time.Second) })},
		"loses times":         {"Time", eachEvent(func(e *core.Numbered) { e.Time = time.Time{} })},
		"loses sequences":     {"Sequence", eachEvent(func(e *core.Numbered) { e.Sequence = 0 })},
		"counts itself":       {"Sequence", countsItself},
		"loses IDs":           {"ID", eachEvent(func(e *core.Numbered) { e.ID = "" })},
		"loses the source":    {"Source", eachBatch(func(b *core.Batch) { b.Source = "" })},
		"loses the epoch":     {"Epoch", eachBatch(func(b *core.Batch) { b.Epoch = "" })},
		"loses heartbeats":    {"Heartbeat", eachBatch(func(b *core.Batch) { b.Heartbeat = nil })},
		"loses drop counts":   {"Dropped", losesDropCounts},
		"loses one of many":   {"but another batch arrived", eachBatch(losesOneOfMany)},
		"loses all beyond":    {"behind one that is not sent", losesAllBeyond},
		"swaps the order":     {"but another batch arrived", eachBatch(func(b *core.Batch) { slices.Reverse(b.Events) })},
		"loses lone beats":    {"Heartbeat", losesLoneHeartbeats},
		"loses all but beats": {"Events", eachBatch(losesEventsBesideHeartbeats)},
	}
}

// answeringMutants change the answers of the far end.
func answeringMutants() map[string]mutant {
	return map[string]mutant{
		"reports success on failure":  {"Forward reports success", mapsErrors(func(error) error { return nil })},
		"reports failure on success":  {"Forward reports a failure", after(failsOnSuccess)},
		"loses partial failures":      {"lost the refusal of event", mapsSome(func(core.EventErrors) error { return nil })},
		"repeats the first reason":    {"lost the kind of a refusal", mapsSome(repeatsTheFirst)},
		"swaps the indexes of errors": {"though the far end took it", mapsSome(swapsIndexes)},
		"names too many":              {"Forward names element", mapsSome(namesTooMany)},
		"fails all for one":           {"though the far end took it", mapsSome(failsAllForOne)},
		"names events for all":        {"though the whole batch failed", after(namesEach)},
		"marks retryable as permanent": {
			"lost the kind of a refusal", mapsErrors(relabel(func(r *coretest.Refusal) { r.Permanent = true })),
		},
		"marks permanent as retryable": {
			"lost the kind of a refusal", mapsErrors(relabel(func(r *coretest.Refusal) { r.Permanent = false })),
		},
		"loses retry-after": {
			"lost the wait that the far end asks for", mapsErrors(relabel(func(r *coretest.Refusal) { r.After = 0 })),
		},
		"loses the cause":    {"lost the cause", mapsErrors(relabel(func(r *coretest.Refusal) { r.Cause = nil }))},
		"loses the reason":   {"lost the reason", mapsErrors(relabel(func(r *coretest.Refusal) { r.Label = "other" }))},
		"forgets beats":      {"did not take a batch of 0 events", after(forgetsHeartbeats)},
		"waits itself":       {"Forward took more than", after(waitsItself)},
		"condemns the path":  {"lost the kind of a refusal", mapsErrors(condemnsUnreachable)},
		"blames the manager": {"lost the cause", mapsErrors(blamesTheManager)},
	}
}

// eachBatch changes a copy of each batch before it is sent.
func eachBatch(change func(batch *core.Batch)) middle {
	return func(next forward) forward {
		return func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			batch.Events = slices.Clone(batch.Events)
			change(&batch)
			return next(ctx, manager, batch)
		}
	}
}

func eachEvent(change func(event *core.Numbered)) middle {
	return eachBatch(func(batch *core.Batch) {
		for i := range batch.Events {
			change(&batch.Events[i])
		}
	})
}

func keepsEvents(keep func(event *core.Numbered) bool) middle {
	return eachBatch(func(batch *core.Batch) {
		batch.Events = slices.DeleteFunc(batch.Events, func(e core.Numbered) bool { return !keep(&e) })
	})
}

func countsItself(next forward) forward {
	return eachBatch(func(batch *core.Batch) {
		for i := range batch.Events {
			batch.Events[i].Sequence = uint64(i + 1)
		}
	})(next)
}

func losesDropCounts(next forward) forward {
	return eachBatch(func(batch *core.Batch) {
		if batch.Heartbeat != nil {
			beat := *batch.Heartbeat
			beat.Dropped = nil
			batch.Heartbeat = &beat
		}
	})(next)
}

func losesLoneHeartbeats(next forward) forward {
	return eachBatch(func(batch *core.Batch) {
		if len(batch.Events) == 0 {
			batch.Heartbeat = nil
		}
	})(next)
}

func losesEventsBesideHeartbeats(batch *core.Batch) {
	if batch.Heartbeat != nil {
		batch.Events = nil
	}
}

func losesOneOfMany(batch *core.Batch) {
	if len(batch.Events) > 20 {
		batch.Events = slices.Delete(batch.Events, 17, 18)
	}
}

// again sends a batch once more after some results.
func again(after func(err error) bool) middle {
	return func(next forward) forward {
		return func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			err := next(ctx, manager, batch)
			if after(err) {
				err = next(ctx, manager, batch)
			}
			return err
		}
	}
}

func serialises(next forward) forward {
	slot := make(chan struct{}, 1)
	return func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		select {
		case slot <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}

		defer func() { <-slot }()
		return next(ctx, manager, batch)
	}
}

// forgetsHeartbeats takes no answer to a heartbeat that is alone.
func forgetsHeartbeats(_ context.Context, batch core.Batch, err error) error {
	if len(batch.Events) == 0 {
		return nil
	}
	return err
}

func callsForNothing(next forward) forward {
	return eachBatch(func(batch *core.Batch) {
		if batch.IsEmpty() {
			batch.Events = make([]core.Numbered, 1)
		}
	})(next)
}

func ignoresContext(next forward) forward {
	return func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		return next(context.WithoutCancel(ctx), manager, batch)
	}
}

func oneManager(next forward) forward {
	return func(ctx context.Context, _ core.Manager, batch core.Batch) error {
		return next(ctx, "manager-a", batch)
	}
}

// keepsTheBatch sends the events of the last call once more.
func keepsTheBatch(next forward) forward {
	var (
		mu   sync.Mutex
		last []core.Numbered
	)
	return func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		mu.Lock()
		events := batch.Events
		batch.Events = append(slices.Clone(events), last...)
		last = events
		mu.Unlock()
		return next(ctx, manager, batch)
	}
}

func changesEvents(_ context.Context, batch core.Batch, err error) error {
	for i := range batch.Events {
		batch.Events[i].Sequence++
	}
	return err
}

func changesHeartbeat(next forward) forward {
	return func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		if batch.Heartbeat != nil {
			delete(batch.Heartbeat.Dropped, "overflow")
		}
		return next(ctx, manager, batch)
	}
}

func acknowledgesAtOnce(forward) forward {
	return func(context.Context, core.Manager, core.Batch) error { return nil }
}

func neverSendsTheRest(next forward) forward {
	return func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		rest := core.EventErrors{}
		for i := range batch.Events {
			rest[i] = core.ErrNotSent
		}

		if len(rest) > 0 {
			return rest
		}
		return next(ctx, manager, batch)
	}
}

// losesAllBeyond cuts a batch, and names the first event only that stays behind.
func losesAllBeyond(next forward) forward {
	return func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		const most = 400
		if len(batch.Events) <= most {
			return next(ctx, manager, batch)
		}
		batch.Events = batch.Events[:most]
		return cmp.Or[error](next(ctx, manager, batch), core.EventErrors{most: core.ErrNotSent})
	}
}

func breaksForEver() middle {
	var broken atomic.Bool
	return after(func(_ context.Context, _ core.Batch, err error) error {
		if err != nil {
			broken.Store(true)
		}
		if broken.Load() {
			return core.ErrNotReady
		}
		return err
	})
}

func waitsItself(ctx context.Context, _ core.Batch, err error) error {
	if core.RetryAfter(err) > 0 {
		<-ctx.Done()
	}
	return err
}

// after changes the result of each call.
func after(change func(ctx context.Context, batch core.Batch, err error) error) middle {
	return func(next forward) forward {
		return func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			return change(ctx, batch, next(ctx, manager, batch))
		}
	}
}

// mapsErrors changes the error of each call that fails.
func mapsErrors(change func(err error) error) middle {
	return after(func(_ context.Context, _ core.Batch, err error) error {
		if err != nil {
			return change(err)
		}
		return nil
	})
}

func failsOnSuccess(_ context.Context, batch core.Batch, err error) error {
	if err != nil || batch.IsEmpty() {
		return err
	}
	return core.ErrNotReady
}

func plainly(err error) error { return errors.New(err.Error()) }

// some returns a copy of the failed events that err names.
func some(err error) (core.EventErrors, bool) {
	failed, ok := errors.AsType[core.EventErrors](err)
	return maps.Clone(failed), ok
}

// mapsSome changes the failed events of each call that names some.
func mapsSome(change func(failed core.EventErrors) error) middle {
	return mapsErrors(func(err error) error {
		if failed, ok := some(err); ok {
			return change(failed)
		}
		return err
	})
}

func firstOf(failed core.EventErrors) error {
	return failed[slices.Min(slices.Collect(maps.Keys(failed)))]
}

func repeatsTheFirst(failed core.EventErrors) error {
	first := firstOf(failed)
	for i := range failed {
		failed[i] = first
	}
	return failed
}

func swapsIndexes(failed core.EventErrors) error {
	shifted := core.EventErrors{}
	for i, err := range failed {
		shifted[i^1] = err
	}
	return shifted
}

func namesTooMany(failed core.EventErrors) error {
	failed[100] = core.ErrForbidden
	return failed
}

func failsAllForOne(failed core.EventErrors) error { return firstOf(failed) }

// namesEach names each event where a batch has failed as a whole.
func namesEach(_ context.Context, batch core.Batch, err error) error {
	if _, ok := some(err); ok || err == nil {
		return err
	}
	failed := core.EventErrors{}
	for i := range max(len(batch.Events), 1) {
		failed[i] = err
	}

	return failed
}

// relabel changes the classification of scripted refusals.
func relabel(change func(r *coretest.Refusal)) func(err error) error {
	one := func(err error) error {
		refusal, ok := errors.AsType[*coretest.ScriptedRefusal](err)
		if !ok {
			return err
		}
		changed := refusal.Refusal
		change(&changed)
		return changed.Err()
	}
	return func(err error) error {
		failed, ok := some(err)
		if !ok {
			return one(err)
		}

		for i, err := range failed {
			failed[i] = one(err)
		}

		return failed
	}
}

// condemnsUnreachable takes an unreachable far end for a final refusal.
func condemnsUnreachable(err error) error {
	if _, scripted := errors.AsType[*coretest.ScriptedRefusal](err); !scripted && errors.Is(err, core.ErrNotReady) {
		return coretest.Refusal{Permanent: true, Label: "unreachable"}.Err()
	}
	return err
}

// blamesTheManager takes a receiver that is not ready for one that does not serve the manager.
func blamesTheManager(err error) error {
	if errors.Is(err, core.ErrNotReady) {
		return coretest.Refusal{Label: "unknown_manager", Cause: core.ErrUnknownManager, After: core.RetryAfter(err)}.Err()
	}
	return err
}

// verifierMutant is a verifier with one fault, and a part of the failure that must name it.
type verifierMutant struct {
	failure string
	verify  core.VerifierFunc
}

func verifierMutants() map[string]verifierMutant {
	right := domains{"one": "one.example", "two": "two.example"}
	return map[string]verifierMutant{
		"lets all pass": {
			"want the verdict sender may not trigger this",
			func(context.Context, core.Peer, *core.WatchEvent) error { return nil },
		},
		"refuses all": {
			"want the verdict <nil>",
			func(context.Context, core.Peer, *core.WatchEvent) error { return core.ErrForbidden },
		},
		"lets peers without identity pass": {
			"lets a peer without identity pass",
			func(ctx context.Context, p core.Peer, e *core.WatchEvent) error {
				p.ID = "x"
				p.DNSNames = append(p.DNSNames, "one.example")
				return right.Verify(ctx, p, e)
			},
		},
		"changes the event": {
			"Verify changes the event",
			func(ctx context.Context, p core.Peer, e *core.WatchEvent) error {
				err := right.Verify(ctx, p, e)
				e.Generation++
				return err
			},
		},
		"changes the peer": {
			"Verify changes the peer",
			func(ctx context.Context, p core.Peer, e *core.WatchEvent) error {
				err := right.Verify(ctx, p, e)
				clear(p.DNSNames)
				return err
			},
		},
		"has two verdicts": {
			"want the verdict sender may not trigger this",
			func(ctx context.Context, p core.Peer, e *core.WatchEvent) error {
				if err := right.Verify(ctx, p, e); err != nil {
					return errors.Join(err, core.ErrNotReady)
				}
				return nil
			},
		},
		"refuses when ctx ends": {
			"refuses an event for the end of its context",
			func(ctx context.Context, p core.Peer, e *core.WatchEvent) error {
				if ctx.Err() != nil {
					return core.ErrForbidden
				}
				return right.Verify(ctx, p, e)
			},
		},
	}
}

// TestSuitesFindMutants runs this test in a child process, and expects it to fail.
func TestMutantVerifier(t *testing.T) {
	m := chosen(t, verifierMutants())
	t.Run("suite", func(t *testing.T) {
		coretest.TestVerifier(t, func(*testing.T) core.Verifier { return m.verify }, verifierCases()...)
	})
}

// receiverMutant is a receiver in memory with one fault, and a part of the failure that must name
// it.
type receiverMutant struct {
	failure string
	// parts changes what the receiver is made of, batch what arrives, and answer what goes back.
	parts  func(*coretest.ReceiverParts)
	batch  func(core.RuntimeID, *core.Batch)
	answer func(batch *core.Batch, err error) error
	// peer replaces the runtime as the sender.
	peer core.RuntimeID
	// beside is done with each batch that arrives.
	beside func(*coretest.ReceiverParts, core.RuntimeID, core.Manager, core.Batch)
}

// TestSuitesFindMutants runs this test in a child process, and expects it to fail.
func TestMutantReceiver(t *testing.T) {
	m := chosen(t, receiverMutants())
	t.Run("suite", func(t *testing.T) {
		coretest.TestReceiver(t, m.start, coretest.ReceiverOptions{Patience: 2 * time.Second})
	})
}

func (m *receiverMutant) start(t *testing.T, parts coretest.ReceiverParts) func(core.RuntimeID) core.Forwarder {
	t.Helper()

	if m.parts != nil {
		m.parts(&parts)
	}
	in, err := intake.New(parts.Verifier, parts.Handlers, intake.Options{Fleet: parts.Fleet})
	if err != nil {
		t.Fatal(err)
	}

	return func(runtime core.RuntimeID) core.Forwarder {
		return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			if m.beside != nil {
				m.beside(&parts, runtime, manager, batch)
			}
			if m.batch != nil {
				m.batch(runtime, &batch)
			}
			err := receive(ctx, in, &intake.Request{
				Peer: core.Peer{ID: cmp.Or(m.peer, runtime)}, Manager: manager, Batch: batch,
			})
			if m.answer != nil {
				return m.answer(&batch, err)
			}
			return err
		})
	}
}

func receive(ctx context.Context, in *intake.Intake, r *intake.Request) error {
	account := intake.Account{Name: string(r.Peer.ID)}
	if tooFast := in.Enter(account, 0); tooFast != nil {
		return tooFast
	}
	defer in.Leave(account)
	return in.Receive(ctx, r)
}

func receiverMutants() map[string]*receiverMutant {
	allow := core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil })
	return map[string]*receiverMutant{
		"verifies nothing":           {failure: "with <nil>, want", parts: func(p *coretest.ReceiverParts) { p.Verifier = allow }},
		"names events for the batch": {failure: "refuses 3 events by name", answer: func(b *core.Batch, err error) error { return namesEach(context.Background(), *b, err) }},
		"refuses all for one":        {failure: "refuses 0 events by name", answer: firstForAll},
		"condemns what fails":        {failure: "not permanent", answer: condemnsEvents},
		"believes the claim":         {failure: "with <nil>, want", batch: func(id core.RuntimeID, b *core.Batch) { b.Source = id }},
		"loses heartbeats":           {failure: "heartbeat of runtime-11: false", batch: func(_ core.RuntimeID, b *core.Batch) { b.Heartbeat = nil }},
		"confuses runtimes":          {failure: "accepted [] of runtime-1", peer: "all"},
		"turns the order":            {failure: "accepted [c b a]", batch: func(_ core.RuntimeID, b *core.Batch) { slices.Reverse(b.Events) }},
		"hears strangers":            {failure: "heartbeat of forbidden-runtime: true", beside: observes},
		"acknowledges what failed":   {failure: "refuses 0 events by name", answer: func(*core.Batch, error) error { return nil }},
		"loses what is not ready":    {failure: "want [late]", answer: losesNotReady},
		"has no shares":              {failure: "with <nil>, want", answer: hidesTooFast},
		"hurries":                    {failure: "refused after the wait of 1ms", answer: hurries},
	}
}

func observes(p *coretest.ReceiverParts, runtime core.RuntimeID, manager core.Manager, batch core.Batch) {
	p.Fleet.Receiver().Observe(core.Peer{ID: runtime}, manager, batch, nil)
}

func firstForAll(_ *core.Batch, err error) error {
	if failed, partial := some(err); partial {
		return firstOf(failed)
	}
	return err
}

func condemnsEvents(_ *core.Batch, err error) error {
	failed, partial := some(err)
	if !partial {
		return err
	}

	for i, err := range failed {
		failed[i] = coretest.Refusal{Label: "failed", Permanent: true, Cause: err}.Err()
	}

	return failed
}

// losesNotReady takes a handler that is not ready for one that accepted.
func losesNotReady(_ *core.Batch, err error) error {
	if failed, ok := errors.AsType[*intake.Failure](err); ok && failed.Fault == intake.FaultOfReplica {
		return nil
	}
	return err
}

func hurries(_ *core.Batch, err error) error {
	if errors.Is(err, core.ErrNotReady) {
		return coretest.Refusal{Label: "hurries", After: time.Millisecond, Cause: err}.Err()
	}
	return err
}

func hidesTooFast(_ *core.Batch, err error) error {
	if failed, ok := errors.AsType[*intake.Failure](err); ok && failed.Fault == intake.FaultOfShare {
		return nil
	}
	return err
}
