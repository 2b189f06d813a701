// Package cause counts reconciles by their causes. So a dashboard shows whether an operator runs on
// events.
package cause

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// Cause is why a reconcile starts. Of several causes, an event counts, or else the last one.
type Cause string

// The causes.
const (
	// Event is a change in the runtime.
	Event Cause = "event"
	// Resync is a change that may have been missed.
	Resync Cause = "resync"
	// Freshness is a runtime that is not fresh any more.
	Freshness Cause = "freshness"
	// Poll is the end of the time between two looks.
	Poll Cause = "poll"
	// Local is a change in the control plane.
	Local Cause = "local"
	// Retry follows an error.
	Retry Cause = "retry"
)

// NewMetric registers the metric of all counters.
func NewMetric(registry prometheus.Registerer) (*prometheus.CounterVec, error) {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lifecycle_manager_reconciles_total", Help: "Reconciles that were started, by cause.",
	}, []string{"controller", "cause"})
	return total, registry.Register(total)
}

// Counter counts the reconciles of one controller. It may be used concurrently.
type Counter struct {
	total *prometheus.CounterVec
	next  map[ctrl.Request]next
	mu    sync.Mutex
}

// next describes the next reconcile of a request.
type next struct {
	cause Cause
	poll  time.Time
}

// New returns a counter for a controller.
func New(total *prometheus.CounterVec, controller string) *Counter {
	labels := prometheus.Labels{"controller": controller}
	return &Counter{total: total.MustCurryWith(labels), next: make(map[ctrl.Request]next)}
}

// Source is a source of events that notes the cause of each request that it enqueues. It enqueues
// none for a resend of a write that a reconcile has read.
type Source struct {
	*controllerruntime.Source[ctrl.Request]

	counter *Counter
}

// Source returns s with the causes of its requests.
func (c *Counter) Source(s *controllerruntime.Source[ctrl.Request]) Source { return Source{s, c} }

// Start implements [source.TypedSource].
func (s Source) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
	ranked, ok := queue.(priorityqueue.PriorityQueue[ctrl.Request])
	if !ok {
		return errors.New("want a priority queue, the default of controller-runtime")
	}
	return s.Source.Start(ctx, noting{ranked, s.counter})
}

// noting is a queue that notes the cause of each request of a source.
type noting struct {
	priorityqueue.PriorityQueue[ctrl.Request]

	*Counter
}

// Add adds the request of an event.
func (n noting) Add(request ctrl.Request) {
	n.note([]ctrl.Request{request}, Event)
	n.PriorityQueue.Add(request)
}

// AddWithOpts adds requests of a resync.
func (n noting) AddWithOpts(opts priorityqueue.AddOpts, requests ...ctrl.Request) {
	n.note(requests, Resync)
	n.PriorityQueue.AddWithOpts(opts, requests...)
}

// Follow notes the requests of runtimes that are not fresh any more. Call it after Follow of the
// source, which enqueues them.
func (c *Counter) Follow(f controllerruntime.MapFunc[ctrl.Request], watched *fleet.Fleet, manager core.Manager) {
	watched.OnChange(func(change fleet.Transition) {
		if change.From != fleet.Fresh || change.To.Manager != manager {
			return
		}
		lost := core.Delivery{Runtime: change.To.Runtime, Manager: manager, Event: core.WatchEvent{Resync: true}}
		requests, _ := f(context.Background(), lost) // Without an answer nothing is enqueued.
		c.note(requests, Freshness)
	})
}

func (c *Counter) note(requests []ctrl.Request, cause Cause) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, request := range requests {
		if known := c.next[request]; known.cause != Event {
			c.next[request] = next{cause: cause, poll: known.poll}
		}
	}
}

// Count returns a reconciler that counts the calls of r.
func (c *Counter) Count(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
		c.total.WithLabelValues(string(c.begin(request))).Inc()
		result, err := r.Reconcile(ctx, request)
		c.end(request, result, err)
		return result, err
	})
}

// begin returns the cause of a reconcile that begins. Without a note, it is a poll if its time has
// come.
func (c *Counter) begin(request ctrl.Request) Cause {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.next[request]
	delete(c.next, request)
	switch {
	case known.cause != "":
		return known.cause
	case !known.poll.IsZero() && !time.Now().Before(known.poll):
		return Poll
	default:
		return Local
	}
}

func (c *Counter) end(request ctrl.Request, result ctrl.Result, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.next[request] // Something may have happened meanwhile.
	if err != nil && known.cause == "" {
		known.cause = Retry
	}
	if result.RequeueAfter > 0 {
		known.poll = time.Now().Add(result.RequeueAfter)
	}
	if known != (next{}) {
		c.next[request] = known
	}
}
