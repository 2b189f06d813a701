package admission

import (
	"context"
	"sync"
	"time"
)

// room is a number of bytes that many share. The memory of a webhook is bounded by it however many reviews come at once.
type room struct {
	mu    sync.Mutex
	free  int64
	freed chan struct{} // closed when there is more; nil while nobody waits for that
}

// take takes n bytes, and waits for them if need be, but no longer than patience. It reports whether it got them.
func (r *room) take(ctx context.Context, n int64, patience time.Duration) bool {
	freed := r.tryTake(n)
	if freed == nil {
		return true
	}

	timer := time.NewTimer(patience)
	defer timer.Stop()

	for freed != nil {
		select {
		case <-freed:
			freed = r.tryTake(n)
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}

	return true
}

// tryTake returns nil if it took n bytes, or else what tells that there are more.
func (r *room) tryTake(n int64) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.free >= n {
		r.free -= n

		return nil
	}

	if r.freed == nil {
		r.freed = make(chan struct{})
	}

	return r.freed
}

// giveBack ends the wait of whoever fits now.
func (r *room) giveBack(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.free += n

	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}
