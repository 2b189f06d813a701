package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Waits double up to their limits, also with numbers of attempts that no stream has.
func TestWaits(t *testing.T) {
	t.Parallel()

	want := ForwarderOptions{Timeout: 10 * time.Second, AnswerWait: 2 * time.Second, RefusedRetryAfter: 30 * time.Second}
	if diff := cmp.Diff(want, ForwarderOptions{}.withDefaults()); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}

	for attempts, want := range map[uint64]time.Duration{
		0: time.Second, 1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 6: maxDelay, 1 << 40: maxDelay,
	} {
		if got := backoff(attempts); got != want {
			t.Errorf("wait of %v after %d deliveries, want %v", got, attempts, want)
		}
	}

	for after, header := range map[time.Duration]string{0: "", 3 * time.Second: "3"} {
		msg := answerTo("subject", coretest.Refusal{Label: "busy", After: after, Cause: core.ErrNotReady}.Err())
		if got := readAnswer(msg, 1).RetryAfter; got != after || msg.Header.Get(headerRetryAfter) != header {
			t.Errorf("wait of %v by the header %q, want %v by %q", got, msg.Header.Get(headerRetryAfter), after, header)
		}
	}
}

// The same message gets the same ID again, until there is a result on its subject.
func TestIDs(t *testing.T) {
	t.Parallel()

	id := func(f *Forwarder, body string) string {
		return f.messageID(&message{request: &contract.Request{Body: []byte(body)}})
	}
	f := &Forwarder{secret: "a"}
	first := id(f, "1")
	if again := id(f, "1"); again != first {
		t.Error("another ID for a message with an unknown result")
	}
	if id(f, "2") == first || id(&Forwarder{secret: "b"}, "1") == first {
		t.Error("one ID for two messages")
	}

	f.results.Store("another", first)
	if id(f, "1") != first {
		t.Error("another ID after a result of another subject")
	}

	f.results.Store("", first)
	if id(f, "1") == first {
		t.Error("one ID before and after a result")
	}
}

// Each runtime has its share of the messages in memory, and loses them to another replica when it
// hangs.
func TestShareOfARuntime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := (&Consumer{opts: Options{MaxInFlight: 64, RuntimeInFlight: 16, HandleTimeout: time.Minute}, ackWait: time.Second}).
			newQueues(t.Context(), "m", nil)
		for n, want := range []int{16, 16, 10, 8} {
			q.queues[core.RuntimeID(strconv.Itoa(n))] = &queue{began: time.Now()}
			if got := q.runtimeLimit(); got != want {
				t.Errorf("%d messages of one of %d runtimes may wait, want %d", got, n+1, want)
			}
		}

		time.Sleep(time.Minute + time.Second - time.Nanosecond)
		if n := len(q.heldMessages()); n != 4 {
			t.Errorf("%d messages are held just before their time is over, want 4", n)
		}

		time.Sleep(time.Nanosecond)
		if n := len(q.heldMessages()); n != 0 {
			t.Errorf("%d messages are held after their time, want none", n)
		}
	})
}

func TestSilentRuntimesAreBounded(t *testing.T) {
	t.Parallel()

	r := newReturns(64)
	if n := cap(r.slots); n != 8 {
		t.Errorf("%d offers at the same time, want 8", n)
	}

	for n := range maxSilent + 1 {
		if len(r.silent) != n {
			t.Fatalf("%d runtimes are remembered, want %d", len(r.silent), n)
		}
		r.silenceRuntime(core.RuntimeID(strconv.Itoa(n)), time.Now())
	}

	if n := len(r.silent); n != 1 {
		t.Errorf("%d runtimes are remembered after one too many, want 1", n)
	}
}

// A stream without messages has no oldest one, and a stream without a bound is never filled.
func TestEmptyBacklog(t *testing.T) {
	t.Parallel()

	var got hook.Backlog
	c := &Consumer{opts: Options{Hooks: Hooks{Backlog: func(b hook.Backlog) { got = b }}}}
	now := time.Now()
	clock := newClock(func() time.Time { return now })
	c.reportBacklog("m", clock, &jetstream.StreamInfo{})

	if diff := cmp.Diff(hook.Backlog{Manager: "m"}, got); diff != "" {
		t.Errorf("backlog of an empty stream (-want +got):\n%s", diff)
	}

	clock.learnTime(now, &jetstream.StreamInfo{TimeStamp: now})
	c.reportBacklog("m", clock, &jetstream.StreamInfo{
		Config: jetstream.StreamConfig{MaxBytes: 200},
		State:  jetstream.StreamState{Msgs: 2, Bytes: 50, FirstTime: now.Add(-time.Hour)},
	})
	want := hook.Backlog{Manager: "m", Messages: 2, Filled: 0.25, Oldest: time.Hour}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("backlog (-want +got):\n%s", diff)
	}
}

// A stream that could lose a message is found, whichever of its settings is the cause.
func TestStreamsThatLoseMessages(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*jetstream.StreamConfig){
		"":          func(*jetstream.StreamConfig) {},
		"retention": func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy },
		"discards":  func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
		"age":       func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"no denials": func(c *jetstream.StreamConfig) {
			c.DenyPurge = false
			c.DenyDelete = false
		},
	} {
		config := StreamConfig("m")
		change(&config)
		if got := losesNothing(config); got != (name == "") {
			t.Errorf("a stream with another %q loses nothing: %t", name, got)
		}
	}
}

// TestClassify: the label of a metric tells a slow stream from a broken connection, and the class
// decides how long the outbox waits. No failure of a publish is final, unless the batch is too
// large.
func TestClassify(t *testing.T) {
	stream := func(code jetstream.ErrorCode) error { return &jetstream.APIError{Code: 503, ErrorCode: code} }
	for _, test := range []struct {
		cause, class error
		reason       string
	}{
		{cause: context.DeadlineExceeded, reason: string(core.ReasonOf(context.DeadlineExceeded))},
		{cause: context.Canceled, reason: string(core.ReasonOf(context.Canceled))},
		{cause: nats.ErrPermissionViolation, class: core.ErrForbidden, reason: reasons.Forbidden},
		{cause: jetstream.ErrNoStreamResponse, class: core.ErrUnknownManager, reason: reasons.UnknownManager},
		{cause: nats.ErrNoResponders, class: core.ErrUnknownManager, reason: reasons.UnknownManager},
		{cause: nats.ErrMaxPayload, class: core.ErrTooLarge, reason: reasons.TooLarge},
		{cause: jetstream.ErrStreamMessageExceedsMaximum, class: core.ErrTooLarge, reason: reasons.TooLarge},
		{cause: nats.ErrConnectionClosed, reason: string(ReasonDisconnected)},
		{cause: nats.ErrReconnectBufExceeded, reason: string(ReasonDisconnected)},
		{cause: nats.ErrDisconnected, reason: string(ReasonDisconnected)},
		{cause: nats.ErrConnectionReconnecting, reason: string(ReasonDisconnected)},
		{cause: stream(codeInsufficientResources), class: core.ErrNotReady, reason: string(ReasonStreamFull)},
		{cause: stream(codeMemoryExceeded), class: core.ErrNotReady, reason: string(ReasonStreamFull)},
		{cause: stream(codeStorageExceeded), class: core.ErrNotReady, reason: string(ReasonStreamFull)},
		{cause: stream(codeStoreFailed), class: core.ErrNotReady, reason: string(ReasonStreamFull)},
		{cause: stream(10071), class: core.ErrNotReady, reason: string(ReasonStream)},
		{cause: errors.New("broken"), reason: string(ReasonConnection)},
	} {
		err := classify("subject", fmt.Errorf("publish: %w", test.cause))
		final := test.class == core.ErrTooLarge //nolint:errorlint // The very class.
		if string(err.reason) != test.reason || err.Retryable() == final || !errors.Is(err, test.cause) {
			t.Errorf("%v, retryable %t, want the reason %q and %v", err, err.Retryable(), test.reason, test.cause)
		}

		for _, class := range []error{
			core.ErrForbidden, core.ErrUnknownManager, core.ErrNotReady, core.ErrUnauthenticated, core.ErrTooLarge,
		} {
			if is := errors.Is(err, class); is != (class == test.class) { //nolint:errorlint // The very class.
				t.Errorf("%v is %v: %t", test.cause, class, is)
			}
		}
	}

	for status, want := range map[int]string{400: "<nil>", 500: "status 500", 503: core.ErrNotReady.Error()} {
		if got := fmt.Sprint(refused("subject", contract.Refusal{Status: status}, 0).Err); got != want {
			t.Errorf("cause of an answer of %d: %s, want %s", status, got, want)
		}
	}
}
