package kit

import (
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// Oracle knows when each runtime changed, and when it was reconciled (see [record.Now]). It is safe
// for concurrent use.
type Oracle struct {
	// Latency is from a change to the start of the first reconcile after it.
	Latency Samples

	mu sync.Mutex
	// unseen has the times of the changes of each runtime that no reconcile began after.
	unseen         [][]time.Duration
	changes, looks int64
}

// NewOracle returns an oracle of n runtimes.
func NewOracle(n int) *Oracle { return &Oracle{unseen: make([][]time.Duration, n)} }

// Changed notes a change of a runtime at this moment.
func (o *Oracle) Changed(runtime int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changes++
	o.unseen[runtime] = append(o.unseen[runtime], record.Now())
}

// Reconciled notes a reconcile of a runtime that began at a time.
func (o *Oracle) Reconciled(runtime int, began time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	seen, all := 0, o.unseen[runtime]
	for seen < len(all) && all[seen] <= began {
		o.Latency.Add(began - all[seen])
		seen++
	}
	o.unseen[runtime] = all[:copy(all, all[seen:])]
}

// Missing returns the number of runtimes that are not reconciled after their last change until a
// time.
func (o *Oracle) Missing(until time.Duration) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, changes := range o.unseen {
		if len(changes) > 0 && changes[0] <= until {
			n++
		}
	}
	return n
}

// Counts returns the numbers of changes and reconciles so far.
func (o *Oracle) Counts() (changes, looks int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changes, o.looks
}

// Samples are durations. They are safe for concurrent use.
type Samples struct {
	mu  sync.Mutex
	all []time.Duration
}

// Add adds durations.
func (s *Samples) Add(d ...time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, d...)
}

// Take returns the durations so far, and removes them.
func (s *Samples) Take() Delays {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return Sorted(all)
}

// Delays are durations in their order.
type Delays []time.Duration

// Sorted sorts durations.
func Sorted(all []time.Duration) Delays {
	slices.Sort(all)
	return all
}

// At returns a percentile in microseconds, 0 without durations.
func (d Delays) At(percent int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[len(d)*percent/100].Round(time.Microsecond)
}
