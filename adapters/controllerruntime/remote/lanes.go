package remote

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// LanesOptions are the optional settings of [NewLanes]. The zero value is the documented default.
// With a negative number, [Lane.Start] and [Lanes.SetUpSlow] return an error.
type LanesOptions[request comparable] struct {
	// Share is the number of concurrent reconciles of one cluster in each lane. Default: 2.
	Share int
	// SlowAfter is the longest time that a reconcile may take in the regular lane. Then the
	// reconcile is cancelled, and its cluster belongs to the slow lane until a reconcile takes less
	// than SlowAfter. Default: 3 s.
	SlowAfter time.Duration
	// Timeout bounds a reconcile in the slow lane. Default: 1 min.
	Timeout time.Duration
	// Waiting is the number of requests of one cluster that may wait for its share. Default: 1,000
	// if Replace is set, and otherwise no limit.
	Waiting int
	// Replace returns the request that replaces a request beyond Waiting, such as a request to list
	// the cluster. It must be for the same cluster. Default: none.
	Replace func(r request) request
	// Judge decides after each reconcile to which lane the cluster belongs. The argument err is the
	// error of the reconcile, and slow reports whether the cluster belonged to the slow lane.
	// Default: the slow lane after a reconcile that took longer than SlowAfter. If Judge is set, no
	// reconcile is cancelled after SlowAfter.
	Judge func(r request, took time.Duration, err error, slow bool) Verdict
	// Budgets bound the answers of all clusters. Share them among the controllers of a process.
	// Default: separate budgets.
	Budgets *Budgets
	// SlowWorkers is the number of workers that [Lanes.SetUpSlow] starts. Default: 5.
	SlowWorkers int
}

// Verdict is the result of [LanesOptions.Judge].
type Verdict struct {
	// Slow says that the cluster belongs to the slow lane.
	Slow bool
	// Retry says that the slow lane retries the request, after the time After and with Priority.
	// The controller does not enqueue the request and counts its error as terminal.
	Retry    bool
	After    time.Duration
	Priority int
}

// Lanes share the workers of an operator among clusters, so that a cluster that is slow, hostile or
// loud takes no workers from the other clusters. Use it for reconcilers that read from or write to
// clusters. It is safe for concurrent use. Create it with [NewLanes].
//
// There are two lanes, each with the workers of its own controller:
//
//   - At first, every cluster is in Regular. A cluster gets at most its share of the workers. After
//     100 ms of work, its next request goes behind all requests that are ready, so one worker is
//     enough.
//   - Slow contains the clusters that took too long. They wait only for one another.
//
// Requests beyond the share stay in the workqueue with their priority, delayed until their turn.
// controller-runtime counts such a delay as a reconcile with the result "requeue_after". One
// request is never reconciled in both lanes at the same time. Each reconcile gets a budget from
// [Budgets].
type Lanes[request comparable] struct {
	Regular, Slow *Lane[request]

	cluster    func(r request) string
	reconciler reconcile.TypedReconciler[request]
	opts       LanesOptions[request]

	// clustersMu guards clusters and sweepAt. It is locked before the lock of a lane.
	clustersMu sync.Mutex
	clusters   map[string]*tenant[request]
	sweepAt    int       // number of clusters
	invalid    error     // of opts, which ends the controllers
	unwired    sync.Once // logs that the regular lane is no source of its controller
	missing    sync.Once // logs that there is no slow lane
}

// Lane is the reconciler for the requests of a controller and also a source of the controller: pass
// it to Complete and to WatchesRawSource. See [Lanes].
type Lane[request comparable] struct {
	lanes *Lanes[request]
	slow  bool

	// mu guards queue and round. With clustersMu, it is the inner lock.
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[request] // nil until the controller runs
	round uint64                                        // changes when no request is ready
}

// tenant is a cluster. The lock of all lanes, clustersMu, guards it.
type tenant[request comparable] struct {
	slow bool
	// used is the number of requests that run, or that have their turn in granted.
	used    int
	running map[request]bool // true: again afterwards
	granted map[request]bool
	// parked contains the requests that wait, in order. Some were replaced and are in no queue.
	parked []request
	waits  map[request]bool // as parked
	// ran is the round in which a reconcile ended last, and spent the time of all reconciles that
	// ended in it.
	ran   uint64
	spent time.Duration
}

var (
	_ reconcile.TypedReconciler[string] = (*Lane[string])(nil)
	_ source.TypedSource[string]        = (*Lane[string])(nil)
)

// The delay and the priority of a request that changes its lane.
const (
	immediately   = time.Duration(0)
	usualPriority = 0
)

// parkedFor is how long a queue keeps a request that waits, unless its turn comes earlier.
const parkedFor = time.Hour

// NewLanes returns lanes for the requests of a reconciler. The function cluster returns the name of
// the cluster of a request. Both controllers must be started: [Lanes.SetUpSlow] adds the slow lane,
// and Regular is a source and the reconciler of the controller that you build.
func NewLanes[request comparable](
	cluster func(r request) string, reconciler reconcile.TypedReconciler[request], opts LanesOptions[request],
) *Lanes[request] {
	invalid := option.NoneNegative(opts)
	const most = 1000
	if opts.Replace != nil && opts.Waiting == 0 {
		opts.Waiting = most
	}
	opts = option.WithDefaults(opts, LanesOptions[request]{
		Share: 2, SlowAfter: 3 * time.Second, Timeout: time.Minute, Budgets: NewBudgets(), SlowWorkers: 5,
	})
	l := &Lanes[request]{
		cluster: cluster, reconciler: reconciler, opts: opts, clusters: make(map[string]*tenant[request]),
		sweepAt: sweepFirst, invalid: invalid,
	}
	l.Regular = &Lane[request]{lanes: l, round: 1}
	l.Slow = &Lane[request]{lanes: l, round: 1, slow: true}
	return l
}

// SetUpSlow adds the controller of the slow lane to a controller manager. Its name is the name of
// the controller of the regular lane, followed by "-slow". Leader election and metrics work as for
// any other controller.
func (l *Lanes[request]) SetUpSlow(mgr manager.Manager, name string) error {
	if l.invalid != nil {
		return l.invalid
	}

	opts := controller.TypedOptions[request]{
		Reconciler: l.Slow, MaxConcurrentReconciles: l.opts.SlowWorkers, UsePriorityQueue: new(true),
		SkipNameValidation: new(true), // Two controllers of one process may have the same kind.
	}
	opts.DefaultFromConfig(mgr.GetControllerOptions())
	slow, err := controller.NewTypedUnmanaged(name+"-slow", opts)
	if err != nil {
		return err
	}
	if err := slow.Watch(l.Slow); err != nil {
		return err
	}
	return mgr.Add(slow)
}

// Start passes the queue of its controller to the lane. Only the controller calls it.
func (lane *Lane[request]) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
	if lane.lanes.invalid != nil {
		return lane.lanes.invalid
	}
	lane.mu.Lock()
	defer lane.mu.Unlock()

	lane.queue = queue
	return nil
}

// String names the source in the log of its controller.
func (lane *Lane[request]) String() string {
	if lane.slow {
		return "slow lane"
	}
	return "regular lane"
}

// currentQueue returns the queue of the lane, nil while its controller does not run.
func (lane *Lane[request]) currentQueue() workqueue.TypedRateLimitingInterface[request] {
	lane.mu.Lock()
	defer lane.mu.Unlock()
	return lane.queue
}

// Add enqueues requests after a time with a priority, such as handler.LowPriority. Without a
// priority queue the priority has no effect. Add returns false if the controller does not run. It
// does not block.
func (lane *Lane[request]) Add(after time.Duration, priority int, requests ...request) bool {
	queue := lane.currentQueue()
	if queue == nil {
		return false
	}
	if ranked, ok := queue.(priorityqueue.PriorityQueue[request]); ok {
		ranked.AddWithOpts(priorityqueue.AddOpts{After: after, Priority: &priority}, requests...)
		return true
	}

	for _, r := range requests {
		queue.AddAfter(r, after)
	}
	return true
}

// wakeRequest enqueues a request that may run now, behind all that are ready: a priority queue
// orders requests by the time at which their wait ends. The queue keeps the higher priority of a
// request that is in it.
func (lane *Lane[request]) wakeRequest(r request) { lane.Add(time.Nanosecond, handler.LowPriority, r) }

// endRoundIfAlone begins a new round if no other request is ready, and reports whether it did. A
// turn only puts a cluster behind other requests, so without any, the turns of all clusters begin
// anew.
func (lane *Lane[request]) endRoundIfAlone() (round uint64, alone bool) {
	queue := lane.currentQueue()
	alone = queue == nil || queue.Len() == 0

	lane.mu.Lock()
	defer lane.mu.Unlock()

	if alone {
		lane.round++
	}
	return lane.round, alone
}

func (lane *Lane[request]) currentRound() uint64 {
	lane.mu.Lock()
	defer lane.mu.Unlock()
	return lane.round
}

// Reconcile reconciles a request, delays it, or leaves it to the other lane.
func (lane *Lane[request]) Reconcile(ctx context.Context, r request) (reconcile.Result, error) {
	if lane.currentQueue() == nil {
		lane.lanes.unwired.Do(func() {
			ctrl.LoggerFrom(ctx).Info("clusters have no share of the workers: " +
				"the lane is not a source of its controller, " +
				"so also pass it to WatchesRawSource")
		})
	}

	begins, result := lane.lanes.beginRequest(lane, r)
	if !begins {
		return result, nil
	}
	return lane.lanes.runReconcile(ctx, lane, r)
}

// laneOf returns the lane of a cluster: the regular one while the slow one does not run.
func (l *Lanes[request]) laneOf(t *tenant[request]) *Lane[request] {
	if t.slow && l.Slow.currentQueue() != nil {
		return l.Slow
	}
	return l.Regular
}

// beginRequest decides whether a request that has a worker begins now.
func (l *Lanes[request]) beginRequest(in *Lane[request], r request) (begins bool, result reconcile.Result) {
	round, alone := in.endRoundIfAlone()
	l.clustersMu.Lock()
	defer l.clustersMu.Unlock()

	t := l.findOrAddTenant(l.cluster(r), round)
	if _, runs := t.running[r]; runs {
		t.running[r] = true // In the other lane. It may have read before the change.
		return false, reconcile.Result{}
	}
	if l.laneOf(t) == l.Slow && in == l.Regular {
		l.Slow.Add(immediately, usualPriority, r)
		return false, reconcile.Result{}
	}

	isTurn := alone || !t.hadTurn(round)
	mayBegin := isTurn && t.used < l.opts.Share && len(t.parked) == 0
	switch {
	case t.granted[r]:
		delete(t.granted, r)
	case mayBegin || in.currentQueue() == nil:
		t.used++
	default:
		result = l.parkRequest(t, r)
		l.grantTurns(t)
		return false, result
	}

	t.running[r] = false
	return true, reconcile.Result{}
}

// parkRequest lets a request wait. If too many requests of its cluster wait, the replacement waits
// instead, and the request leaves the queue. The caller holds the lock.
func (l *Lanes[request]) parkRequest(t *tenant[request], r request) reconcile.Result {
	stays := reconcile.Result{RequeueAfter: parkedFor}
	if t.waits[r] {
		return stays
	}

	isFull := l.opts.Replace != nil && len(t.parked) >= l.opts.Waiting
	if !isFull {
		t.addParked(r)
		return stays
	}

	t.addParked(l.opts.Replace(r))
	return reconcile.Result{}
}

// addParked makes a request wait, unless it waits or has its turn already.
func (t *tenant[request]) addParked(r request) {
	if t.waits[r] || t.granted[r] {
		return
	}
	t.waits[r] = true
	t.parked = append(t.parked, r)
}

// turn is the time that the reconciles of a cluster may take before other clusters, while requests
// of other clusters are ready.
const turn = 100 * time.Millisecond

// hadTurn reports whether the next request of a cluster comes behind all others that are ready.
func (t *tenant[request]) hadTurn(round uint64) bool { return t.ran == round && t.spent >= turn }

// grantTurns gives turns to requests that wait. A cluster that had its turn gets one at a time. The
// caller holds the lock.
func (l *Lanes[request]) grantTurns(t *tenant[request]) {
	share := l.opts.Share
	if t.hadTurn(l.laneOf(t).currentRound()) {
		share = 1
	}
	for t.used < share && len(t.parked) > 0 {
		next := t.parked[0]
		t.parked = t.parked[1:]
		delete(t.waits, next)
		t.granted[next] = true
		t.used++
		l.laneOf(t).wakeRequest(next)
	}
}

var errSlow = errors.New("reconcile takes longer than the regular lane allows")

// runReconcile reconciles a request with the bounds of its lane, and decides where the request goes
// afterwards.
func (l *Lanes[request]) runReconcile(
	ctx context.Context, in *Lane[request], r request,
) (result reconcile.Result, err error) {
	name := l.cluster(r)
	begun := time.Now()
	verdict := Verdict{Slow: true} // After a panic.
	defer func() { l.endReconcile(in, r, time.Since(begun), verdict.Slow) }()

	timeout := l.opts.Timeout
	cause := context.DeadlineExceeded
	if !in.slow && l.opts.Judge == nil && l.Slow.currentQueue() != nil {
		timeout = l.opts.SlowAfter
		cause = errSlow
	}

	within, cancel := context.WithTimeoutCause(ctx, timeout, cause)
	defer cancel()
	within, end := l.opts.Budgets.Begin(within, Use{Cluster: name, Slow: in.slow})
	defer end()

	result, err = l.reconciler.Reconcile(within, r)
	verdict = l.judgeReconcile(within, r, time.Since(begun), err)
	if verdict.Slow && l.Slow.currentQueue() == nil {
		l.missing.Do(func() {
			ctrl.LoggerFrom(ctx).Info("a slow cluster keeps its share of the regular workers, "+
				"because no slow lane runs: call SetUpSlow", "cluster", name)
		})
	}

	switch {
	case err != nil && verdict.Retry && l.Slow.Add(verdict.After, verdict.Priority, r):
		return reconcile.Result{}, reconcile.TerminalError(err) // Logged and counted, and not enqueued here.
	case err != nil && errors.Is(context.Cause(within), errSlow) && ctx.Err() == nil:
		ctrl.LoggerFrom(ctx).V(1).Info("reconcile of a slow cluster continues in the slow lane", "cluster", name)
		l.Slow.Add(immediately, usualPriority, r)
		return reconcile.Result{}, nil
	}

	leavesLane := in.slow && !verdict.Slow
	isRequeue := err == nil && result.RequeueAfter > 0
	if leavesLane && isRequeue && l.Regular.Add(result.RequeueAfter, priorityOf(result), r) {
		return reconcile.Result{}, nil
	}
	return result, err
}

func priorityOf(result reconcile.Result) int {
	if result.Priority == nil {
		return handler.LowPriority
	}
	return *result.Priority
}

// judgeReconcile decides after a reconcile to which lane its cluster belongs.
func (l *Lanes[request]) judgeReconcile(ctx context.Context, r request, took time.Duration, err error) Verdict {
	if l.opts.Judge == nil {
		return Verdict{Slow: took >= l.opts.SlowAfter || errors.Is(context.Cause(ctx), errDisplaced)}
	}
	l.clustersMu.Lock()
	slow := l.clusters[l.cluster(r)].slow
	l.clustersMu.Unlock()
	return l.opts.Judge(r, took, err, slow)
}

// endReconcile ends a reconcile, and gives its turn to the next request of the cluster.
func (l *Lanes[request]) endReconcile(in *Lane[request], r request, took time.Duration, slow bool) {
	name := l.cluster(r)
	l.clustersMu.Lock()
	defer l.clustersMu.Unlock()

	t := l.clusters[name]
	again := t.running[r]
	delete(t.running, r)
	t.used--
	t.slow = slow

	if round := in.currentRound(); t.ran != round {
		t.ran = round
		t.spent = 0
	}

	t.spent += took

	if again {
		l.laneOf(t).Add(immediately, usualPriority, r)
	}
	l.grantTurns(t)
}

// sweepFirst is the number of clusters from which the lanes forget clusters.
const sweepFirst = 64

// isIdle reports whether nothing of a cluster needs to be remembered.
func (t *tenant[request]) isIdle(round uint64) bool {
	hasRequests := t.used > 0 || len(t.parked) > 0
	return !t.slow && !hasRequests && t.ran != round
}

// findOrAddTenant returns a cluster. It forgets idle ones from time to time. The caller holds the
// lock.
func (l *Lanes[request]) findOrAddTenant(name string, round uint64) *tenant[request] {
	t := l.clusters[name]
	if t != nil {
		return t
	}

	if len(l.clusters) >= l.sweepAt {
		maps.DeleteFunc(l.clusters, func(_ string, t *tenant[request]) bool { return t.isIdle(round) })
		l.sweepAt = sweepFirst + 2*len(l.clusters)
	}

	t = &tenant[request]{
		running: make(map[request]bool), granted: make(map[request]bool), waits: make(map[request]bool),
	}
	l.clusters[name] = t
	return t
}
