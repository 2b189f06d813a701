package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// String is for names that differ in each run.
func (i instant) String() string { return strconv.FormatInt(int64(i), 10) }

// point has the values of the recorder at one moment.
type point struct {
	at         time.Duration
	fresh      int
	known      int
	resident   int64
	processor  time.Duration
	handshakes int64
	changes    int64
	looks      int64
}

// recorder measures a scenario.
type recorder struct {
	w     *world
	began instant
	// ended is the end of the fault, led the time from which the operator leads, 0 if it always did.
	ended, led instant
	notes      []string

	before totals
	points []point
	// used has the usage of each replica. It outlives the process.
	used map[*replica]usage

	end     context.CancelFunc
	sampler sync.WaitGroup
}

// totals are the counters of a world.
type totals struct {
	changes, looks              int64
	dials, failures, agentLines int64
	operatorLines, handshakes   int64
	processor, lab              time.Duration
	resyncs                     map[string]int64
}

// record begins a measurement. The caller must call stop.
func (w *world) record() *recorder {
	ctx, end := context.WithCancel(context.Background())
	r := &recorder{w: w, began: now(), end: end, used: map[*replica]usage{}}
	w.shared.acks.take()
	w.oracle.latency.take()
	r.sample()
	r.before = r.totals()
	r.sampler.Go(func() {
		for sleep(ctx, w.every) == nil {
			r.sample()
		}
	})
	return r
}

// stop may be called twice.
func (r *recorder) stop() {
	r.end()
	r.sampler.Wait()
}

// faultEnds notes the moment from which the recovery counts.
func (r *recorder) faultEnds() { r.ended = now() }

func (r *recorder) note(format string, values ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, values...))
}

func (r *recorder) sample() {
	for _, replica := range r.w.all() {
		if used, err := replica.usage(); err == nil && used.resident > 0 {
			r.used[replica] = used
		}
	}
	all := r.totals()
	operator := r.w.operator()
	r.points = append(r.points, point{
		at: r.began.since(), fresh: r.w.fresh(), known: r.w.known(), resident: r.used[operator].resident,
		processor: all.processor, handshakes: all.handshakes, changes: all.changes, looks: all.looks,
	})
}

func (r *recorder) totals() totals {
	t := totals{resyncs: map[string]int64{}}
	t.changes, t.looks = r.w.oracle.counts()
	shared := r.w.shared
	t.dials, t.failures, t.agentLines = shared.dials.Load(), shared.failures.Load(), shared.lines.Load()
	if own, err := usageOf(os.Getpid()); err == nil {
		t.lab = own.processor
	}
	for _, replica := range r.w.all() {
		last := replica.last.Load()
		t.operatorLines += replica.lines.Load()
		t.handshakes += last.Handshakes
		t.processor += r.used[replica].processor
		for cause, n := range last.Resyncs {
			t.resyncs[cause] += n
		}
	}
	return t
}

// result is the measurement of a scenario.
type result struct {
	n        int
	variant  string
	scenario string
	took     time.Duration
	load     string
	notes    []string

	// resident is the memory of the operator for each runtime in bytes, above that without
	// connections.
	resident int64
	// heap and stacks are those of the operator's last report, in bytes.
	heap, stacks uint64
	// processor is the time of the operator's processors for each runtime and minute.
	processor time.Duration
	// operator and lab are the times of the processors of both ends.
	operator, lab time.Duration
	// peak is the highest number of handshakes in a second.
	peak       float64
	handshakes int64
	ack, look  quantiles
	// known and fresh are the times from the end of the fault until all runtimes were.
	known, fresh, led time.Duration
	resyncs           map[string]int64
	changes, looks    int64
	missed            int
	failures          int64
	operatorLines     int64
	agentLines        int64
	points            []point
}

type quantiles struct{ p50, p99 time.Duration }

func quantilesOf(all sorted) quantiles { return quantiles{all.quantile(0.5), all.quantile(0.99)} }

// result sums up the measurement after stop.
func (r *recorder) result(name string) *result {
	r.sample()
	after, w := r.totals(), r.w
	took := r.began.since()
	last := w.operator().last.Load()
	all := &result{
		n: w.n, variant: w.variant.Name, scenario: name, took: took, load: load(), notes: r.notes,
		resident: (r.resident() - w.empty) / int64(w.n), heap: last.Heap, stacks: last.Stack,
		processor: perMinute(after.processor-r.before.processor, took) / time.Duration(w.n),
		operator:  after.processor - r.before.processor, lab: after.lab - r.before.lab,
		handshakes: after.handshakes - r.before.handshakes, peak: r.peak(),
		ack: quantilesOf(w.shared.acks.take()), look: quantilesOf(w.oracle.latency.take()),
		known: r.until(func(p point) int { return p.known }), fresh: r.until(func(p point) int { return p.fresh }),
		resyncs: r.before.resyncsUntil(after),
		changes: after.changes - r.before.changes, looks: after.looks - r.before.looks,
		failures: after.failures - r.before.failures, agentLines: after.agentLines - r.before.agentLines,
		operatorLines: after.operatorLines - r.before.operatorLines, points: r.points,
	}
	if r.led > 0 {
		all.led = r.led.sub(r.ended)
	}
	return all
}

func perMinute(used, took time.Duration) time.Duration {
	return time.Duration(used.Seconds() / took.Minutes() * float64(time.Second))
}

// resident returns the mean memory in the second half of the scenario.
func (r *recorder) resident() (mean int64) {
	half := r.points[len(r.points)/2:]
	for _, p := range half {
		mean += p.resident / int64(len(half))
	}
	return mean
}

// peak returns the highest rate of handshakes between two points.
func (r *recorder) peak() (peak float64) {
	for i := 1; i < len(r.points); i++ {
		a, b := r.points[i-1], r.points[i]
		peak = max(peak, float64(b.handshakes-a.handshakes)/(b.at-a.at).Seconds())
	}
	return peak
}

// until returns the time from the end of the fault to the last point at which a number was not that
// of all runtimes.
func (r *recorder) until(number func(point) int) time.Duration {
	var reached time.Duration
	for _, p := range r.points {
		if number(p) < r.w.n {
			reached = 0
		} else if reached == 0 {
			reached = p.at
		}
	}
	return max(reached-r.ended.sub(r.began), 0)
}

// resyncsUntil returns the resyncs between two moments by cause. An operator that was killed
// between has its last report.
func (t totals) resyncsUntil(after totals) map[string]int64 {
	all := map[string]int64{}
	for cause := range maps.Keys(after.resyncs) {
		if n := after.resyncs[cause] - t.resyncs[cause]; n > 0 {
			all[cause] = n
		}
	}
	return all
}

// load returns the load average of a minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	minute, _, _ := strings.Cut(string(text), " ")
	return minute
}
