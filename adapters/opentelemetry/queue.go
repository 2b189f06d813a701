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

// queue carries traces through a workqueue. It is safe for concurrent use.
type queue[R comparable] struct {
	tracing *Tracing

	mu      sync.Mutex
	parents map[R]parent
}

// parent is the newest trace parent of a request, and the number of those that it replaces.
type parent struct {
	text   string
	merged int
}

// Queue carries traces through the workqueue of a controller, which keeps requests only. It wraps
// the map function of a source, and the function of the reconciler. Call it once for each
// controller. The results are safe for concurrent use.
//
// Each delivery with a trace that becomes requests makes a span, and so does each reconcile of such
// a request. The request's newest delivery decides on the trace. The traces of up to 10,000
// requests are remembered. A further one takes the place of any other, because some requests are
// never reconciled. If tracing is nil, Queue returns its arguments.
func Queue[R comparable, Result any](
	tracing *Tracing,
	requests func(context.Context, core.Delivery) ([]R, error), reconcile func(context.Context, R) (Result, error),
) (func(context.Context, core.Delivery) ([]R, error), func(context.Context, R) (Result, error)) {
	if tracing == nil {
		return requests, reconcile
	}
	q := &queue[R]{tracing: tracing, parents: make(map[R]parent)}
	return q.enqueue(requests), traced(q, reconcile)
}

func (q *queue[R]) enqueue(
	next func(context.Context, core.Delivery) ([]R, error),
) func(context.Context, core.Delivery) ([]R, error) {
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

func (q *queue[R]) remember(requests []R, text string) {
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

func (q *queue[R]) makeRoom() {
	for r := range q.parents {
		if len(q.parents) < maxRemembered {
			return
		}
		delete(q.parents, r)
	}
}

func (q *queue[R]) take(r R) parent {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.parents[r]
	delete(q.parents, r)
	return p
}

// keyMerged is the number of deliveries with a trace that one reconcile stands for, beside its own.
const keyMerged = attribute.Key("runtime_watcher.merged")

func traced[R comparable, Result any](
	q *queue[R], next func(context.Context, R) (Result, error),
) func(context.Context, R) (Result, error) {
	return func(ctx context.Context, r R) (Result, error) {
		p := q.take(r)
		if p.text == "" {
			return next(ctx, r)
		}
		ctx, span := q.tracing.child(ctx, p.text, "reconcile", trace.SpanKindConsumer, keyMerged.Int(p.merged))
		result, err := next(ctx, r)
		end(span, err)
		return result, err
	}
}
