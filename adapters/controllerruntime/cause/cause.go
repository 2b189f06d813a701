// Package cause reports why each reconcile of a controller starts. With a metric of the causes, a
// dashboard shows whether an operator runs on events or on polling.
package cause

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// Cause says why a reconcile starts. Of several causes, an event wins, and otherwise the last
// cause.
type Cause string

// The causes. Event is a change in the runtime, and Resync is a change that may have been missed.
// Freshness means that a runtime is no longer fresh. Poll is the end of the time between two
// reconciles. Local is a change in the control plane. Retry follows an error.
const (
	Event     Cause = "event"
	Resync    Cause = "resync"
	Freshness Cause = "freshness"
	Poll      Cause = "poll"
	Local     Cause = "local"
	Retry     Cause = "retry"
)

// Source is a source of events of one controller. It notes the cause of each request that it
// enqueues and reports the cause when the reconcile starts. It enqueues nothing for a resend of a
// write that a reconcile has read. It may be used concurrently.
type Source struct {
	*controllerruntime.Source[ctrl.Request]

	toRequests controllerruntime.MapFunc[ctrl.Request]
	started    func(Cause)

	mu   sync.Mutex
	next map[ctrl.Request]next
}

// next describes the next reconcile of a request.
type next struct {
	cause Cause
	poll  time.Time
}

// NewSource returns the source for the controller of a manager. The listener to which you pass the
// source makes it follow the fleet, so that a runtime that is no longer fresh is enqueued. The
// function started is called before each reconcile begins, possibly concurrently.
func NewSource(
	manager core.Manager, toRequests controllerruntime.MapFunc[ctrl.Request], watched *fleet.Fleet,
	started func(Cause),
) *Source {
	s := &Source{
		Source:     controllerruntime.NewSource(toRequests, controllerruntime.SourceOptions{}),
		toRequests: toRequests, started: started, next: make(map[ctrl.Request]next),
	}
	watched.OnChange(func(change fleet.Transition) { s.noteLost(change, manager) })
	return s
}

// Start implements [source.TypedSource].
func (s *Source) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
	ranked, ok := queue.(priorityqueue.PriorityQueue[ctrl.Request])
	if !ok {
		return errors.New("want a priority queue, the default of controller-runtime")
	}
	return s.Source.Start(ctx, noting{ranked, s})
}

// noting is a queue that notes the cause of each request of a source.
type noting struct {
	priorityqueue.PriorityQueue[ctrl.Request]

	source *Source
}

// Add adds the request of an event.
func (n noting) Add(request ctrl.Request) {
	n.source.noteCause([]ctrl.Request{request}, Event)
	n.PriorityQueue.Add(request)
}

// AddWithOpts adds requests of a resync.
func (n noting) AddWithOpts(opts priorityqueue.AddOpts, requests ...ctrl.Request) {
	n.source.noteCause(requests, Resync)
	n.PriorityQueue.AddWithOpts(opts, requests...)
}

// noteLost notes the requests of a runtime that is not fresh any more. The source has enqueued
// them.
func (s *Source) noteLost(change fleet.Transition, manager core.Manager) {
	if change.From == fleet.Fresh && change.To.Manager == manager {
		lost := core.Delivery{Runtime: change.To.Runtime, Manager: manager, Event: core.WatchEvent{Resync: true}}
		requests, _ := s.toRequests(context.Background(), lost) // Without an answer nothing is enqueued.
		s.noteCause(requests, Freshness)
	}
}

// noteCause keeps the cause of requests that are in the queue now. An event stays.
func (s *Source) noteCause(requests []ctrl.Request, cause Cause) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, request := range requests {
		if known := s.next[request]; known.cause != Event {
			s.next[request] = next{cause: cause, poll: known.poll}
		}
	}
}

// Count returns a reconciler that calls r and reports the cause of each call.
func (s *Source) Count(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
		s.started(s.takeCause(request))
		result, err := r.Reconcile(ctx, request)
		s.noteResult(request, result, err)
		return result, err
	})
}

// takeCause returns the cause of a reconcile that begins. Without a note, it is a poll if its time
// has come.
func (s *Source) takeCause(request ctrl.Request) Cause {
	s.mu.Lock()
	defer s.mu.Unlock()

	known := s.next[request]
	delete(s.next, request)
	switch {
	case known.cause != "":
		return known.cause
	case !known.poll.IsZero() && !time.Now().Before(known.poll):
		return Poll
	default:
		return Local
	}
}

// noteResult keeps the retry or the poll that follows a reconcile.
func (s *Source) noteResult(request ctrl.Request, result ctrl.Result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	known := s.next[request] // Something may have happened meanwhile.
	if err != nil && known.cause == "" {
		known.cause = Retry
	}
	if result.RequeueAfter > 0 {
		known.poll = time.Now().Add(result.RequeueAfter)
	}
	if known != (next{}) {
		s.next[request] = known
	}
}
