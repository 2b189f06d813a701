package natsjetstream_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

// publishFrom stores a batch of a runtime. Its answers go to the inbox.
func publishFrom(t *testing.T, to jetstream.JetStream, runtime core.RuntimeID, batch core.Batch, inbox string) {
	t.Helper()

	batch.Source = runtime
	msg := nats.NewMsg(natsjetstream.Subject(manager, runtime))
	msg.Data = must(contract.V3.Encode(&batch)).Body

	if inbox != "" {
		msg.Header.Set("Watch-Answer", inbox)
	}

	must(to.PublishMsg(t.Context(), msg))
}

// Runtimes that confirm no refusal must not stop a manager: each offer of a refusal takes a
// second.
func TestUnconfirmedRefusalsStopNoManager(t *testing.T) {
	t.Parallel()

	s := newScene(t, forbid("hostile"), natsjetstream.Options{})
	const hostile, messages = 16, 40
	conn := s.connect()
	stream := must(jetstream.New(conn))
	deaf := must(conn.SubscribeSync("_INBOX.*.deaf")) // It gets the refusals, and confirms none.
	began := time.Now()

	for n := range hostile {
		runtime := core.RuntimeID(fmt.Sprintf("hostile-%d", n))
		for i := range messages {
			publishFrom(t, stream, runtime, numbered(uint64(i+1), "object"), natsjetstream.InboxPrefix(runtime)+".deaf")
		}
	}

	mustForward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{}), numbered(1, "a"))
	if len(s.handler.Acknowledged(manager)) != 1 {
		t.Errorf("the event of runtime-1 was not handled within %v", patience)
	}

	offers, _, err := deaf.Pending()
	// Messages of one runtime that come before its first offer has timed out, after a second, are
	// offered as well. A slow machine takes several seconds until all runtimes are known to be
	// silent.
	most := hostile * max(2, int(time.Since(began)/time.Second))
	if err != nil || offers == 0 || offers > most {
		t.Errorf("%d refusals were offered to %d runtimes that confirm none (%v), want at most %d", offers, hostile, err, most)
	}
}

// A runtime gets its share of events, and no more. A message beyond it comes back when the share
// has room, as one that is carried in vain delays those of others. However old, it is never given
// up.
func TestLoudRuntimeWaits(t *testing.T) {
	t.Parallel()

	s := newScene(t, allowAll(), natsjetstream.Options{RuntimeRate: 50, RuntimeBurst: 100, GiveUpAfter: time.Millisecond})
	stream := must(jetstream.New(s.connect()))
	const messages, events = 5, 100 // A slow machine still handles one in the 2 s of its share.
	names := strings.Fields(strings.Repeat("object ", events))
	for i := range messages {
		publishFrom(t, stream, "loud", numbered(uint64(i*events+1), names...), "")
	}

	s.awaitFate("delayed too_fast", 1)
	mustForward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{}), numbered(1, "a"))
	s.awaitEmpty()
	s.awaitFate("enqueued", messages+1) // The fate is counted after the acknowledgement.

	refused := s.fates.of("delayed too_fast")
	enqueued := s.fates.of("enqueued")
	if refused == 0 || refused > 2*messages || enqueued != messages+1 {
		t.Errorf("%d of %d messages were enqueued after %d refusals, want at most two each", enqueued, messages+1, refused)
	}
}

// Almost all of a message may be headers, and they cost the receiver what a body costs.
func TestHeadersCountInTheShare(t *testing.T) {
	t.Parallel()

	const messages, large = 5, 60 << 10
	for name, size := range map[string]int{"control: small": 0, "large": large} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newScene(t, allowAll(), natsjetstream.Options{RuntimeRate: 1, RuntimeBurst: 15})
			stream := must(jetstream.New(s.connect()))

			for n := range uint64(messages) {
				batch := numbered(n+1, "object")
				batch.Source = "loud"
				msg := nats.NewMsg(natsjetstream.Subject(manager, "loud"))
				msg.Data = must(contract.V3.Encode(&batch)).Body
				msg.Header.Set("Padding", strings.Repeat("a", size))
				must(stream.PublishMsg(t.Context(), msg))
			}

			if size == large {
				s.awaitFate("delayed too_fast", 1)
				return
			}

			s.awaitFate("enqueued", messages)
			if refused := s.fates.of("delayed too_fast"); refused > 0 {
				t.Errorf("%d small messages are beyond the share, want none", refused)
			}
		})
	}
}

// A handler that takes its time gets each message once.
func TestSlowHandlerGetsEachEventOnce(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	const messages, wait = 30, 10 * time.Second // A message is extended four times within wait.
	var calls atomic.Int32
	stored := make(chan struct{})
	slow := core.HandlerFunc(func(context.Context, core.Delivery) error {
		<-stored
		<-time.After(6 * wait / 5 / messages)
		calls.Add(1)

		return nil
	})

	c := b.consumer(allowAll(), slow, natsjetstream.Options{RuntimeInFlight: messages, HandleTimeout: patience})
	c.SetAckWait(wait)
	stop := run(t, c)
	b.awaitStream(manager)
	publish := must(jetstream.New(b.connect()))

	for i := range messages {
		publishFrom(t, publish, "runtime-1", numbered(uint64(i+1), "a"), "")
	}

	close(stored)
	stream := must(publish.Stream(t.Context(), "watch-"+string(manager)))
	eventually(t, "the stream is empty", func() bool { return must(stream.Info(t.Context())).State.Msgs == 0 })
	stop() // It waits for the messages in memory.

	if got := calls.Load(); got != messages {
		t.Errorf("the handler is called %d times for %d messages", got, messages)
	}
}

// An operator may start before the NATS server, and finds a frozen one soon.
func TestOperatorStartsBeforeTheServer(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	b.kill()
	plain := func(o *nats.Options) error {
		if o.PingInterval > 15*time.Second || !o.IgnoreAuthErrorAbort || o.MaxReconnect >= 0 {
			t.Errorf("pings each %v, %d attempts, ignores errors of authorization: %v; want 15s, all, true",
				o.PingInterval, o.MaxReconnect, o.IgnoreAuthErrorAbort)
		}

		o.Secure = false
		o.TLSConfig = nil
		o.RootCAsCB = nil
		return nil
	}

	conn := must(nats.Connect(b.addr, append(natsjetstream.OperatorConnectOptions(manager, noKeys), plain)...))
	t.Cleanup(conn.Close)
	run(t, newConsumer(conn, allowAll(), &coretest.Recorder{}, natsjetstream.Options{}))
	b.start()
	b.awaitStream(manager)
	mustForward(t, b.forwarder("runtime-1", natsjetstream.ForwarderOptions{}), numbered(1, "a"))
}

// A runtime that confirms each refusal many times makes the operator's connection report nothing.
func TestRefusalsThatAreConfirmedManyTimes(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	counted := &fates{}
	var reported atomic.Int32 // The default of nats.go is a line on stderr.
	conn := b.connect(nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { reported.Add(1) }))
	run(t, newConsumer(conn, forbid("hostile"), &coretest.Recorder{}, natsjetstream.Options{
		Hooks: natsjetstream.Hooks{Concluded: counted.add},
	}))
	b.awaitStream(manager)
	hostile := b.connect()
	must(hostile.Subscribe("_INBOX.hostile.eager", func(refusal *nats.Msg) {
		for range 100 {
			_ = refusal.Respond(nil)
		}
	}))

	const messages = 20
	for n := range uint64(messages) {
		publishFrom(t, must(jetstream.New(hostile)), "hostile", numbered(n+1, "a"), "_INBOX.hostile.eager")
	}

	eventually(t, "all messages are handed back", func() bool { return counted.of("handed_back forbidden") == messages })
	if n := reported.Load(); n > 0 {
		t.Errorf("%d errors are reported for %d refusals, want none", n, messages)
	}
}
