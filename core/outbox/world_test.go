package outbox_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
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

const (
	kyma   core.Manager = "kyma"
	ms                  = time.Millisecond
	second              = time.Second
)

var (
	errDown    = errors.New("control plane is down")
	errRefused = verdict{reason: "malformed", permanent: true}
	errNoOwner = verdict{reason: "owner_missing"}
	// unwelcome is refused, and asks for half a minute of patience.
	unwelcome = verdict{reason: "unauthenticated", after: 30 * second}
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

func ownedBy(owner, name string) core.WatchEvent {
	event := named(name)
	event.Owner.Name = owner
	return event
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

// call is one call of the forwarder, at its time since the start of the test.
type call struct {
	At    time.Duration
	Names []string
}

func at(d time.Duration, names ...string) call { return call{d, names} }

// elapsed returns the time since the start of a synctest bubble. The clock of each bubble starts at
// this date.
func elapsed() time.Duration { return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) }

// answer is that of a control plane to its n-th call.
type answer func(ctx context.Context, n int, batch core.Batch) error

// first answers the first n calls with an error.
func first(n int, err error) answer {
	return func(_ context.Context, i int, _ core.Batch) error {
		if i < n {
			return err
		}
		return nil
	}
}

// always answers each call with an error.
func always(err error) answer { return func(context.Context, int, core.Batch) error { return err } }

// until answers with an error for a time.
func until(end time.Duration, err error) answer {
	return func(context.Context, int, core.Batch) error {
		if elapsed() < end {
			return err
		}
		return nil
	}
}

// hang waits for the end of the call.
func hang(ctx context.Context, _ int, _ core.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}

// plane is a control plane. It keeps all calls, and the batches that it took.
type plane struct {
	mu      sync.Mutex
	answer  answer
	down    bool
	calls   []call
	batches []core.Batch
}

func (p *plane) Forward(ctx context.Context, _ core.Manager, batch core.Batch) error {
	p.mu.Lock()
	n := len(p.calls)
	down := p.down
	p.calls = append(p.calls, call{elapsed(), names(batch)})
	p.mu.Unlock()
	if down {
		return errDown
	}

	if p.answer != nil {
		if err := p.answer(ctx, n, batch); err != nil {
			return err
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	p.batches = append(p.batches, batch)
	return nil
}

func (p *plane) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *plane) seen() []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// count returns the number of calls with something of a name, such as "heartbeat".
func (p *plane) count(name string) (n int) {
	for _, call := range p.seen() {
		if slices.Contains(call.Names, name) {
			n++
		}
	}
	return n
}

func (p *plane) taken() []core.Batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.batches)
}

func (p *plane) events() (all []core.Numbered) {
	for _, batch := range p.taken() {
		all = append(all, batch.Events...)
	}
	return all
}

func (p *plane) beats() (all []core.Heartbeat) {
	for _, batch := range p.taken() {
		if batch.Heartbeat != nil {
			all = append(all, *batch.Heartbeat)
		}
	}
	return all
}

func (p *plane) lastBeat() core.Heartbeat {
	beats := p.beats()
	return beats[len(beats)-1]
}

// logBuffer is read while all other goroutines of the bubble wait.
type logBuffer struct{ bytes.Buffer }

func (l *logBuffer) String() string {
	synctest.Wait()
	return l.Buffer.String()
}

func (l *logBuffer) count(text string) int { return strings.Count(l.String(), text) }

// scene is what a world is made of.
type scene struct {
	opts outbox.Options
	// plain leaves resends and the randomness of waits on.
	plain  bool
	answer answer
	// via replaces the control plane, which it may call.
	via func(p *plane) core.Forwarder
}

// world is an outbox with its control plane and its log, in the bubble of a synctest.
type world struct {
	*outbox.Outbox
	*plane

	t   *testing.T
	log logBuffer
	// stop ends the outbox and waits for its end.
	stop func()
}

// newWorld returns a world. Its outbox is not started.
func newWorld(t *testing.T, s scene) *world {
	t.Helper()

	w := &world{t: t, plane: &plane{answer: s.answer}, stop: func() {}}
	if !s.plain {
		s.opts.ResendResync = cmp.Or(s.opts.ResendResync, -1)
		s.opts.ResendEvery = cmp.Or(s.opts.ResendEvery, -1)
		s.opts.Gather = cmp.Or(s.opts.Gather, -1)
		if s.opts.Random == nil {
			s.opts.Random = func() float64 { return 0 }
		}
		if s.opts.Resend == nil {
			s.opts.Resend = []time.Duration{}
		}
	}

	if s.opts.Logger == nil {
		s.opts.Logger = slog.New(slog.NewTextHandler(&w.log, nil))
	}
	var forwarder core.Forwarder = w.plane
	if s.via != nil {
		forwarder = s.via(w.plane)
	}
	w.Outbox = newOutbox(t, forwarder, s.opts)
	return w
}

// start runs the outbox until the end of the test, or until stop.
func (w *world) start() { w.stop = startOutbox(w.t, w.Outbox) }

// inBubble runs a test of an outbox that is started.
func inBubble(t *testing.T, s scene, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s)
		w.start()
		test(w)
	})
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

	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Start: %v, want nil", err)
		}
		checkBalance(t, o)
	})

	t.Cleanup(stop)
	return stop
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

// write accepts an event for each name.
func (w *world) write(names ...string) {
	for _, name := range names {
		w.Accept(kyma, named(name))
	}
}

// numbered returns the name of an object.
func numbered(prefix string, i int) string { return prefix + strconv.Itoa(i) }

// writeMany accepts n events for different objects, with a pause after each.
func (w *world) writeMany(n int, prefix string, pause time.Duration) {
	for i := range n {
		w.write(numbered(prefix, i))
		time.Sleep(pause)
	}
}

func (w *world) wantOutcome(manager core.Manager, event core.WatchEvent, want core.Outcome) {
	w.t.Helper()
	if got := w.Accept(manager, event); got != want {
		w.t.Errorf("%s for %s: %s, want %s", nameOf(event), manager, got, want)
	}
}

func (w *world) wantCounts(want outbox.Counts) {
	w.t.Helper()
	if want.Dropped == nil {
		want.Dropped = map[core.Reason]int64{}
	}
	if diff := gocmp.Diff(want, w.Counts()[kyma]); diff != "" {
		w.t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// wantDelivered wants that all n events were delivered, each by itself.
func (w *world) wantDelivered(n int64) {
	w.t.Helper()
	w.wantCounts(outbox.Counts{Accepted: n, Delivered: n})
}

func (w *world) wantCalls(want ...call) {
	w.t.Helper()
	if diff := gocmp.Diff(want, w.seen()); diff != "" {
		w.t.Errorf("calls of the forwarder (-want +got):\n%s", diff)
	}
}

// wantBetween wants a number of something.
func (w *world) wantBetween(least, got, most int, what string) {
	w.t.Helper()
	if got < least || got > most {
		w.t.Errorf("%d %s, want %d to %d:\n%s", got, what, least, most, &w.log)
	}
}

// took returns the time that work takes.
func took(work func()) time.Duration {
	began := time.Now()
	work()
	return time.Since(began)
}
