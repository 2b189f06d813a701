package migration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

// record is what reached the operator, of today or ours.
type record struct {
	mu      sync.Mutex
	arrived map[string]int       // by runtime ID and object
	resyncs map[string]time.Time // the last one, by runtime ID
}

func newRecord() *record { return &record{arrived: map[string]int{}, resyncs: map[string]time.Time{}} }

func (r *record) note(id, object string, resync bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if resync {
		r.resyncs[id] = time.Now()

		return
	}

	r.arrived[id+"/"+object]++
}

// todays takes what arrives at an operator of today, for which a resync is an ordinary event.
func (r *record) todays(e today.Event) { r.note(e.Runtime, e.Watched.Name, e.Watched.Name == "resync") }

// delivered is called after each delivery that was enqueued, or refused.
func (r *record) delivered(d core.Delivery, requests int, err error) {
	if err == nil && requests == 1 {
		r.note(string(d.Runtime), d.Event.Watched.Name, d.Event.Resync)
	}
}

// looks returns how often an object arrived.
func (r *record) looks(id, object string) int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.arrived[id+"/"+object]
}

func (r *record) lastResync(id string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.resyncs[id]
}

// traffic is a stream of writes in one runtime, each of another object.
type traffic struct {
	m    *member
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	commits []time.Time
	slowest time.Duration
	failed  []error
}

// every is the time between two writes in a runtime: three runtimes have 20 a second.
const every = 150 * time.Millisecond

func (m *member) startTraffic(t *testing.T) *traffic {
	t.Helper()

	tr := &traffic{m: m, stop: make(chan struct{}), done: make(chan struct{})}

	go func() {
		defer close(tr.done)

		for tick := time.NewTicker(every); ; {
			select {
			case <-tr.stop:
				tick.Stop()

				return
			case <-tick.C:
				tr.write(t)
			}
		}
	}()

	t.Cleanup(tr.end)

	return tr
}

func (tr *traffic) end() {
	select {
	case <-tr.stop:
	default:
		close(tr.stop)
	}

	<-tr.done
}

func trafficName(n int) string { return fmt.Sprintf("traffic-%d", n) }

func (tr *traffic) write(t *testing.T) {
	t.Helper()

	object := today.WatchedKyma(tr.m.kyma, trafficName(tr.count()))
	begun := time.Now()
	err := tr.m.Client.Create(t.Context(), object)

	tr.mu.Lock()
	defer tr.mu.Unlock()

	if err != nil && t.Context().Err() == nil {
		tr.failed = append(tr.failed, err)
	}

	tr.commits = append(tr.commits, time.Now())
	tr.slowest = max(tr.slowest, time.Since(begun))
}

func (tr *traffic) count() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()

	return len(tr.commits)
}

// lost returns the writes for which neither an event nor a later resync arrived.
func (tr *traffic) lost(r *record) (lost []string, resyncs int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()

	for n, committed := range tr.commits {
		switch {
		case r.looks(tr.m.id, trafficName(n)) > 0:
		case r.lastResync(tr.m.id).After(committed):
			resyncs++
		default:
			lost = append(lost, trafficName(n))
		}
	}

	return lost, resyncs
}

// settle stops the traffic and waits until everything has arrived. It reports the writes that a
// resync stands in for.
func (tr *traffic) settle(t *testing.T, r *record) {
	t.Helper()
	tr.end()

	var (
		lost    []string
		resyncs int
	)

	rig.Eventually(t, patience, "every change of "+tr.m.kyma+" is looked at", func() bool {
		lost, resyncs = tr.lost(r)

		return len(lost) == 0
	})

	if len(tr.failed) > 0 {
		t.Errorf("%s: %d of %d writes failed, the first with %v", tr.m.kyma, len(tr.failed), len(tr.commits), tr.failed[0])
	}

	t.Logf("%s: %d writes, %d failed, %d lost, %d seen by a resync only; the slowest took %v",
		tr.m.kyma, len(tr.commits), len(tr.failed), len(lost), resyncs, tr.slowest.Round(time.Millisecond))
}
