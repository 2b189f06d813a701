package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// mostWeight bounds the answers of one reconcile.
	mostWeight = 32 << 20
	// smallWeight is the part of mostWeight that takes no room from others.
	smallWeight = 4 << 20
	// answerWeight bounds one answer outside a reconcile, as of a program without [Budgets].
	answerWeight = 16 << 20
	// roomWeight is the room of a process for answers beyond smallWeight.
	roomWeight = 2 * mostWeight
	// lease is how long a reconcile may keep its room while others wait for it. A reconcile of the
	// slow lane may not keep it at all.
	lease = 2 * time.Second
)

// Budgets bound the memory for the answers of all clusters in a process. The zero value is not
// usable: call [NewBudgets]. It is safe for concurrent use.
//
// The first 4 MiB of the answers of a reconcile are free. Beyond these, answers share a pool of 64
// MiB until their reconcile ends. An answer takes its part after it has arrived, so an answer that
// is still on its way takes nothing. If the pool is full, the reconcile of the cluster that holds
// the most is cancelled: at first only in the slow lane, and after 2 s in any lane. Therefore no
// cluster can keep the pool from other clusters.
type Budgets struct {
	mu      sync.Mutex
	used    int64             // of roomWeight
	holders map[string]holder // by the name of the cluster
	waiting []*waiter         // in the order of their arrival
}

// holder contains the reconciles of one cluster that have a part of the room.
type holder map[*budget]struct{}

// heldWeight is the room that a cluster has.
func (h holder) heldWeight() (weight int64) {
	for b := range h {
		weight += b.held
	}
	return weight
}

// waiter is an answer that waits for room.
type waiter struct {
	budget *budget
	weight int64
	ready  chan struct{} // closed when it has its room
}

// NewBudgets returns budgets for a process.
func NewBudgets() *Budgets { return &Budgets{holders: make(map[string]holder)} }

// Use describes a reconcile for [Budgets.Begin].
type Use struct {
	// Cluster is the name of the cluster. The reconciles of one cluster count together.
	Cluster string
	// Slow means that the reconcile may be cancelled immediately to free memory for the reconciles
	// of clusters that are not slow. Set it for example after a failure.
	Slow bool
}

var errDisplaced = errors.New(
	"the memory for large answers is needed by other clusters: the reconcile is retried later")

// Begin returns a context for the requests of one reconcile. Their answers share one budget of 32
// MiB. An answer is charged with about the memory that decoding it takes. Call end after the
// reconcile. If ctx already has a budget, Begin returns ctx, and end does nothing.
func (b *Budgets) Begin(ctx context.Context, use Use) (reconcile context.Context, end func()) {
	if _, begun := ctx.Value(budgetKey{}).(*budget); begun {
		return ctx, func() {}
	}
	own := &budget{room: b, use: use, left: mostWeight, free: smallWeight}
	ctx, own.cancel = context.WithCancelCause(ctx)
	return context.WithValue(ctx, budgetKey{}, own), own.endBudget
}

// Allow lets the requests of ctx use weight more bytes without drawing on the memory that all
// budgets share. An example is the weight of a large object that the operator itself has
// written, times the number of answers with that object. The whole budget grows only if it would be
// smaller than that part. Without a budget in ctx, Allow does nothing.
func Allow(ctx context.Context, weight int64) {
	own, ok := ctx.Value(budgetKey{}).(*budget)
	if !ok {
		return
	}
	own.mu.Lock()
	defer own.mu.Unlock()

	own.free += weight
	own.left = max(own.left, own.free)
}

// Weigh returns the weight of an object in an answer, without its managed fields. The weight is
// approximately the memory, in bytes, that decoding its JSON takes.
func Weigh(object any) int64 {
	text, err := json.Marshal(object)
	if err != nil {
		return 0 // No API server has such an object.
	}
	return (&scale{}).weighPart(text)
}

type budgetKey struct{}

// budget is the budget of one reconcile, or of one answer. mu guards left and free. The fields that
// the room guards with its lock come last. All others never change.
type budget struct {
	room   *Budgets // nil: needs none
	use    Use
	cancel context.CancelCauseFunc
	begun  sync.Once // by the first request

	mu         sync.Mutex
	left, free int64

	held      int64     // of the room
	since     time.Time // it holds some
	displaced bool      // and ends soon
	ended     bool
}

// budgetOf returns the budget of a reconcile, or one for a single answer.
func budgetOf(ctx context.Context) *budget {
	if own, ok := ctx.Value(budgetKey{}).(*budget); ok {
		return own
	}
	return &budget{left: answerWeight, free: answerWeight}
}

// reserveWeight takes a weight from the budget. It does not wait.
func (b *budget) reserveWeight(weight int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.left -= weight
	if b.left < 0 {
		return ErrLargeAnswer
	}
	return nil
}

// awaitRoom waits until the room has the part of a weight that is not free.
func (b *budget) awaitRoom(ctx context.Context, weight int64) error {
	b.mu.Lock()
	taken := max(-b.free, 0)
	b.free -= weight
	needs := max(-b.free, 0) - taken
	b.mu.Unlock()

	if needs == 0 || b.room == nil {
		return nil
	}
	return b.room.takeRoom(ctx, &waiter{budget: b, weight: needs, ready: make(chan struct{})})
}

// endBudget returns the room that the budget holds.
func (b *budget) endBudget() {
	b.mu.Lock()
	b.left = math.MinInt64 / 2 // A late request of the reconcile fails.
	b.mu.Unlock()

	b.room.releaseRoom(b)
	b.cancel(nil)
}

// takeRoom waits for room. A waiter makes room when it arrives, and again when holders have had
// their lease.
func (b *Budgets) takeRoom(ctx context.Context, w *waiter) error {
	b.mu.Lock()
	b.waiting = append(b.waiting, w)
	b.grantRoom()
	b.displaceFor(w)
	b.mu.Unlock()

	again := time.NewTicker(lease / 2)
	defer again.Stop()
	for {
		select {
		case <-w.ready:
			return nil
		case <-again.C:
			b.mu.Lock()
			b.displaceFor(w)
			b.mu.Unlock()
		case <-ctx.Done():
			b.leaveQueue(w)
			return context.Cause(ctx)
		}
	}
}

// leaveQueue removes a waiter that gives up. Others may fit into the room that it waited for.
func (b *Budgets) leaveQueue(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.waiting = slices.DeleteFunc(b.waiting, func(other *waiter) bool { return other == w })
	b.grantRoom()
}

// grantRoom gives room to waiters, as long as there is enough for the first of them. Waiters of the
// slow lane come last. The cluster that holds the least comes first.
func (b *Budgets) grantRoom() {
	for len(b.waiting) > 0 {
		first := slices.MinFunc(b.waiting, func(x, y *waiter) int {
			return cmp.Or(compareBools(x.budget.use.Slow, y.budget.use.Slow),
				cmp.Compare(b.holders[x.budget.use.Cluster].heldWeight(), b.holders[y.budget.use.Cluster].heldWeight()))
		})
		if b.used+first.weight > roomWeight {
			return
		}

		b.waiting = slices.DeleteFunc(b.waiting, func(w *waiter) bool { return w == first })
		if !first.budget.ended {
			b.holdRoom(first.budget, first.weight)
		}
		close(first.ready)
	}
}

// holdRoom gives a part of the room to a reconcile. The caller must hold the lock.
func (b *Budgets) holdRoom(own *budget, weight int64) {
	cluster := own.use.Cluster
	if b.holders[cluster] == nil {
		b.holders[cluster] = make(holder)
	}
	b.holders[cluster][own] = struct{}{}
	if own.held == 0 {
		own.since = time.Now()
	}
	own.held += weight
	b.used += weight
}

// releaseRoom takes back the room of a reconcile that has ended.
func (b *Budgets) releaseRoom(own *budget) {
	b.mu.Lock()
	defer b.mu.Unlock()

	own.ended = true
	b.used -= own.held
	own.held = 0

	cluster := own.use.Cluster
	delete(b.holders[cluster], own)
	if len(b.holders[cluster]) == 0 {
		delete(b.holders, cluster)
	}
	b.grantRoom()
}

// displaceFor cancels reconciles until there is room for a waiter, or none may be cancelled for it.
func (b *Budgets) displaceFor(w *waiter) {
	needs := b.used + w.weight - roomWeight
	var others []*budget
	for _, reconciles := range b.holders {
		for other := range reconciles {
			switch {
			case other.displaced:
				needs -= other.held // It returns its part soon.
			case other != w.budget && other.yieldsTo(w.budget):
				others = append(others, other)
			}
		}
	}

	slices.SortFunc(others, func(x, y *budget) int {
		return cmp.Or(compareBools(y.use.Slow, x.use.Slow),
			cmp.Compare(b.holders[y.use.Cluster].heldWeight(), b.holders[x.use.Cluster].heldWeight()))
	})
	for _, other := range others {
		if needs <= 0 {
			return
		}
		needs -= other.held
		other.displaced = true
		other.cancel(errDisplaced)
	}
}

// yieldsTo reports whether a reconcile may be cancelled for another one.
func (b *budget) yieldsTo(other *budget) bool {
	if b.use.Slow && !other.use.Slow {
		return true
	}
	return b.use.Slow == other.use.Slow && time.Since(b.since) >= lease
}

// compareBools orders false before true.
func compareBools(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	default:
		return 1
	}
}
