package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Arrival is a change of one object that was delivered to an operator.
type Arrival struct {
	Runtime core.RuntimeID
	Manager core.Manager
	Object  string
}

// Arrivals records the deliveries to an operator. The zero value is ready to use.
type Arrivals struct {
	mu      sync.Mutex
	counts  map[Arrival]int
	resyncs map[Arrival]time.Time // the last ones, without object
}

// Delivered notes a delivery that was enqueued. It can be the hook of a source.
func (a *Arrivals) Delivered(h hook.Handled) {
	if h.Err == nil && h.Requests == 1 {
		d := h.Delivery
		a.Note(Arrival{d.Runtime, d.Manager, d.Event.Watched.Name}, d.Event.Resync)
	}
}

// Note notes an arrival. A resync counts as an arrival of all objects.
func (a *Arrivals) Note(arrival Arrival, resync bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.counts == nil {
		a.counts = map[Arrival]int{}
		a.resyncs = map[Arrival]time.Time{}
	}
	if resync {
		arrival.Object = ""
		a.resyncs[arrival] = time.Now()
		return
	}

	a.counts[arrival]++
}

// Count returns how often an object arrived.
func (a *Arrivals) Count(arrival Arrival) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts[arrival]
}

// Total returns how many changes arrived.
func (a *Arrivals) Total() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()

	for _, count := range a.counts {
		n += count
	}
	return n
}

// Of returns the arrivals of an object, from any runtime and for any manager.
func (a *Arrivals) Of(object string) (all []Arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()

	for arrival := range a.counts {
		if arrival.Object == object {
			all = append(all, arrival)
		}
	}
	return all
}

func (a *Arrivals) lastResync(of Arrival) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()

	of.Object = ""
	return a.resyncs[of]
}

// Flow is a stream of writes in one runtime, each of another object. It checks that no write is
// lost: after the commit of each write, an event or, in a [Window], a resync must arrive.
type Flow struct {
	t        testing.TB
	arrivals *Arrivals
	of       Arrival // without object
	stop     func()
	// failedOpen returns how many writes the API server has admitted without an answer of the agent
	// since [Flow.ExcuseStalls]. Nil means that no API server is asked.
	failedOpen func() int

	mu          sync.Mutex
	begun, last time.Time   // of the first interval, and of the last write
	commits     []time.Time // zero for a write in progress
	skipped     int         // intervals without a write, because mostWrites were under way
	slowest     time.Duration
	failed      []error
}

// longestWait is more than the longest wait of an agent between two attempts.
const longestWait = time.Minute

// stall is a time that a write takes only on a machine that stalls.
const stall = time.Second

// Window contains the writes from one number to before another, for which a resync may replace an
// event.
type Window struct{ From, To int }

// mostWrites bounds the writes of a flow that are under way. Without a bound, the writes of a
// machine that is too slow for the rate pile up, and make the machine slower still. A machine that
// keeps the rate has at most one write under way.
const mostWrites = 4

// StartFlow writes with create in that interval. A slow write does not delay the next one, unless
// [mostWrites] are under way. Only arrivals for one manager count.
func StartFlow(
	t testing.TB, arrivals *Arrivals, runtime core.RuntimeID, manager core.Manager, every time.Duration,
	create func(ctx context.Context, object string) error,
) *Flow {
	t.Helper()

	f := &Flow{t: t, arrivals: arrivals, of: Arrival{Runtime: runtime, Manager: manager}, begun: time.Now()}
	f.stop = Run(t, "writes in "+string(runtime), func(ctx context.Context) error {
		var writes sync.WaitGroup
		defer writes.Wait()

		slots := make(chan struct{}, mostWrites)
		for due := f.begun.Add(every); ; due = due.Add(every) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Until(due)):
			}

			select {
			case slots <- struct{}{}:
				n := f.begin()
				writes.Go(func() {
					defer func() { <-slots }()
					f.write(context.WithoutCancel(ctx), n, create)
				})
			default:
				f.skip() // The next write is due later.
			}
		}
	})

	return f
}

// begin returns the number of the next write.
func (f *Flow) begin() int {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.commits, f.last = append(f.commits, time.Time{}), time.Now()
	return len(f.commits) - 1
}

func (f *Flow) skip() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.skipped++
}

func (f *Flow) write(ctx context.Context, n int, create func(ctx context.Context, object string) error) {
	begun := time.Now()
	err := create(ctx, flowObject(n))
	f.mu.Lock()
	defer f.mu.Unlock()

	if err != nil {
		f.failed = append(f.failed, err)
	}

	f.commits[n] = time.Now()
	f.slowest = max(f.slowest, time.Since(begun))
}

func flowObject(n int) string { return fmt.Sprintf("traffic-%d", n) }

// Count returns the number of writes so far, with those in progress.
func (f *Flow) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.commits)
}

// Committed returns the number of the first write in progress, Count without one.
func (f *Flow) Committed() int {
	f.mu.Lock()
	defer f.mu.Unlock()

	if n := slices.IndexFunc(f.commits, time.Time.IsZero); n >= 0 {
		return n
	}
	return len(f.commits)
}

// Rates returns the writes in a second, and the writes that were due in a second. The first number
// is lower if the machine was too slow for the interval.
func (f *Flow) Rates() (written, due float64) {
	f.mu.Lock()
	defer f.mu.Unlock()

	seconds := f.last.Sub(f.begun).Seconds()
	return float64(len(f.commits)) / seconds, float64(len(f.commits)+f.skipped) / seconds
}

// lost returns the numbers of the writes without arrival, and the number of those that a resync replaces.
func (f *Flow) lost(windows []Window) (lost []int, resyncs int) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for n, committed := range f.commits {
		arrival := f.of
		arrival.Object = flowObject(n)
		excused := slices.ContainsFunc(windows, func(w Window) bool { return w.From <= n && n < w.To })

		switch {
		case f.arrivals.Count(arrival) > 0:
		case excused && f.arrivals.lastResync(f.of).After(committed):
			resyncs++
		default:
			lost = append(lost, n)
		}
	}

	return lost, resyncs
}

// ExcuseStalls excuses writes from now on that this API server, by its own metric, admits without an
// answer of the agent, and writes that a resync replaces. On a machine that stalls for seconds a call
// of the webhook ends by its timeout, or no pod is ready. Without a call of ExcuseStalls, each write
// outside of a window needs an event.
func (f *Flow) ExcuseStalls(plane *apiserver.ControlPlane) {
	f.t.Helper()
	before := FailedOpen(f.t, plane)
	f.failedOpen = func() int { return FailedOpen(f.t, plane) - before }
}

// excused returns the writes of these that need no event outside of a window, on a machine that stalls.
// The API server may have admitted them without an answer of the agent: its metric counts such writes
// without their names. Or the API server ended the connection before it had the answer: the agent
// notices that, and its resync after the commit replaces the event. At most one write of 20 is
// excused, because a product that is seldom called is broken, and none on a machine that did not stall.
func (f *Flow) excused(lost []int, failedOpen int) (all []int) {
	if f.failedOpen == nil {
		return nil
	}
	if failedOpen == 0 && f.slowest < stall {
		return nil
	}

	for _, n := range lost {
		replaced := f.arrivals.lastResync(f.of).After(f.commits[n])
		if !replaced {
			failedOpen--
		}
		if replaced || failedOpen >= 0 {
			all = append(all, n)
		}
	}

	return all[:min(len(all), len(f.commits)/20)]
}

// Settle stops the writes and waits until each has arrived. No write may have failed.
func (f *Flow) Settle(within time.Duration, windows ...Window) {
	f.t.Helper()

	f.stop()
	failedOpen := 0
	if f.failedOpen != nil {
		failedOpen = f.failedOpen()
	}

	lost, resyncs := f.lost(windows)
	changed := time.Now()
	for end := changed.Add(within); len(lost) > 0 && time.Now().Before(end); {
		if time.Since(changed) > longestWait && len(f.excused(lost, failedOpen)) == len(lost) {
			break // None of these is on its way any more.
		}

		<-time.After(10 * time.Millisecond)
		before := len(lost)
		lost, resyncs = f.lost(windows)
		if len(lost) != before {
			changed = time.Now()
		}
	}

	excused := f.excused(lost, failedOpen)
	if len(excused) > 0 {
		f.t.Logf("%s: the machine stalled, and the writes %s have no event. The API server admitted %d without an answer",
			f.of.Runtime, f.when(excused), failedOpen)
	}

	if len(lost) > len(excused) {
		f.t.Errorf("%s: of the writes %s nothing has arrived, with the windows %v; the API server admitted %d without an answer",
			f.of.Runtime, f.when(lost), windows, failedOpen)
	}

	if len(f.failed) > 0 {
		f.t.Errorf("%s: %d of %d writes failed, the first with %v", f.of.Runtime, len(f.failed), len(f.commits), f.failed[0])
	}

	written, _ := f.Rates()
	f.t.Logf("%s: %d writes, %.1f a second, %d of which a resync replaces; the slowest took %v",
		f.of.Runtime, len(f.commits), written, resyncs, f.slowest.Round(time.Millisecond))
}

// when names writes with the times of their commits, to compare these with the steps of a test.
func (f *Flow) when(writes []int) string {
	f.mu.Lock()
	defer f.mu.Unlock()

	var all []string
	for _, n := range writes {
		all = append(all, fmt.Sprintf("%d (%s)", n, f.commits[n].Format(time.TimeOnly)))
	}

	return strings.Join(all, " ")
}
