package remote

import (
	"context"
	"errors"
	"sync"
)

const (
	// mostWeight bounds the answers of one reconcile. Those of about 300 Watchers fit, as three
	// answers have the whole webhook configuration.
	mostWeight = 32 << 20
	// smallWeight is the part of mostWeight that needs no slot of the process.
	smallWeight = 4 << 20
	// answerWeight bounds one answer outside a reconcile, as of an importer that uses the client.
	answerWeight = 16 << 20
	// largeSlots is the number of concurrent reconciles of a process that exceed smallWeight.
	largeSlots = 2

	// The weight of an answer is about the memory that takes to read and to decode it. An invalid
	// byte becomes a character of three.
	byteWeight, otherWeight, valueWeight = 4, 16, 256 // ASCII, beyond ASCII, a value beside its text
)

// errLargeAnswer means that answers of a runtime exceed a bound.
var errLargeAnswer = errors.New("answer is larger than allowed")

// Budgets bound the memory for answers of all runtimes in a process.
type Budgets struct{ large chan struct{} }

// NewBudgets returns budgets for a process.
func NewBudgets() *Budgets { return &Budgets{make(chan struct{}, largeSlots)} }

// Begin returns a context for the requests of one reconcile. Their answers share one budget. A
// reconcile with large answers waits while two others have large answers. Call end after the
// reconcile.
func (b *Budgets) Begin(ctx context.Context) (reconcile context.Context, end func()) {
	own := &budget{left: mostWeight, free: smallWeight, large: b.large}
	return context.WithValue(ctx, budgetKey{}, own), own.end
}

type budgetKey struct{}

// budget is the weight that further answers of one reconcile may have. It may be used concurrently.
type budget struct {
	mu         sync.Mutex
	left, free int64
	large      chan struct{} // nil: needs no slot
	holds      bool          // a slot
	begun      sync.Once     // by the first request
}

// budgetOf returns the budget of a reconcile, or one for a single answer.
func budgetOf(ctx context.Context) *budget {
	if own, ok := ctx.Value(budgetKey{}).(*budget); ok {
		return own
	}
	return &budget{left: answerWeight, free: answerWeight}
}

// spend waits for a slot if the budget needs one. Concurrent requests of one reconcile wait for the
// same slot.
func (b *budget) spend(ctx context.Context, weight int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left, b.free = b.left-weight, b.free-weight
	if b.left < 0 {
		return errLargeAnswer
	}
	if b.free >= 0 || b.holds || b.large == nil {
		return nil
	}
	select {
	case b.large <- struct{}{}:
		b.holds = true
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *budget) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds {
		<-b.large
	}
	b.holds, b.left = false, 0
}
