package controllerruntime

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// mostBegun bounds the requests that are followed after their reconcile has begun. Each takes
	// about 100 bytes.
	mostBegun = 1 << 12
	// begunFor is longer than a reconcile takes that waits for a runtime in vain.
	begunFor = 2 * time.Minute
	// longestBackoff is the longest backoff of the default rate limiter of a controller.
	longestBackoff = 1000 * time.Second
)

// begun are requests with a low priority that a reconcile has begun with. A controller tries a
// request that fails again with the priority that it had, and the queue does not age. The lock of
// [raises] guards all fields.
type begun[request comparable] struct {
	// requests are in the order of their times.
	requests []*begunRequest[request]
	// isChecking means that a timer of the next check runs.
	isChecking bool
}

// begunRequest is a request of a reconcile that has begun, and may fail once more. It does not
// change.
type begunRequest[request comparable] struct {
	request request
	at      time.Time
	// failures is the number of its failures before. A terminal error adds none.
	failures int
	// of and isPaced come from its raise.
	of      core.RuntimeID
	isPaced bool
}

// makeRoom removes and returns the oldest request if there is no room for another one, and
// otherwise returns nil.
func (b *begun[request]) makeRoom() (oldest *begunRequest[request]) {
	if len(b.requests) < mostBegun {
		return nil
	}

	oldest = b.requests[0]
	b.requests = b.requests[1:]
	return oldest
}

func (b *begun[request]) addRequest(r *begunRequest[request]) { b.requests = append(b.requests, r) }

// takeAll removes and returns all requests.
func (b *begun[request]) takeAll() []*begunRequest[request] {
	all := b.requests
	b.requests = nil
	return all
}
