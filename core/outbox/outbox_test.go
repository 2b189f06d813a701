package outbox_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const kyma core.Manager = "kyma"

var (
	errDown    = errors.New("control plane is down")
	errRefused = verdict{reason: "malformed", permanent: true}
	errNoOwner = verdict{reason: "owner_missing"}
)

type verdict struct {
	reason    string
	permanent bool
	after     time.Duration
}

func (v verdict) Error() string             { return v.reason }
func (v verdict) Reason() string            { return v.reason }
func (v verdict) Retryable() bool           { return !v.permanent }
func (v verdict) RetryAfter() time.Duration { return v.after }

func named(name string) core.WatchEvent {
	return core.WatchEvent{
		Owner:      types.NamespacedName{Namespace: "kcp", Name: "owner"},
		Watched:    types.NamespacedName{Namespace: "default", Name: name},
		WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	}
}

// call is one call of the forwarder, at its time since the start of the test.
type call struct {
	At    time.Duration
	Names []string
}

// plane is a control plane with the answers of a test.
type plane struct {
	mu     sync.Mutex
	start  time.Time
	calls  []call
	answer func(ctx context.Context, n int, batch core.Batch) error
}

func newPlane(answer func(ctx context.Context, n int, batch core.Batch) error) *plane {
	return &plane{start: time.Now(), answer: answer}
}

func (p *plane) Forward(ctx context.Context, _ core.Manager, batch core.Batch) error {
	p.mu.Lock()
	n := len(p.calls)
	p.calls = append(p.calls, call{time.Since(p.start), names(batch)})
	p.mu.Unlock()
	if p.answer == nil {
		return nil
	}
	return p.answer(ctx, n, batch)
}

func (p *plane) seen() []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// gauge measures how many calls run at once.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

// hold is one call of that duration.
func (g *gauge) hold(d time.Duration) {
	g.add(1)
	time.Sleep(d)
	g.add(-1)
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.most = max(g.most, g.now)
}

func names(batch core.Batch) []string {
	var all []string
	for i := range batch.Events {
		all = append(all, nameOf(batch.Events[i].WatchEvent))
	}
	if batch.Heartbeat != nil {
		all = append(all, "heartbeat")
	}
	return all
}

func nameOf(event core.WatchEvent) string {
	switch {
	case !event.Resync:
		return event.Watched.Name
	case event.Owner.Name == "":
		return "resync"
	default:
		return "resync of " + event.Owner.Name
	}
}

// run starts an outbox in the bubble of a synctest. It returns a function that stops it and waits
// for its end. Resends are off unless opts has some.
func run(t *testing.T, p core.Forwarder, opts outbox.Options) (*outbox.Outbox, func()) {
	t.Helper()
	opts.ResendResync = cmp.Or(opts.ResendResync, -1)
	if opts.Random == nil {
		opts.Random = func() float64 { return 0 }
	}
	if opts.Resend == nil {
		opts.Resend = []time.Duration{}
	}
	o := newOutbox(t, p, opts)
	return o, startOutbox(t, o)
}

func newOutbox(t *testing.T, p core.Forwarder, opts outbox.Options) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(p, opts)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func startOutbox(t *testing.T, o *outbox.Outbox) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Start(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Start: %v, want nil", err)
		}
		checkBalance(t, o)
	}
}

func checkBalance(t *testing.T, o *outbox.Outbox) {
	t.Helper()
	for manager, c := range o.Counts() {
		sum := c.Delivered + c.Coalesced + c.Pending
		for _, n := range c.Dropped {
			sum += n
		}
		if c.Accepted != sum {
			t.Errorf("%s: accepted %d, but the fates add up to %d: %+v", manager, c.Accepted, sum, c)
		}
	}
}

func wantCounts(t *testing.T, o *outbox.Outbox, want outbox.Counts) {
	t.Helper()
	if want.Dropped == nil {
		want.Dropped = map[string]int64{}
	}
	if diff := gocmp.Diff(want, o.Counts()[kyma]); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func wantCalls(t *testing.T, p *plane, want ...call) {
	t.Helper()
	if diff := gocmp.Diff(want, p.seen()); diff != "" {
		t.Errorf("calls of the forwarder (-want +got):\n%s", diff)
	}
}

func at(d time.Duration, names ...string) call { return call{d, names} }

const ms = time.Millisecond

// An object that never rests is still seen all the time, and seen last after its last write.
func TestConstantWritesNeitherStarveNorFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{})
		for range 1000 {
			o.Accept(kyma, named("a"))
			time.Sleep(10 * ms)
		}
		last := time.Since(p.start) - 10*ms
		time.Sleep(time.Second)
		calls := p.seen()
		if n := len(calls); n < 50 || n > 115 {
			t.Errorf("10 s of writes led to %d calls, want about one per settle time", n)
		}
		if end := calls[len(calls)-1].At; end < last+100*ms {
			t.Errorf("last call at %v, want at least 100 ms after the last write at %v", end, last)
		}
		stop()
	})
}

func TestOutageCoalescesToOneEventPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		p := newPlane(func(context.Context, int, core.Batch) error {
			if !up.Load() {
				return errDown
			}
			return nil
		})
		o, stop := run(t, p, outbox.Options{InFlight: 1})
		for i := range 3600 {
			o.Accept(kyma, named(fmt.Sprint("object-", i%3)))
			time.Sleep(time.Second)
		}
		up.Store(true)
		before := len(p.seen())
		time.Sleep(outbox.Defaults().MaxBackoff)
		if sent := len(p.seen()) - before; sent != 3 {
			t.Errorf("%d events after the outage, want one for each of the 3 objects", sent)
		}
		if before > 3600/10+10 {
			t.Errorf("%d attempts during an hour of outage, want about one in 10 s for all events", before)
		}
		wantCounts(t, o, outbox.Counts{Accepted: 3600, Delivered: 3, Coalesced: 3597})
		stop()
	})
}

// A receiver that answers gets the first attempt soon after an outage, for its length. One of a day
// has pauses of MaxBackoff.
func TestBackoffOfAReceiverThatAnswers(t *testing.T) {
	for outage, want := range map[time.Duration]time.Duration{
		500 * ms: time.Second, 4 * time.Second: 2 * time.Second, 16 * time.Second: 2 * time.Second,
		20 * time.Second: 2500 * ms, time.Minute: 7500 * ms, 24 * time.Hour: 20 * time.Second,
	} {
		t.Run(outage.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				p := newPlane(func(context.Context, int, core.Batch) error {
					if time.Since(began) < outage {
						return fmt.Errorf("%w: no leader", core.ErrNotReady)
					}
					return nil
				})
				o, stop := run(t, p, outbox.Options{Settle: -1, Random: func() float64 { return 0.999 }})
				o.Accept(kyma, named("a"))
				time.Sleep(outage)
				synctest.Wait()
				time.Sleep(want)
				synctest.Wait()
				if n := o.Counts()[kyma].Delivered; n != 1 {
					t.Errorf("%d delivered %v after the outage, want 1", n, want)
				}
				if n, limit := len(p.seen()), 40+int(outage/outbox.Defaults().MaxBackoff)*11/10; n > limit {
					t.Errorf("%d attempts, want at most %d", n, limit)
				}
				stop()
			})
		})
	}
}

func failTimes(n int, err error) func(context.Context, int, core.Batch) error {
	return func(_ context.Context, i int, _ core.Batch) error {
		if i < n {
			return err
		}
		return nil
	}
}

// One refused event must neither take the rest of its batch with it nor hold it up.
func TestRefusedBatchIsSentEventByEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(_ context.Context, _ int, batch core.Batch) error {
			if slices.Contains(names(batch), "bad") {
				return errRefused
			}
			return nil
		})
		o, stop := run(t, p, outbox.Options{MaxBatch: 10, InFlight: 1})
		for _, name := range []string{"a", "bad", "b"} {
			o.Accept(kyma, named(name))
		}
		time.Sleep(time.Second)
		if got := p.seen(); len(got) != 5 || len(got[0].Names) != 3 {
			t.Errorf("calls %v, want one with all, one for each, and a resync for the refused one", got)
		}
		wantCounts(t, o, outbox.Counts{Accepted: 4, Delivered: 3, Dropped: map[string]int64{"malformed": 1}})
		stop()
	})
}

func TestPartialFailureRetriesTheEventsItNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(_ context.Context, n int, batch core.Batch) error {
			if n > 0 {
				return nil
			}
			return core.EventErrors{slices.Index(names(batch), "b"): errDown, slices.Index(names(batch), "c"): errRefused}
		})
		o, stop := run(t, p, outbox.Options{MaxBatch: 10, Settle: 100 * ms})
		for _, name := range []string{"a", "b", "c", "d"} {
			o.Accept(kyma, named(name))
		}
		time.Sleep(time.Second)
		calls := p.seen()
		if len(calls) != 2 || !slices.Equal(slices.Sorted(slices.Values(calls[1].Names)), []string{"b", "resync"}) {
			t.Errorf("calls %v, want a second one with b, and a resync for c", calls)
		}
		wantCounts(t, o, outbox.Counts{Accepted: 5, Delivered: 4, Dropped: map[string]int64{"malformed": 1}})
		stop()
	})
}

// A manager that is down must not hold up another, nor an event that is refused for now the events
// beside it.
func TestFailuresStayWhereTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delivered := make(map[string]time.Duration)
		start := time.Now()
		var mu sync.Mutex
		forwarder := core.ForwarderFunc(func(_ context.Context, manager core.Manager, batch core.Batch) error {
			name := batch.Events[0].Watched.Name
			switch {
			case manager == "down":
				return errDown
			case name == "unpinned":
				return core.EventErrors{0: verdict{reason: "forbidden", after: 30 * time.Second}}
			}
			mu.Lock()
			defer mu.Unlock()
			delivered[name] = time.Since(start)
			return nil
		})
		o, stop := run(t, forwarder, outbox.Options{InFlight: 1, DrainTimeout: -1})
		o.Accept("down", named("x"))
		o.Accept(kyma, named("unpinned"))
		o.Accept(kyma, named("a"))
		time.Sleep(time.Minute)
		stop()
		if diff := gocmp.Diff(map[string]time.Duration{"a": 100 * ms}, delivered); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
	})
}

func TestCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls gauge
		p := newPlane(func(context.Context, int, core.Batch) error {
			calls.hold(time.Second)
			return nil
		})
		o, stop := run(t, p, outbox.Options{InFlight: 3, MaxBatch: 2})
		for i := range 100 {
			o.Accept(kyma, named(strconv.Itoa(i)))
		}
		time.Sleep(time.Minute)
		stop()
		if calls.most != 3 {
			t.Errorf("%d calls at once, want 3", calls.most)
		}
		wantCounts(t, o, outbox.Counts{Accepted: 100, Delivered: 100})
	})
}

func TestHangingForwarderIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(ctx context.Context, n int, _ core.Batch) error {
			if n > 0 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		o, stop := run(t, p, outbox.Options{ForwardTimeout: 5 * time.Second, Settle: -1, MinBackoff: 2 * time.Second})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Minute)
		wantCalls(t, p, at(0, "a"), at(6*time.Second, "a"))
		stop()
	})
}

func TestOverflowCollapsesIntoOneResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{MaxKeys: 2, MaxBatch: 10})
		for i, want := range []core.Outcome{core.Accepted, core.Accepted, core.Dropped, core.Dropped, core.Dropped} {
			if got := o.Accept(kyma, named(strconv.Itoa(i))); got != want {
				t.Errorf("event %d: %s, want %s", i, got, want)
			}
		}
		time.Sleep(time.Second)
		var sent []string
		for _, c := range p.seen() {
			sent = append(sent, c.Names...)
		}
		slices.Sort(sent)
		// The second resync stands for events that were dropped while the first had not settled.
		if diff := gocmp.Diff([]string{"0", "1", "resync"}, slices.Compact(sent)); diff != "" {
			t.Errorf("sent (-want +got):\n%s", diff)
		}
		if got := o.Counts()[kyma]; got.Dropped["overflow"] != 3 || got.Pending != 0 {
			t.Errorf("counts %+v, want 3 dropped and none pending", got)
		}
		if got := o.Accept(kyma, named("later")); got != core.Accepted {
			t.Errorf("after the overflow: %s, want accepted", got)
		}
		stop()
	})
}

func TestOwnersDoNotUnboundTheOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(failTimes(1<<30, errDown))
		o, stop := run(t, p, outbox.Options{MaxKeys: 1, DrainTimeout: -1})
		for i := range 10_000 {
			event := named(strconv.Itoa(i))
			event.Owner.Name = event.Watched.Name
			o.Accept(kyma, event)
		}
		if n := o.Counts()[kyma].Pending; n > 205 {
			t.Errorf("%d events are kept, want a bounded number", n)
		}
		stop()
	})
}

func TestTooManyManagersAreDropped(t *testing.T) {
	o := newOutbox(t, newPlane(nil), outbox.Options{MaxManagers: 1})
	o.Accept("one", named("a"))
	if got := o.Accept("two", named("a")); got != core.Dropped {
		t.Errorf("second manager: %s, want dropped", got)
	}
}

func TestStopDrainsWhatIsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(failTimes(2, errDown))
		o, stop := run(t, p, outbox.Options{})
		o.Accept(kyma, named("a"))
		o.Accept(kyma, named("b"))
		stop()
		wantCounts(t, o, outbox.Counts{Accepted: 2, Delivered: 2})
	})
}

func TestStopGivesUpAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(failTimes(1<<30, errDown))
		o, stop := run(t, p, outbox.Options{DrainTimeout: 3 * time.Second})
		o.Accept(kyma, named("a"))
		stop()
		if took := time.Since(p.start); took != 3*time.Second {
			t.Errorf("stopped after %v, want 3s", took)
		}
		if got := o.Accept(kyma, named("b")); got != core.Dropped {
			t.Errorf("after the end: %s, want dropped", got)
		}
		wantCounts(t, o, outbox.Counts{Accepted: 2, Dropped: map[string]int64{"shutdown": 2}})
	})
}

func TestStopCancelsAHangingCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(ctx context.Context, _ int, _ core.Batch) error {
			<-ctx.Done()
			return ctx.Err()
		})
		o, stop := run(t, p, outbox.Options{DrainTimeout: time.Second, ForwardTimeout: time.Hour})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Minute)
		stop()
		if took := time.Since(p.start); took != time.Minute+time.Second {
			t.Errorf("stopped after %v, want a second after the stop at 1m", took)
		}
	})
}

func TestStartsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, stop := run(t, newPlane(nil), outbox.Options{})
		synctest.Wait()
		if err := o.Start(t.Context()); !errors.Is(err, outbox.ErrStarted) {
			t.Errorf("second Start: %v, want ErrStarted", err)
		}
		stop()
	})
}

func TestAcceptedBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o := newOutbox(t, p, outbox.Options{})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		if age := o.OldestPending(kyma); age != time.Second {
			t.Errorf("oldest pending %v, want 1s", age)
		}
		stop := startOutbox(t, o)
		synctest.Wait()
		wantCalls(t, p, at(time.Second, "a"))
		stop()
	})
}

func TestNewNamesWrongOptions(t *testing.T) {
	for name, opts := range map[string]outbox.Options{
		"Resend":         {Resend: []time.Duration{100 * ms}},
		"GiveUpAfter":    {GiveUpAfter: -1},
		"MaxKeys":        {MaxKeys: -1},
		"MaxManagers":    {MaxManagers: -1},
		"MaxBatch":       {MaxBatch: -1},
		"InFlight":       {InFlight: -1},
		"ForwardTimeout": {ForwardTimeout: -1},
		"MinBackoff":     {MinBackoff: -1},
		"MaxBackoff":     {MinBackoff: 2, MaxBackoff: 1},
	} {
		if _, err := outbox.New(newPlane(nil), opts); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v, want one that names it", name, err)
		}
	}
	if _, err := outbox.New(nil, outbox.Options{}); err == nil {
		t.Error("no error for a nil forwarder")
	}
}
