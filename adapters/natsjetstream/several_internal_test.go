package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// The time of a message begins when it is handled, and not when the one before it began. All
// messages that wait behind it are extended, too.
func TestTheTimeOfTheFollowingMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout, wait = time.Minute, time.Second
		q := (&Consumer{opts: Options{MaxInFlight: 64, RuntimeInFlight: 16, HandleTimeout: timeout}, ackWait: wait}).
			newQueues(t.Context(), "m", nil)

		for n := range 3 {
			q.appendMessage("runtime-1", &arriving{subject: strconv.Itoa(n)})
		}

		if n := len(q.heldMessages()); n != 3 {
			t.Errorf("%d of 3 messages are held, want all", n)
		}

		time.Sleep(timeout)
		if msg, more := q.takeNext("runtime-1"); !more || msg.Subject() != "1" {
			t.Fatalf("the following message is %v, want the second one", msg)
		}

		time.Sleep(timeout)
		if n := len(q.heldMessages()); n != 2 {
			t.Errorf("%d messages are held in the time of the second one, want it and the third one", n)
		}

		time.Sleep(wait)
		if n := len(q.heldMessages()); n != 0 {
			t.Errorf("%d messages are held after the time of the second one, want none", n)
		}
	})
}

// Only a runtime that does not answer at all is silent, and for a time. Another runtime is asked.
func TestOnlySilenceSilencesARuntime(t *testing.T) {
	t.Parallel()
	for result, silences := range map[error]bool{
		nil: false, nats.ErrNoResponders: false, nats.ErrConnectionClosed: false, context.Canceled: false,
		context.DeadlineExceeded: true,
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newReturns(64)
			isAsked := func(runtime core.RuntimeID) (asked bool) {
				r.offerOnce(runtime, func() error { asked = true; return result })
				return asked
			}

			for range 2 {
				if !isAsked("runtime-1") {
					t.Errorf("%v: no offer at first, or after %v", result, silentFor)
				}
				if asked := isAsked("runtime-1"); asked == silences {
					t.Errorf("%v: a second offer: %t, want %t", result, asked, !silences)
				}

				time.Sleep(silentFor - time.Nanosecond)
				if asked := isAsked("runtime-1"); asked == silences {
					t.Errorf("%v: an offer just before the end of the silence: %t, want %t", result, asked, !silences)
				}

				time.Sleep(time.Nanosecond)
			}

			if !isAsked("runtime-2") {
				t.Errorf("%v: another runtime is not asked", result)
			}
		})
	}
}

// Of a message with several events, those that failed are handled again. Each message has its own.
func TestFailedEventsOfTwoMessages(t *testing.T) {
	t.Parallel()

	var p partial
	first := messageKey{stream: "a", sequence: 1}
	second := messageKey{stream: "a", sequence: 2}
	p.noteError(first, core.EventErrors{0: core.ErrForbidden, 2: core.ErrNotReady})
	p.noteError(second, core.EventErrors{1: core.ErrForbidden})
	p.noteError(second, core.ErrNotReady) // All of it, and no event.
	p.noteError(messageKey{}, core.EventErrors{0: core.ErrForbidden})

	for key, want := range map[messageKey][]bool{
		first: {false, true, false}, second: {true, false, true}, {stream: "b", sequence: 1}: {false, false, false}, {}: {false, false, false},
	} {
		taken := p.takenBefore(key)
		if have := []bool{taken(0), taken(1), taken(2)}; !slices.Equal(have, want) {
			t.Errorf("of %+v, the events %v are taken, want %v", key, have, want)
		}
	}

	p.noteError(first, core.EventErrors{2: core.ErrNotReady})
	if taken := p.takenBefore(first); !taken(0) || taken(2) {
		t.Error("the second attempt says nothing about the events that failed")
	}

	for n := range maxPartial + 10 {
		p.noteError(messageKey{stream: "a", sequence: uint64(n + 10)}, core.EventErrors{0: core.ErrForbidden})
	}

	if n := len(p.failed); n > maxPartial {
		t.Errorf("%d messages are remembered, want at most %d", n, maxPartial)
	}
}

// Two managers have different problems, which begin and end at different times. A problem is
// reported when it stands, when its reason changes, and when it ends.
func TestOutagesOfTwoManagers(t *testing.T) {
	t.Parallel()

	var reported []string
	c := &Consumer{opts: Options{Hooks: Hooks{Unavailable: func(u hook.Unavailability) {
		reported = append(reported, strings.TrimSpace(fmt.Sprint(u.Manager, " ", u.Reason)))
	}}}.withDefaults()}
	a := &outage{Consumer: c, manager: "a"}
	b := &outage{Consumer: c, manager: "b"}
	ctx := t.Context()
	full := &jetstream.APIError{Code: 503, ErrorCode: codeStorageExceeded}

	a.noteFailure(ctx, nats.ErrTimeout)
	a.noteSuccess(ctx)
	a.noteFailure(ctx, nats.ErrTimeout)

	if len(reported) > 0 {
		t.Errorf("reported are %q of failures that are not two in a row", reported)
	}

	a.noteFailure(ctx, nats.ErrTimeout)
	b.noteFailure(ctx, nats.ErrPermissionViolation)
	b.noteFailure(ctx, nats.ErrPermissionViolation)

	if err := fmt.Sprint(c.problems.asError()); !strings.Contains(err, "no messages for a: nats: timeout") ||
		!strings.Contains(err, "no messages for b: nats: permissions violation") {
		t.Errorf("the problems are %s, want those of both managers", err)
	}

	b.noteFailure(ctx, full)
	a.noteSuccess(ctx)
	a.noteSuccess(ctx)

	if err := fmt.Sprint(c.problems.asError()); strings.Contains(err, "for a") || !strings.Contains(err, "for b") {
		t.Errorf("the problems are %s, want that of b", err)
	}

	b.clearFailures()
	if err := c.problems.asError(); err != nil {
		t.Errorf("the problems are %v after all ended", err)
	}

	want := []string{"a connection", "b forbidden", "b " + string(ReasonStreamFull), "a", "b"}
	if diff := cmp.Diff(want, reported); diff != "" {
		t.Errorf("reported (-want +have):\n%s", diff)
	}
}

// A stream may have several subjects, with wildcards. One of them must cover those of the manager.
func TestSubjectsOfAStream(t *testing.T) {
	t.Parallel()

	const want = "watch.m.*"
	if subjects("m") != want {
		t.Fatalf("the subjects of a manager are %q", subjects("m"))
	}

	for text, ok := range map[string]bool{
		"": false, "other": false, want: true, "other " + want: true, want + " other": true, "other another": false,
		">": true, "watch.>": true, "watch.m.>": true, "watch.m.*.>": false, "watch.*.*": true, "*.m.*": true, "watch.*": false,
		"watch.m": false, "watch.n.*": false, "watch.m.*.*": false, "watch.m.a": false,
	} {
		err := checkSubjects(&jetstream.StreamConfig{Name: "s", Subjects: strings.Fields(text)}, "m")
		if (err == nil) != ok || err != nil && !errors.Is(err, errSubject) {
			t.Errorf("subjects %q: %v, want them taken: %t", text, err, ok)
		}
	}

	for _, fed := range []jetstream.StreamConfig{
		{Mirror: &jetstream.StreamSource{}}, {Sources: []*jetstream.StreamSource{{}}},
	} {
		if err := checkSubjects(&fed, "m"); err != nil {
			t.Errorf("a stream that another one feeds: %v", err)
		}
	}
}

// Of several events, one may be given up and another one not. The longest wait counts. The order of
// the events is random.
func TestRefusalsOfSeveralEvents(t *testing.T) {
	t.Parallel()

	wait := func(after time.Duration) error {
		return coretest.Refusal{Label: "busy", After: after, Cause: core.ErrNotReady}.Err()
	}

	for range 50 {
		mixed := core.EventErrors{0: core.ErrForbidden, 1: core.ErrForbidden, 2: core.ErrNotReady, 3: core.ErrForbidden}
		if isFinal(mixed) || !isFinal(core.EventErrors{0: core.ErrForbidden, 1: core.ErrUnauthenticated}) {
			t.Fatal("one event that is not refused for ever must keep its message")
		}

		waits := core.EventErrors{0: wait(time.Second), 1: wait(time.Minute), 2: core.ErrForbidden, 3: wait(3 * time.Second)}
		if have := longestWait(waits); have != time.Minute {
			t.Fatalf("the wait is %v, want the longest one", have)
		}
		if have := longestWait(core.EventErrors{0: wait(time.Hour), 1: wait(time.Second)}); have != maxRetryAfter {
			t.Fatalf("the wait is %v, want at most %v", have, maxRetryAfter)
		}
	}
}

// The exact bound of the subject of an answer, and the inbox of another runtime.
func TestSubjectsOfAnswers(t *testing.T) {
	t.Parallel()

	own := InboxPrefix("runtime-1") + "."
	long := own + strings.Repeat("a", maxAnswerSubject-len(own))
	for subject, want := range map[string]bool{
		"": false, own: false, own + "a": true, own + "a.b": true, own + "a..b": false, own + "a.": false, own + "*": false, own + ">": false,
		own + "a b": false, own + "a\r\n": false, long: true, long + "a": false, InboxPrefix("runtime-2") + ".a": false,
		InboxPrefix("runtime-10") + ".a": false,
	} {
		_, ok := answerSubject("runtime-1", &arriving{headers: nats.Header{headerAnswer: {subject}}})
		if ok != want {
			t.Errorf("an answer may go to %.60q: %t, want %t", subject, ok, want)
		}
	}
}

// The operator answered one subject, and not the other one.
func TestAnswersOfTwoSubjects(t *testing.T) {
	t.Parallel()

	f := &Forwarder{}
	late := new(atomic.Bool)
	f.setLastAnswer("answered", lastAnswer{})
	f.setLastAnswer("late", lastAnswer{&nats.Subscription{}, late})

	have := func() []bool { return []bool{f.isAnswered("answered"), f.isAnswered("late"), f.isAnswered("new")} }
	if want := []bool{true, false, false}; !slices.Equal(have(), want) {
		t.Errorf("answered are %v, want %v", have(), want)
	}

	late.Store(true)
	if want := []bool{true, true, false}; !slices.Equal(have(), want) {
		t.Errorf("after the late answer: answered are %v, want %v", have(), want)
	}
}

// The server denies the subject of one of two attempts. The other one goes on, attempts that ended
// are forgotten, and the error handler of the connection is called as before.
func TestADeniedSubjectEndsItsAttempt(t *testing.T) {
	t.Parallel()

	conn := &nats.Conn{}
	var before []error
	conn.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { before = append(before, err) })
	f := &Forwarder{conn: conn}
	f.endDenied()
	denied, stopDenied := f.watchDenials(t.Context(), "watch.m.runtime-1")
	other, stopOther := f.watchDenials(t.Context(), "watch.n.runtime-1")

	report := func(err error) { conn.ErrorHandler()(conn, nil, err) }
	denial := fmt.Errorf("%w: Publish to %q", nats.ErrPermissionViolation, "watch.m.runtime-1")
	report(errors.New(`slow consumer on "watch.n.runtime-1"`))
	report(denial)

	if !errors.Is(context.Cause(denied), nats.ErrPermissionViolation) || other.Err() != nil {
		t.Errorf("the denied attempt ends with %v, and the other one with %v", context.Cause(denied), other.Err())
	}
	if len(before) != 2 || !errors.Is(before[1], denial) {
		t.Errorf("the handler of the connection got %v, want both errors", before)
	}

	stopDenied()
	stopOther()
	left := 0
	f.attempts.Range(func(any, any) bool { left++; return true })
	if left != 0 || other.Err() == nil {
		t.Errorf("%d attempts are remembered after their end, and the context ended with %v", left, other.Err())
	}
}

// A pull that is too large for the server is no failure, and the next one is smaller. Any other
// error at the end of a pull is a failure.
func TestTheErrorAtTheEndOfAPull(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    error
		failed bool
		asked  []int
	}{
		{nil, false, []int{8, 8}},
		{errors.New("nats: Exceeded MaxRequestBatch of 3"), false, []int{8, 3}},
		{nats.ErrTimeout, true, []int{8, 8}},
	} {
		c, _ := offline(t, standby{nil}, 0)
		c.opts.MaxInFlight = 8
		q := c.newQueues(t.Context(), "my-operator", newClock(time.Now))
		from := &pulled{batchErr: tt.err}

		for range 2 {
			room, err := q.reserveSlots(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := q.fetchMessages(t.Context(), from, room); (err != nil) != tt.failed {
				t.Errorf("%v: the pull ends with %v, want a failure: %t", tt.err, err, tt.failed)
			}

			from.batchErr = nil
			tt.failed = false
		}

		if !slices.Equal(from.asked, tt.asked) {
			t.Errorf("%v: the pulls are of %v messages, want %v", tt.err, from.asked, tt.asked)
		}
	}
}

// Each result has its fate, its reason and its answer to the stream. The replica is ready unless
// the row says otherwise.
func TestTheFateOfEachResult(t *testing.T) {
	t.Parallel()

	busy := coretest.Refusal{Label: "busy", After: time.Minute, Cause: core.ErrNotReady}.Err()
	const old = time.Hour
	for name, tt := range map[string]struct {
		give     result
		age      time.Duration
		attempts uint64
		standby  bool
		handed   bool
		broken   error // of the answer
		how      string
		want     hook.Conclusion
	}{
		"handled":      {how: "ack", want: hook.Conclusion{Fate: hook.FateEnqueued}},
		"handed back":  {give: result{err: core.ErrForbidden}, handed: true, how: "ack", want: hook.Conclusion{Fate: hook.FateHandedBack, Reason: "forbidden"}},
		"of the share": {give: result{err: core.ErrNotReady, fault: intake.FaultOfShare}, how: "nak after 1s", want: hook.Conclusion{Fate: hook.FateDelayed, Reason: "too_fast"}},
		"old, of the share": {
			give: result{err: core.ErrForbidden, fault: intake.FaultOfShare}, age: old, how: "nak after 1s",
			want: hook.Conclusion{Fate: hook.FateDelayed, Reason: "too_fast"},
		},
		"of a replica that leads": {
			give: result{err: core.ErrNotReady, fault: intake.FaultOfReplica}, attempts: 3, how: "nak after 4s",
			want: hook.Conclusion{Fate: hook.FateDelayed, Reason: "not_ready"},
		},
		"of a replica that does not lead": {
			give: result{err: core.ErrNotReady, fault: intake.FaultOfReplica}, standby: true, how: "nak",
			want: hook.Conclusion{Fate: hook.FateDelayed, Reason: "not_ready"},
		},
		"refused": {
			give: result{err: core.ErrForbidden}, attempts: 2, how: "nak after 2s", want: hook.Conclusion{Fate: hook.FateDelayed, Reason: "forbidden"},
		},
		"refused for long": {
			give: result{err: core.ErrForbidden}, age: old, how: "term", want: hook.Conclusion{Fate: hook.FateTerminated, Reason: "forbidden"},
		},
		"one event refused for long": {
			give: result{err: core.EventErrors{1: core.ErrForbidden}}, age: old, how: "term",
			want: hook.Conclusion{Fate: hook.FateTerminated, Reason: "forbidden"},
		},
		"busy for long": {give: result{err: busy}, age: old, how: "nak after 1m0s", want: hook.Conclusion{Fate: hook.FateDelayed, Reason: "busy"}},
		"handled without a connection": {
			broken: nats.ErrConnectionClosed, how: "ack", want: hook.Conclusion{Fate: hook.FateDelayed, Reason: ReasonConnection},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			handler := core.Handler(core.HandlerFunc(func(context.Context, core.Delivery) error { return nil }))
			if tt.standby {
				handler = standby{nil}
			}

			c, good := offline(t, handler, 0)
			var have []hook.Conclusion
			c.opts.Hooks.Concluded = func(h hook.Conclusion) { have = append(have, h) }
			msg := &arriving{stored: *good, err: tt.broken}
			c.concludeMessage("runtime-1", "my-operator", &job{msg: msg, began: time.Now(), age: tt.age, attempts: tt.attempts}, tt.give, tt.handed)

			tt.want.Manager = "my-operator"
			if diff := cmp.Diff([]hook.Conclusion{tt.want}, have); diff != "" || msg.how != tt.how {
				t.Errorf("%s: the stream gets %q, want %q; concluded (-want +have):\n%s", name, msg.how, tt.how, diff)
			}
		})
	}
}

// A user is an agent with managers, or an operator without them. Each wrong one is named beside a
// right one, and a name is taken once.
func TestUsersOfTheServer(t *testing.T) {
	t.Parallel()

	managers := []core.Manager{"m", "n"}
	for name, tt := range map[string]struct {
		user User
		want error
	}{
		"agent":                     {User{Name: "a", Runtime: "runtime-1", Managers: managers}, nil},
		"agent without managers":    {User{Name: "a", Runtime: "runtime-1"}, nil},
		"operator":                  {User{Name: "a", Operator: "m"}, nil},
		"other client":              {User{Name: "a", Publish: []string{"own.subject"}, Subscribe: []string{"x"}}, nil},
		"managers without runtime":  {User{Name: "a", Managers: managers}, errRights},
		"operator with managers":    {User{Name: "a", Operator: "m", Managers: managers}, errRights},
		"both":                      {User{Name: "a", Operator: "m", Runtime: "runtime-1", Managers: managers}, errRights},
		"no name":                   {User{Runtime: "runtime-1"}, errName},
		"a space in the name":       {User{Name: "a b"}, errName},
		"a quote in the name":       {User{Name: `a"`}, errName},
		"a backslash in the name":   {User{Name: `a\`}, errName},
		"beyond ASCII":              {User{Name: "ä"}, errName},
		"first and last characters": {User{Name: "!~"}, nil},
		"DEL":                       {User{Name: "a\x7f"}, errName},
		"a reserved runtime":        {User{Name: "a", Runtime: reservedRuntime}, errReserved},
		"answers of operators":      {User{Name: "a", Subscribe: []string{"x", InboxPrefix(reservedRuntime) + ".>"}}, errReserved},
		"taken":                     {User{Name: "beside"}, errTwice},
	} {
		beside := User{Name: "beside", Runtime: "runtime-2", Managers: managers}
		text, err := Authorization(beside, tt.user)
		if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("%s: error %v, want %v", name, err, tt.want)
		}
		if want := strings.Join(tt.user.Publish, `", "`); err == nil && !strings.Contains(string(text), want) {
			t.Errorf("%s: the user may not publish to its own subjects %s", name, want)
		}

		for _, manager := range managers {
			if !strings.Contains(string(text), Subject(manager, "runtime-2")) {
				t.Errorf("%s: the user beside may not send to %s", name, manager)
			}
		}
	}
}

// A refusal of the sender that asks for no wait gets that of the options. Another refusal, and one
// that asks for a wait, keeps its own.
func TestTheWaitAfterARefusal(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status           int
		asks, slow, want time.Duration
	}{
		{403, 0, 30 * time.Second, 30 * time.Second},
		{403, time.Second, 30 * time.Second, time.Second},
		{403, 0, -1, 0},
		{401, 0, 20 * time.Second, 20 * time.Second},
		{503, 0, 30 * time.Second, 0},
		{503, 4 * time.Second, 30 * time.Second, 4 * time.Second},
		{400, 4 * time.Second, 30 * time.Second, 0},
	} {
		have := refused("subject", contract.Refusal{Status: tt.status, RetryAfter: tt.asks}, tt.slow).retryAfter
		if have != tt.want {
			t.Errorf("a status %d that asks for %v, with %v by default: wait of %v, want %v", tt.status, tt.asks, tt.slow, have, tt.want)
		}
	}
}
