package natsjetstream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

const manager core.Manager = "my-operator"

// noAnswer is for forwarders that leave everything to the stream.
var noAnswer = natsjetstream.ForwarderOptions{AnswerWait: -1}

func allowAll() core.Verifier {
	return core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil })
}

// refuse refuses the events of an object.
func refuse(name string, err error) core.Verifier {
	return core.VerifierFunc(func(_ context.Context, _ core.Peer, event *core.WatchEvent) error {
		if event.Watched.Name == name {
			return err
		}
		return nil
	})
}

// forbid refuses the runtimes with a prefix.
func forbid(prefix string) core.Verifier {
	return core.VerifierFunc(func(_ context.Context, peer core.Peer, _ *core.WatchEvent) error {
		if strings.HasPrefix(string(peer.ID), prefix) {
			return core.ErrForbidden
		}
		return nil
	})
}

// refuseUntil refuses all until a test allows them.
func refuseUntil(allowed *atomic.Bool, err error) core.Verifier {
	return core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error {
		if allowed.Load() {
			return nil
		}
		return err
	})
}

// scene is a broker and the consumer of one manager.
type scene struct {
	*broker

	handler *coretest.Recorder
	fates   *fates
}

func newScene(t *testing.T, verifier core.Verifier, opts natsjetstream.Options) *scene {
	t.Helper()

	s := &scene{broker: newBroker(t), handler: &coretest.Recorder{}, fates: &fates{}}
	opts.Hooks.Concluded = s.fates.add
	s.consume(verifier, s.handler, opts)
	s.awaitStream(manager)

	return s
}

// consumer returns one more replica.
func (b *broker) consumer(verifier core.Verifier, handler core.Handler, opts natsjetstream.Options) *natsjetstream.Consumer {
	b.t.Helper()
	return newConsumer(b.connect(), verifier, handler, opts)
}

func newConsumer(conn *nats.Conn, verifier core.Verifier, handler core.Handler, opts natsjetstream.Options) *natsjetstream.Consumer {
	return must(natsjetstream.NewConsumer(conn, verifier, map[core.Manager]core.Handler{manager: handler}, opts))
}

// consume runs one more replica.
func (b *broker) consume(verifier core.Verifier, handler core.Handler, opts natsjetstream.Options) (stop func()) {
	b.t.Helper()
	return run(b.t, b.consumer(verifier, handler, opts))
}

// fates counts messages by fate and reason.
type fates struct {
	mu     sync.Mutex
	counts map[string]int
}

func (f *fates) add(c hook.Conclusion) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.counts == nil {
		f.counts = map[string]int{}
	}

	f.counts[strings.TrimSuffix(string(c.Fate)+" "+string(c.Reason), " ")]++
}

func (f *fates) of(fate string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[fate]
}

func (s *scene) awaitFate(fate string, n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d messages are %s", n, fate), func() bool { return s.fates.of(fate) >= n })
}

func named(name string) core.WatchEvent { return coretest.Changed("Sample", "default", name) }

// numbered returns a batch of an agent with the events from a number on.
func numbered(from uint64, names ...string) core.Batch {
	batch := core.Batch{Epoch: "epoch-1"}
	for i, name := range names {
		sequence := from + uint64(i)
		batch.Events = append(batch.Events, core.Numbered{
			WatchEvent: named(name), Sequence: sequence, ID: fmt.Sprintf("epoch-1-%d", sequence),
		})
	}

	return batch
}

func forward(t *testing.T, f core.Forwarder, batch core.Batch) error {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	return f.Forward(ctx, manager, batch)
}

func mustForward(t *testing.T, f core.Forwarder, batch core.Batch) {
	t.Helper()
	if err := forward(t, f, batch); err != nil {
		t.Fatalf("Forward = %v, want nil", err)
	}
}

func (s *scene) awaitHandled(n int) {
	s.t.Helper()

	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()

	if err := s.handler.WaitAcknowledged(ctx, manager, n); err != nil {
		s.t.Fatalf("%d events were handled, want %d", len(s.handler.Acknowledged(manager)), n)
	}
}

// awaitEmpty waits until the stream has no message.
func (s *scene) awaitEmpty() {
	s.t.Helper()
	stream := must(must(jetstream.New(s.connect())).Stream(s.t.Context(), "watch-"+string(manager)))
	eventually(s.t, "the stream is empty", func() bool {
		info, err := stream.Info(s.t.Context())
		return err == nil && info.State.Msgs == 0
	})
}

// Without an operator the stream takes the events.
func TestStreamKeepsEventsOfAnOperatorThatIsAway(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	first := &coretest.Recorder{}
	stop := b.consume(allowAll(), first, natsjetstream.Options{})
	b.awaitStream(manager)
	stop()
	runtime := b.forwarder("runtime-1", natsjetstream.ForwarderOptions{AnswerWait: 50 * time.Millisecond})
	mustForward(t, runtime, numbered(1, "a"))
	b.kill() // A stream is on disk.
	b.start()
	eventually(t, "the forwarder is connected", func() bool {
		return forward(t, runtime, numbered(2, "b")) == nil
	})
	s := &scene{broker: b, handler: &coretest.Recorder{}}
	b.consume(allowAll(), s.handler, natsjetstream.Options{})
	s.awaitHandled(2)
}

// A manager without a stream is unknown to its senders.
func TestUnknownManager(t *testing.T) {
	t.Parallel()

	s := newScene(t, allowAll(), natsjetstream.Options{})
	err := s.forwarder("runtime-1", natsjetstream.ForwarderOptions{}).Forward(t.Context(), "other", numbered(1, "a"))
	if !errors.Is(err, core.ErrUnknownManager) || core.ReasonOf(err) != "unknown_manager" {
		t.Errorf("Forward to a manager without stream = %v (reason %q), want ErrUnknownManager", err, core.ReasonOf(err))
	}
}

// A stream with room for one message per runtime refuses the second, and that of no other runtime.
func TestFullStream(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	small := func(m core.Manager) jetstream.StreamConfig {
		config := natsjetstream.StreamConfig(m)
		config.MaxMsgsPerSubject = 1
		return config
	}

	b.consume(allowAll(), &coretest.Recorder{}, natsjetstream.Options{Stream: small})()
	b.consume(allowAll(), notReady{}, natsjetstream.Options{Stream: small})
	must(must(jetstream.New(b.connect())).CreateOrUpdateStream(t.Context(), small(manager)))
	loud := b.forwarder("runtime-1", noAnswer)
	mustForward(t, loud, numbered(1, "a"))

	err := forward(t, loud, numbered(2, "b"))
	if !errors.Is(err, core.ErrNotReady) || core.ReasonOf(err) != "stream_full" || core.IsPermanent(err) {
		t.Errorf("Forward to a full stream = %v (reason %q), want ErrNotReady", err, core.ReasonOf(err))
	}

	mustForward(t, b.forwarder("runtime-2", noAnswer), numbered(1, "c"))
}

// notReady is the handler of a replica that does not lead.
type notReady struct{}

func (notReady) Ready() error { return core.ErrNotReady }

func (notReady) Handle(context.Context, core.Delivery) error { return core.ErrNotReady }

// leader is a handler that is ready while it leads.
type leader struct {
	*coretest.Recorder
	leads atomic.Bool
}

func (l *leader) Ready() error {
	if !l.leads.Load() {
		return fmt.Errorf("%w: another replica leads", core.ErrNotReady)
	}
	return nil
}

func (l *leader) Handle(ctx context.Context, d core.Delivery) error {
	if err := l.Ready(); err != nil {
		return err
	}
	return l.Recorder.Handle(ctx, d)
}

// The messages of a replica that stops to lead go to the next leader immediately, and none is lost.
func TestLeadershipMoves(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	replicas := []*leader{{Recorder: &coretest.Recorder{}}, {Recorder: &coretest.Recorder{}}}
	replicas[0].leads.Store(true)
	for _, replica := range replicas {
		c := b.consumer(allowAll(), replica, natsjetstream.Options{})
		c.SetAckWait(time.Hour) // The stream gives up on no replica.
		run(t, c)
	}

	b.awaitStream(manager)
	runtime := b.forwarder("runtime-1", noAnswer)
	const events = 200
	for i := range events {
		if i == events/2 {
			replicas[0].leads.Store(false)
			replicas[1].leads.Store(true)
		}
		mustForward(t, runtime, numbered(uint64(i+1), fmt.Sprintf("object-%d", i)))
	}

	eventually(t, "all events are handled", func() bool {
		return handled(replicas[0].Recorder, replicas[1].Recorder) == events
	})
	if len(replicas[1].Acknowledged(manager)) == 0 {
		t.Error("the second leader got nothing")
	}
}

// hesitant is a handler that loses the lead in its first call, and wins it again.
type hesitant struct {
	*coretest.Recorder

	handled, asked atomic.Int64
}

func (h *hesitant) Ready() error {
	const first = 3
	if h.handled.Load() > 0 && h.asked.Add(1) <= first {
		return core.ErrNotReady
	}
	return nil
}

func (h *hesitant) Handle(ctx context.Context, d core.Delivery) error {
	if h.handled.Add(1) == 1 {
		return core.ErrNotReady
	}
	return h.Recorder.Handle(ctx, d)
}

// A forwarder does not notice that the lead moves: the stream keeps the message for the next
// leader.
func TestLostLeadIsNoRefusal(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	b.consume(allowAll(), &hesitant{Recorder: &coretest.Recorder{}}, natsjetstream.Options{})
	b.awaitStream(manager)
	mustForward(t, b.forwarder("runtime-1", natsjetstream.ForwarderOptions{}), numbered(1, "a"))
}

// A replica that does not lead asks the stream for nothing.
func TestReplicaThatDoesNotLeadTakesNothing(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	replica := &leader{Recorder: &coretest.Recorder{}}
	replica.leads.Store(true)
	b.consume(allowAll(), replica, natsjetstream.Options{})
	b.awaitStream(manager)
	durable := must(must(jetstream.New(b.connect())).Consumer(t.Context(), "watch-"+string(manager), string(manager)))
	waiting := func() int { return must(durable.Info(t.Context())).NumWaiting }
	eventually(t, "the leader asks for messages", func() bool { return waiting() > 0 })
	replica.leads.Store(false)
	quiet := 0
	eventually(t, "the replica asks for none", func() bool {
		quiet++
		if waiting() > 0 {
			quiet = 0
		}
		return quiet > 20
	})
}

// handled returns the number of different objects.
func handled(recorders ...*coretest.Recorder) int {
	names := map[string]bool{}
	for _, r := range recorders {
		for _, event := range r.Acknowledged(manager) {
			names[event.Watched.Name] = true
		}
	}

	return len(names)
}

// Replicas that are all ready share the messages.
func TestReplicasShareWork(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	replicas := []*coretest.Recorder{{}, {}}
	for _, replica := range replicas {
		b.consume(allowAll(), replica, natsjetstream.Options{MaxInFlight: 2})
	}

	runtime := b.forwarder("runtime-1", noAnswer)
	b.awaitStream(manager)
	sent := uint64(0)
	eventually(t, "each replica handles some events", func() bool {
		sent++
		mustForward(t, runtime, numbered(sent, fmt.Sprintf("object-%d", sent)))
		return min(len(replicas[0].Acknowledged(manager)), len(replicas[1].Acknowledged(manager))) >= 10
	})

	eventually(t, "all events are handled", func() bool { return handled(replicas...) == int(sent) })
}

func TestRefusedEventGoesBackToItsForwarder(t *testing.T) {
	t.Parallel()

	s := newScene(t, refuse("bad", core.ErrForbidden), natsjetstream.Options{})
	runtime := s.forwarder("runtime-1", natsjetstream.ForwarderOptions{})

	for range 2 { // The stream must not take the second attempt for a duplicate.
		some, _ := errors.AsType[core.EventErrors](forward(t, runtime, numbered(1, "good", "bad")))
		if len(some) != 1 || !errors.Is(some[1], core.ErrForbidden) {
			t.Fatalf("Forward = %v, want ErrForbidden for the second event", some)
		}
	}

	for range 2 { // Nor the second one after a success.
		mustForward(t, runtime, numbered(3, "good"))
	}

	s.awaitHandled(4)
	s.awaitFate("handed_back forbidden", 2)
	s.awaitEmpty()
}

// A refused event without a forwarder that waits is terminated in the end. The fleet misses its
// number and requests a resync.
func TestRefusedEventWithoutForwarderLeadsToResync(t *testing.T) {
	t.Parallel()

	watched := must(fleet.New(fleet.Options{ResyncJitter: time.Millisecond}))
	s := newScene(t, refuse("bad", core.ErrForbidden), natsjetstream.Options{Fleet: watched, GiveUpAfter: time.Millisecond})
	runtime := s.forwarder("runtime-1", noAnswer)
	mustForward(t, runtime, numbered(1, "good"))
	s.awaitResyncs(1) // That of the new epoch.
	mustForward(t, runtime, numbered(2, "other", "bad"))
	s.awaitFate("terminated forbidden", 1)
	mustForward(t, runtime, numbered(4, "good"))
	s.awaitResyncs(2)
	s.awaitEmpty()
}

// The stream delivers a message again and again as one of its events fails. The others are handled
// once.
func TestAnEventThatFailsRepeatsNoOther(t *testing.T) {
	t.Parallel()

	s := newScene(t, refuse("bad", core.ErrForbidden), natsjetstream.Options{})
	mustForward(t, s.forwarder("runtime-1", noAnswer), numbered(1, "good", "bad", "other"))
	s.awaitFate("delayed forbidden", 3)

	if n := len(s.handler.Acknowledged(manager)); n != 2 {
		t.Errorf("%d events were handled in three attempts, want 2", n)
	}
}

func (s *scene) awaitResyncs(n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("the handler gets %d resyncs", n), func() bool {
		got := 0
		for _, event := range s.handler.Acknowledged(manager) {
			if event.Resync {
				got++
			}
		}

		return got >= n
	})
}

// A verifier or a handler that fails loses nothing, however long that takes.
func TestFailuresLoseNothing(t *testing.T) {
	t.Parallel()

	var ready atomic.Bool
	s := newScene(t, refuseUntil(&ready, core.ErrNotReady), natsjetstream.Options{GiveUpAfter: time.Millisecond})
	mustForward(t, s.forwarder("runtime-1", noAnswer), numbered(1, "a"))
	s.awaitFate("delayed not_ready", 1)
	s.handler.Next(
		func(context.Context, core.Batch) error {
			return coretest.Refusal{Label: "map_failed", Permanent: true}.Err()
		},
		func(context.Context, core.Batch) error { panic("broken") },
	)

	ready.Store(true)
	s.awaitHandled(1)
	s.awaitFate("delayed map_failed", 1)
	s.awaitFate("delayed panic", 1)
	s.awaitEmpty()
}

// Malformed messages are terminated, and the others go on.
func TestMalformedMessages(t *testing.T) {
	t.Parallel()

	logger, log := newLog()
	s := newScene(t, allowAll(), natsjetstream.Options{Logger: logger})
	publish := must(jetstream.New(s.connect()))

	big := strings.Repeat(" ", contract.V3.MaxBody()+1)
	for subject, body := range map[string]string{
		"watch.my-operator.runtime-1": "no JSON",
		"watch.my-operator.runtime-2": `[{"specversion":"0.3"}]`,
		"watch.my-operator.%2e":       "[]", // Not the spelling of any runtime.
		"watch.my-operator.runtime-4": big,
		"watch.my-operator.runtime-5": "",
	} {
		must(publish.Publish(t.Context(), subject, []byte(body)))
	}

	mustForward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{}), numbered(1, "a"))
	s.awaitFate("terminated malformed", 5)
	s.awaitEmpty()

	if n := log.count("message terminated"); n != 1 {
		t.Errorf("%d lines for one reason in a minute, want 1", n)
	}
}

// locked is a writer for several goroutines.
type locked struct {
	mu sync.Mutex
	to *strings.Builder
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

func (l *locked) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.to.String(), text)
}

// Messages that wait for a later delivery hold up nothing, whatever their number.
func TestRefusedMessagesHoldUpNothing(t *testing.T) {
	t.Parallel()

	s := newScene(t, forbid("removed"), natsjetstream.Options{})
	const removed, messages = 25, 60 // More than the default bound of a server on unacknowledged messages.
	for n := range removed {
		runtime := s.forwarder(core.RuntimeID(fmt.Sprintf("removed-%d", n)), noAnswer)
		for i := range messages {
			mustForward(t, runtime, numbered(uint64(i+1), fmt.Sprintf("object-%d", i)))
		}
	}

	const runtimeInFlight = 16 // the default
	s.awaitFate("delayed forbidden", removed*runtimeInFlight)
	mustForward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{}), numbered(1, "a"))

	if got := len(s.handler.Acknowledged(manager)); got != 1 {
		t.Errorf("%d events were enqueued, want that of runtime-1", got)
	}
}

// Slow events of one runtime delay no other runtime.
func TestSlowRuntimeDelaysItselfOnly(t *testing.T) {
	t.Parallel()

	hang := make(chan struct{})
	slow := core.VerifierFunc(func(ctx context.Context, peer core.Peer, _ *core.WatchEvent) error {
		if peer.ID == "slow" {
			select {
			case <-hang:
			case <-ctx.Done():
			}
		}
		return nil
	})

	s := newScene(t, slow, natsjetstream.Options{MaxInFlight: 32, RuntimeInFlight: 4, HandleTimeout: patience})
	runtime := s.forwarder("slow", noAnswer)

	for i := range 40 {
		mustForward(t, runtime, numbered(uint64(i+1), fmt.Sprintf("object-%d", i)))
	}

	mustForward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{}), numbered(1, "a"))
	if got := s.handler.Calls()[0].Runtime; got != "runtime-1" {
		t.Errorf("the first event handled is of %q, want runtime-1", got)
	}

	close(hang)
	s.awaitHandled(41)
}

// A runtime must not make the operator publish to a subject that the runtime may not use itself.
func TestAnswersGoToTheirRuntimeOnly(t *testing.T) {
	t.Parallel()

	s := newScene(t, allowAll(), natsjetstream.Options{})
	conn := s.connect()
	all := must(conn.SubscribeSync(">"))
	publish := must(jetstream.New(conn))

	for _, subject := range []string{
		"$JS.API.STREAM.DELETE.watch-my-operator", "_INBOX.runtime-2.x", "_INBOX.runtime-1", "_INBOX.runtime-1.",
		"_INBOX.runtime-1.>", "watch.my-operator.runtime-2",
	} {
		publishFrom(t, publish, "runtime-1", numbered(1, "a"), subject)
	}

	s.awaitFate("enqueued", 6)
	mustForward(t, s.forwarder("runtime-3", natsjetstream.ForwarderOptions{}), numbered(1, "last"))

	for {
		msg := must(all.NextMsg(patience))
		if strings.HasPrefix(msg.Subject, "_INBOX.runtime-3.") && msg.Header.Get("Watch-Status") != "" {
			return
		}
		if msg.Header.Get("Watch-Status") != "" {
			t.Errorf("an answer went to %s", msg.Subject)
		}
	}
}

// A NATS server closes a connection that publishes to a subject of 4 KiB, and the client then never
// connects again. A runtime must not choose such a subject for its answer.
func TestLongAnswerSubjectKeepsTheConnection(t *testing.T) {
	t.Parallel()

	s := &scene{broker: newBroker(t), handler: &coretest.Recorder{}, fates: &fates{}}
	operator := s.connect()
	run(t, newConsumer(operator, allowAll(), s.handler, natsjetstream.Options{Hooks: natsjetstream.Hooks{Concluded: s.fates.add}}))
	s.awaitStream(manager)
	conn := s.connect()
	publish := must(jetstream.New(conn))

	for n, name := range []string{strings.Repeat("x", 5000), "x..y", "x."} {
		publishFrom(t, publish, "runtime-1", numbered(uint64(n+1), "a"), "_INBOX.runtime-1."+name)
		s.awaitFate("enqueued", n+1)

		if err := operator.FlushTimeout(patience); err != nil {
			t.Fatalf("the connection of the operator after an answer to %.20q: %v", name, err)
		}
	}

	const begin = "_INBOX.runtime-1."
	longest := begin + strings.Repeat("x", 1024-len(begin))
	answers := must(conn.SubscribeSync(longest))
	publishFrom(t, publish, "runtime-1", numbered(4, "a"), longest)
	must(answers.NextMsg(patience))
}

// A client may close its connection for good, as after errors of authorization. Only a new
// connection helps, so the operator must learn of it, also from a replica that does not lead. A
// connection that was closed before Start changes its state no more.
func TestClosedConnectionEndsStart(t *testing.T) {
	t.Parallel()

	b := newBroker(t)

	for _, name := range []string{"leader", "follower", "closed before"} {
		handler := core.Handler(notReady{})
		if name == "leader" {
			handler = &coretest.Recorder{}
		}

		conn := b.connect()
		c := newConsumer(conn, allowAll(), handler, natsjetstream.Options{})

		if name == "closed before" {
			conn.Close()
		}

		ended := make(chan error, 1)
		go func() { ended <- c.Start(t.Context()) }()

		if name != "closed before" {
			eventually(t, "the "+name+" is ready", func() bool { return c.Ready() == nil })
		}
		if name == "leader" {
			b.awaitStream(manager)
		}

		conn.Close()
		select {
		case err := <-ended:
			if !errors.Is(err, nats.ErrConnectionClosed) {
				t.Errorf("Start of the %s = %v, want %v", name, err, nats.ErrConnectionClosed)
			}
		case <-time.After(patience):
			t.Errorf("Start of the %s goes on without a connection", name)
		}
	}
}

// A refusal that no forwarder confirms leaves the event with the stream.
func TestUnconfirmedRefusalStaysInTheStream(t *testing.T) {
	t.Parallel()

	var allowed atomic.Bool
	s := newScene(t, refuseUntil(&allowed, core.ErrForbidden), natsjetstream.Options{})
	conn := s.connect()
	deaf := must(conn.SubscribeSync("_INBOX.runtime-1.deaf")) // It gets the refusal, and confirms nothing.
	publish := must(jetstream.New(conn))
	for i, inbox := range []string{"_INBOX.runtime-1.gone", deaf.Subject} {
		publishFrom(t, publish, "runtime-1", numbered(uint64(i+1), fmt.Sprintf("object-%d", i)), inbox)
	}

	s.awaitFate("delayed forbidden", 2)
	if msg := must(deaf.NextMsg(patience)); msg.Header.Get("Watch-Status") != "403" {
		t.Errorf("the answer has status %q, want 403", msg.Header.Get("Watch-Status"))
	}

	allowed.Store(true)
	s.awaitHandled(2)
	s.awaitEmpty()
}

// A listener, or another consumer, for the same manager may deliver the resyncs of the fleet.
func TestSharedFleet(t *testing.T) {
	t.Parallel()

	watched := must(fleet.New(fleet.Options{ResyncJitter: time.Millisecond}))
	s := newScene(t, allowAll(), natsjetstream.Options{Fleet: watched})
	mustForward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{}), numbered(1, "a"))
	s.awaitResyncs(1) // So the first consumer delivers them.

	second := s.consumer(allowAll(), &coretest.Recorder{}, natsjetstream.Options{Fleet: watched})
	if err := second.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "delivered elsewhere") {
		t.Errorf("Start beside another one for the fleet = %v, want that resyncs are delivered elsewhere", err)
	}
	if err := second.Start(t.Context()); err == nil {
		t.Error("the second Start returns nil")
	}

	shared := s.consumer(allowAll(), &coretest.Recorder{}, natsjetstream.Options{Fleet: watched, SharedFleet: true})
	if err := shared.Ready(); !errors.Is(err, core.ErrNotReady) {
		t.Errorf("Ready before Start = %v, want ErrNotReady", err)
	}

	run(t, shared)
	eventually(t, "the consumer is ready", func() bool { return shared.Ready() == nil })
}

// The consumer reports the batches that wait in the stream. For an outbox, they are delivered.
func TestBacklogIsReported(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	config := natsjetstream.StreamConfig(manager)
	config.MaxBytes = 1 << 20
	must(must(jetstream.New(b.connect())).CreateStream(t.Context(), config))
	runtime := b.forwarder("runtime-1", noAnswer)
	mustForward(t, runtime, numbered(1, "a"))
	mustForward(t, runtime, numbered(2, "b"))
	var (
		mu       sync.Mutex
		messages []uint64
		full     float64
		age      time.Duration
		again    atomic.Int32
	)

	handler := &coretest.Recorder{}
	handler.Next(func(context.Context, core.Batch) error { return core.ErrNotReady })
	stop := b.consume(allowAll(), handler, natsjetstream.Options{Hooks: natsjetstream.Hooks{
		Backlog: func(b hook.Backlog) {
			mu.Lock()
			defer mu.Unlock()
			messages = append(messages, b.Messages)
			full = max(full, b.Filled)
			age = max(age, b.Oldest)
		},
		Redelivered: func(hook.Redelivery) { again.Add(1) },
	}})

	eventually(t, "a message is delivered again", func() bool { return again.Load() > 0 })
	stop()
	mu.Lock()
	defer mu.Unlock()

	if len(messages) < 2 || messages[0] != 2 || messages[len(messages)-1] != 0 {
		t.Errorf("the backlog is %v, want 2 first, and 0 after the stop", messages)
	}
	if full <= 0 || full > 0.01 || age <= 0 || age > patience {
		t.Errorf("the stream is filled by %v, and its oldest message is %v old", full, age)
	}
}
