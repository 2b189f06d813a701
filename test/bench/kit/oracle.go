package fleetlab

import (
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// oracle knows when each runtime changed, and when it was reconciled (see [record.Now]). It is safe
// for concurrent use.
type oracle struct {
	// latency is from a change to the start of the first reconcile after it.
	latency kit.Samples

	mu sync.Mutex
	// unseen has the times of the changes of each runtime that no reconcile began after.
	unseen         [][]time.Duration
	changes, looks int64
}

func newOracle(n int) *oracle { return &oracle{unseen: make([][]time.Duration, n)} }

// changed notes a change of a runtime at this moment.
func (o *oracle) changed(runtime int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changes++
	o.unseen[runtime] = append(o.unseen[runtime], record.Now())
}

// reconciled notes a reconcile of a runtime that began at a time.
func (o *oracle) reconciled(runtime int, began time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	seen, all := 0, o.unseen[runtime]
	for seen < len(all) && all[seen] <= began {
		o.latency.Add(began - all[seen])
		seen++
	}
	o.unseen[runtime] = all[:copy(all, all[seen:])]
}

// missing returns the number of runtimes that are not reconciled after their last change until a
// time.
func (o *oracle) missing(until time.Duration) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, changes := range o.unseen {
		if len(changes) > 0 && changes[0] <= until {
			n++
		}
	}
	return n
}

// counts returns the numbers of changes and reconciles so far.
func (o *oracle) counts() (changes, looks int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changes, o.looks
}

func TestOracle(t *testing.T) {
	t.Parallel()
	o := newOracle(2)
	before := record.Now()
	o.changed(0)
	o.reconciled(0, before)
	if n := o.missing(record.Now()); n != 1 {
		t.Errorf("%d runtimes are missing after a reconcile that began before the change, want 1", n)
	}
	o.reconciled(1, record.Now())
	o.reconciled(0, record.Now())
	if n := o.missing(record.Now()); n != 0 {
		t.Errorf("%d runtimes are missing after their reconciles, want 0", n)
	}
	if taken := o.latency.Take(); len(taken) != 1 {
		t.Errorf("%d latencies, want 1: that of the change", len(taken))
	}
}
