package opentelemetry

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxRemembered bounds the requests with a trace that are not reconciled yet.
const maxRemembered = 10_000

// Queue carries traces through the workqueue of a controller, which keeps requests only. Create one
// for each controller with [NewQueue]. A nil Queue is off. It is safe for concurrent use.
type Queue[R comparable] struct {
	tracing *Tracing

	mu      sync.Mutex
	parents map[R]parent
}

// parent is the newest trace parent of a request, and the number of those that it replaces.
type parent struct {
	text   string
	merged int
}

// NewQueue returns a queue that remembers the traces of up to 10,000 requests. A further one takes
// the place of any other, because some requests are never reconciled. If tracing is nil, so is the
// queue.
func NewQueue[R comparable](tracing *Tracing) *Queue[R] {
	if tracing == nil {
		return nil
	}
	return &Queue[R]{tracing: tracing, parents: make(map[R]parent)}
}

// Map makes a span of each delivery with a trace that becomes requests. It wraps the map function
// of a source.
func (q *Queue[R]) Map(
	next func(context.Context, core.Delivery) ([]R, error),
) func(context.Context, core.Delivery) ([]R, error) {
	if q == nil {
		return next
	}
	return func(ctx context.Context, d core.Delivery) ([]R, error) {
		if d.Event.TraceParent == "" {
			return next(ctx, d)
		}
		ctx, d, span := q.tracing.consume(ctx, "enqueue", d)
		requests, err := next(ctx, d)
		if span != nil {
			q.remember(requests, d.Event.TraceParent)
		}
		end(span, err)
		return requests, err
	}
}

func (q *Queue[R]) remember(requests []R, text string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range requests {
		old, known := q.parents[r]
		if known {
			q.parents[r] = parent{text, old.merged + 1}
			continue
		}
		q.makeRoom()
		q.parents[r] = parent{text: text}
	}
}

// makeRoom forgets one request when there are too many.
func (q *Queue[R]) makeRoom() {
	for r := range q.parents {
		if len(q.parents) < maxRemembered {
			return
		}
		delete(q.parents, r)
	}
}

func (q *Queue[R]) take(r R) parent {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.parents[r]
	delete(q.parents, r)
	return p
}

// keyMerged is the number of deliveries with a trace that one reconcile stands for, beside its own.
const keyMerged = attribute.Key("runtime_watcher.merged")

// Reconcile makes a span of each reconcile of a request with a trace. The request's newest delivery
// decides on the trace. It wraps the function of a reconciler. If queue is nil, it returns next.
func Reconcile[R comparable, Result any](
	queue *Queue[R], next func(context.Context, R) (Result, error),
) func(context.Context, R) (Result, error) {
	if queue == nil {
		return next
	}
	return func(ctx context.Context, r R) (Result, error) {
		p := queue.take(r)
		if p.text == "" {
			return next(ctx, r)
		}
		ctx, span := queue.tracing.child(ctx, p.text, "reconcile", trace.SpanKindConsumer, keyMerged.Int(p.merged))
		result, err := next(ctx, r)
		end(span, err)
		return result, err
	}
}
