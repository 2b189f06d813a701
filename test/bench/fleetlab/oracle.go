package main

import "sync"

// oracle knows when each runtime changed, and when it was reconciled. It is safe for concurrent
// use.
type oracle struct {
	mu sync.Mutex
	// unseen has the times of the changes of each runtime that no reconcile began after.
	unseen  [][]instant
	changes int64
	looks   int64
	// latency is from a change to the start of the first reconcile after it.
	latency samples
}

func newOracle(n int) *oracle { return &oracle{unseen: make([][]instant, n)} }

// changed notes a change of a runtime at this moment.
func (o *oracle) changed(runtime int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changes++
	o.unseen[runtime] = append(o.unseen[runtime], now())
}

// reconciled notes a reconcile of a runtime that began at a time.
func (o *oracle) reconciled(runtime int, began instant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	if runtime >= len(o.unseen) {
		return
	}
	seen, all := 0, o.unseen[runtime]
	for seen < len(all) && all[seen] <= began {
		o.latency.add(began.sub(all[seen]))
		seen++
	}
	o.unseen[runtime] = all[:copy(all, all[seen:])]
}

// missing returns the number of runtimes that are not reconciled after their last change until a
// time.
func (o *oracle) missing(until instant) (n int) {
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
