package fleet

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func (f *Fleet) reviewEverySecond(ctx context.Context) {
	ticker := time.NewTicker(reviewInterval)
	defer ticker.Stop()

	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			f.reviewAll()
		}
	}
}

const reviewInterval = time.Second

// slice bounds the records that are reviewed under one lock: requests of runtimes wait for it.
const slice = 500

// reviewAll reviews all runtimes, and calls the observers.
func (f *Fleet) reviewAll() {
	ready := f.readyManagers()
	f.noteLeading(ready)
	for _, manager := range f.adoptExpected(ready, time.Now()) {
		f.warnUnserved(manager)
	}

	for some := range slices.Chunk(f.keys(), slice) {
		f.reviewSome(some)
	}

	f.notifyObservers()
}

func (f *Fleet) keys() []key {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.AppendSeq(make([]key, 0, len(f.records)), maps.Keys(f.records))
}

// reviewSome reviews records under one lock. A record may have been removed since its key was read.
func (f *Fleet) reviewSome(keys []key) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, k := range keys {
		r := f.records[k]
		if r == nil {
			continue
		}

		f.reviewRecord(r, now)
		if r.isForgettable(f.opts.ForgetAfter, now) {
			f.removeRecord(k)
		}
	}
}

// adoptExpected makes records of the expected runtimes of managers with a ready handler. It returns
// each manager that is not served a minute later, as its name may be wrong.
func (f *Fleet) adoptExpected(ready map[core.Manager]bool, now time.Time) (unserved []core.Manager) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for k, since := range f.expected {
		switch {
		case ready[k.manager]:
			f.ensureRecord(k, now)
		case !f.settled[k.manager] && now.Sub(since) > defaultPatience():
			f.settled[k.manager] = true
			unserved = append(unserved, k.manager)
		}
	}
	return unserved
}

// readyManagers asks each handler. Ready may block, so it is called without the lock.
func (f *Fleet) readyManagers() map[core.Manager]bool {
	f.mu.Lock()
	handlers := maps.Clone(f.served)
	f.mu.Unlock()

	ready := make(map[core.Manager]bool)
	for manager, handler := range handlers {
		ready[manager] = isReady(handler)
	}
	return ready
}

func isReady(handler core.Handler) bool {
	r, asks := handler.(core.Readier)
	return !asks || r.Ready() == nil
}

// noteLeading keeps the time since which a handler is ready.
func (f *Fleet) noteLeading(ready map[core.Manager]bool) {
	leads := slices.Contains(slices.Collect(maps.Values(ready)), true)

	f.mu.Lock()
	defer f.mu.Unlock()

	switch {
	case !leads:
		f.leads = time.Time{}
	case f.leads.IsZero():
		f.leads = time.Now()
	}
}
