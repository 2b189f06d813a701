package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// arriving is a message of a subject, which counts its fates.
type arriving struct {
	stored

	subject string
	headers nats.Header
	settled int
	// how is the last answer to the stream, and err its error.
	how string
	err error
}

func (a *arriving) settle(how string) error {
	a.settled++
	a.how = how
	return a.err
}

func (a *arriving) Subject() string      { return a.subject }
func (a *arriving) Headers() nats.Header { return a.headers }
func (a *arriving) Ack() error           { return a.settle("ack") }
func (a *arriving) Nak() error           { return a.settle("nak") }
func (a *arriving) Term() error          { return a.settle("term") }
func (a *arriving) NakWithDelay(wait time.Duration) error {
	return a.settle("nak after " + wait.String())
}
func (a *arriving) InProgress() error                         { return nil }
func (a *arriving) Reply() string                             { return "" }
func (a *arriving) DoubleAck(context.Context) error           { return nil }
func (a *arriving) TermWithReason(string) error               { return a.settle("term") }
func (a *arriving) String() string                            { return fmt.Sprintf("%s %.40q", a.subject, a.body) }
func (a *arriving) Metadata() (*jetstream.MsgMetadata, error) { return a.stored.Metadata() }

// pulled is a durable consumer that returns some messages at each fetch.
type pulled struct {
	jetstream.Consumer

	messages []jetstream.Msg
	asked    []int
	err      error
	batchErr error // at the end of a batch
}

func (p *pulled) Fetch(n int, _ ...jetstream.FetchOpt) (jetstream.MessageBatch, error) {
	p.asked = append(p.asked, n)
	if p.err != nil {
		return nil, p.err
	}

	n = min(n, len(p.messages))
	batch := &fetched{messages: make(chan jetstream.Msg, n), err: p.batchErr}
	for _, msg := range p.messages[:n] {
		batch.messages <- msg
	}

	close(batch.messages)
	p.messages = p.messages[n:]
	return batch, nil
}

type fetched struct {
	messages chan jetstream.Msg
	err      error
}

func (f *fetched) Messages() <-chan jetstream.Msg { return f.messages }
func (f *fetched) Error() error                   { return f.err }

// Each message gives its place back, whatever becomes of it. A place that is lost shows after as
// many messages of that kind as there are places, here one or two.
func TestEachMessageGivesItsPlaceBack(t *testing.T) {
	t.Parallel()

	const own, other = "watch.my-operator.runtime-1", "watch.my-operator.runtime-2"
	_, good := offline(t, standby{nil}, 0)
	for name, kind := range map[string]func(subject string) *arriving{
		"good":              func(s string) *arriving { return &arriving{stored: *good, subject: s} },
		"malformed subject": func(string) *arriving { return &arriving{stored: *good, subject: "watch.my-operator.%2e"} },
		"subject of others": func(string) *arriving { return &arriving{stored: *good, subject: "other"} },
		"no runtime":        func(string) *arriving { return &arriving{stored: *good, subject: "watch.my-operator.operator"} },
		"acknowledgement":   func(s string) *arriving { return &arriving{stored: stored{body: []byte(`{"seq":1}`)}, subject: s} },
		"malformed":         func(s string) *arriving { return &arriving{stored: stored{body: []byte(`[{}]`)}, subject: s} },
		"no body":           func(s string) *arriving { return &arriving{subject: s, headers: nats.Header{"A": {"b"}}} },
		"old": func(s string) *arriving {
			return &arriving{stored: stored{body: good.body, age: time.Hour}, subject: s}
		},
		"failing": func(s string) *arriving {
			return &arriving{stored: *good, subject: s, headers: nats.Header{"Fail": {"-"}}}
		},
	} {
		for _, places := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " ", places), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					c, _ := offline(t, core.HandlerFunc(func(context.Context, core.Delivery) error { return nil }), 0)
					c.opts.MaxInFlight = places
					c.opts.RuntimeInFlight = 1
					failing := name == "failing"
					c.receive = func(context.Context, *intake.Request) result {
						if failing {
							return result{err: core.ErrForbidden}
						}
						return result{}
					}

					from := &pulled{}
					all := []*arriving{}
					for n := range 3 * places {
						msg := kind([]string{own, own, other}[n%3])
						all = append(all, msg)
						from.messages = append(from.messages, msg)
					}

					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()

					q := c.newQueues(ctx, "my-operator", newClock(time.Now))
					for len(from.messages) > 0 {
						room, err := q.reserveSlots(ctx)
						if err != nil {
							t.Fatalf("no place is free, and %d messages are left: %v", len(from.messages), err)
						}
						if err := q.fetchMessages(ctx, from, room); err != nil {
							t.Fatal(err)
						}
					}

					q.running.Wait()
					if n := len(q.slots); n != 0 {
						t.Errorf("%d of %d places are taken at the end, want none", n, places)
					}

					for _, msg := range all {
						if msg.settled != 1 {
							t.Errorf("message %v has %d fates, want one", msg, msg.settled)
						}
					}
				})
			})
		}
	}
}

// A pull that fails, or that ends early, gives its places back.
func TestPullsGiveTheirPlacesBack(t *testing.T) {
	t.Parallel()
	for name, pull := range map[string]func(q *queues, room int) error{
		"no message": func(q *queues, room int) error { return q.fetchMessages(q.ctx, &pulled{}, room) },
		"failure":    func(q *queues, room int) error { return q.fetchMessages(q.ctx, &pulled{err: nats.ErrTimeout}, room) },
		"end": func(q *queues, room int) error {
			ended, cancel := context.WithCancel(q.ctx)
			cancel()
			return q.fetchMessages(ended, &pulled{messages: []jetstream.Msg{&arriving{}, &arriving{}}}, room)
		},
	} {
		for _, places := range []int{1, 2} {
			synctest.Test(t, func(t *testing.T) {
				c, _ := offline(t, standby{nil}, 0)
				c.opts.MaxInFlight = places
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()

				q := c.newQueues(ctx, "my-operator", newClock(time.Now))
				for range places + 1 {
					room, err := q.reserveSlots(ctx)
					if err != nil || room != places {
						t.Fatalf("%s: %d of %d places are free, want all: %v", name, room, places, err)
					}

					_ = pull(q, room)
				}
			})
		}
	}
}

// A message that is deferred gives its place back, while the first message of its runtime is
// handled and the second one waits.
func TestEachDeferredMessageGivesItsPlaceBack(t *testing.T) {
	t.Parallel()

	const places, atATime, rounds = 6, 5, 4

	for _, loud := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			c, good := offline(t, core.HandlerFunc(func(context.Context, core.Delivery) error { return nil }), 0)
			c.opts.MaxInFlight = places
			c.opts.RuntimeInFlight = 1
			released := make(chan struct{})
			c.receive = func(context.Context, *intake.Request) result {
				<-released
				return result{}
			}

			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()

			q := c.newQueues(ctx, "my-operator", newClock(time.Now))
			finish := sync.OnceFunc(func() {
				close(released)
				q.running.Wait()
			})
			defer finish()

			from := &pulled{}
			all := []*arriving{}
			for range rounds {
				for n := range atATime {
					msg := &arriving{stored: *good, subject: fmt.Sprint("watch.my-operator.runtime-", n%loud)}
					all = append(all, msg)
					from.messages = append(from.messages, msg)
				}

				for len(from.messages) > 0 {
					room, err := q.reserveSlots(ctx)
					if err != nil {
						t.Fatalf("no place is free: a deferred message keeps its place: %v", err)
					}
					if err := q.fetchMessages(ctx, from, room); err != nil {
						t.Fatal(err)
					}
				}

				if taken := len(q.slots); taken != 2*loud {
					t.Errorf("%d loud runtimes take %d places, want %d", loud, taken, 2*loud)
				}
			}

			deferred := 0
			for _, msg := range all {
				deferred += msg.settled
			}

			if want := len(all) - 2*loud; deferred != want {
				t.Errorf("control: %d messages are deferred, want %d", deferred, want)
			}

			finish()
			if n := len(q.slots); n != 0 {
				t.Errorf("%d of %d places are taken at the end, want none", n, places)
			}

			for _, msg := range all {
				if msg.settled != 1 {
					t.Errorf("message %v has %d fates, want one", msg, msg.settled)
				}
			}
		})
	}
}

// A runtime with one message in flight at a time has its second message handled, whatever became of
// the first.
func TestEachMessageLeavesTheShareOfItsRuntime(t *testing.T) {
	t.Parallel()

	handler := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })

	for name, r := range map[string]result{
		"good": {}, "malformed": {}, "failing": {err: core.ErrForbidden}, "replica": {err: core.ErrNotReady, fault: intake.FaultOfReplica},
		"share": {err: core.ErrNotReady, fault: intake.FaultOfShare},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, good := offline(t, handler, 0)
			handled := 0
			c.receive = func(context.Context, *intake.Request) result { handled++; return r }
			in, err := intake.New(core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil }),
				map[core.Manager]core.Handler{"my-operator": handler}, intake.Options{RuntimeInFlight: 1})
			if err != nil {
				t.Fatal(err)
			}

			c.intake = in

			for n := range 3 {
				msg := &arriving{stored: *good, subject: "watch.my-operator.runtime-1"}
				if name == "malformed" && n < 2 {
					msg.body = []byte(`[{}]`)
				}

				c.processMessage(t.Context(), "runtime-1", "my-operator", newJob(msg, newClock(time.Now)))
			}

			want := 3
			if name == "malformed" {
				want = 1
			}
			if handled != want {
				t.Errorf("%s: %d messages are handled, want %d: a message stays in flight", name, handled, want)
			}
		})
	}
}

// A pull is as large as the server allows, from its first answer on.
func TestPullsShrinkAsTheServerSays(t *testing.T) {
	t.Parallel()

	for text, want := range map[string][]int{
		"nats: Exceeded MaxRequestBatch of 100":   {100, 50, 25},
		"nats: Exceeded MaxRequestBatch of 1":     {1},
		"nats: Exceeded MaxRequestBatch of 0":     {128, 64},
		"nats: Exceeded MaxRequestBatch of -5":    {128, 64},
		"nats: Exceeded MaxRequestBatch of 9999":  {128, 64},
		"nats: Exceeded MaxRequestBatch, smaller": {128, 64},
	} {
		q := &queues{most: 256}
		for _, most := range want {
			if !q.shrinkPulls(errors.New(text)) || q.most != most {
				t.Errorf("%s: pulls of %d, want %d", text, q.most, most)
			}
		}
	}

	one := &queues{most: 1}
	if one.shrinkPulls(errors.New("nats: Exceeded MaxRequestBatch of 1")) || one.shrinkPulls(nats.ErrTimeout) {
		t.Error("a failure that no smaller pull can mend is taken for one")
	}

	one.pullAtMost(0)
	one.pullAtMost(7)

	if one.most != 1 {
		t.Errorf("pulls of %d, want no more than there are places", one.most)
	}
}

// Each offer gives its place back, however it ends. Bounds of 1 and 2 places.
func TestEachOfferGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	for inFlight, places := range map[int]int{1: 1, perReturn: 1, 2 * perReturn: 2} {
		r := newReturns(inFlight)
		for n := range 3 * places {
			for i, result := range []error{nil, nats.ErrNoResponders, context.DeadlineExceeded, errors.New("closed")} {
				asked := false
				runtime := core.RuntimeID(fmt.Sprint(n, i))
				confirmed := r.offerOnce(runtime, func() error { asked = true; return result })
				if !asked || confirmed != (result == nil) {
					t.Errorf("%d places: offer %d is made: %t, and confirmed: %t, want it made", places, n, asked, confirmed)
				}
			}
		}

		if len(r.slots) != 0 || cap(r.slots) != places {
			t.Errorf("%d of %d places are taken at the end, want none of %d", len(r.slots), cap(r.slots), places)
		}

		// All places are in use.
		full := 0
		var nest func(depth int) bool
		nest = func(depth int) bool {
			return r.offerOnce(core.RuntimeID(fmt.Sprint("nested-", depth)), func() error { full++; nest(depth + 1); return nil })
		}
		nest(0)

		if full != places || len(r.slots) != 0 {
			t.Errorf("%d offers at the same time, want %d; %d places are left taken", full, places, len(r.slots))
		}
	}
}
