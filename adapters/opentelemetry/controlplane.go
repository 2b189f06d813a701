package opentelemetry

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Verifier makes a span of each event with a trace that is verified.
func (t *Tracing) Verifier(next core.Verifier) core.Verifier {
	if t == nil || option.IsNil(next) {
		return next
	}
	return &verifier{tracing: t, next: next}
}

type verifier struct {
	tracing *Tracing
	next    core.Verifier
}

// ForRequest keeps the memory of a verifier that has one for each request, as SANPinning has.
func (v *verifier) ForRequest() core.Verifier {
	if next, ok := v.next.(interface{ ForRequest() core.Verifier }); ok {
		return &verifier{tracing: v.tracing, next: next.ForRequest()}
	}
	return v
}

// Validate refuses a verifier that is not usable, as SANPinning without domains.
func (v *verifier) Validate() error { return option.Verifier(v.next) }

func (v *verifier) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	if event.TraceParent == "" {
		return v.next.Verify(ctx, peer, event)
	}
	ctx, span := v.tracing.child(ctx, event.TraceParent, "verify", trace.SpanKindInternal,
		keyRuntime.String(string(peer.ID)))
	err := v.next.Verify(ctx, peer, event)
	end(span, err)
	return err
}

// Handler makes a span of each delivery with a trace, which next gets as trace parent. The result
// has the method Ready if next has.
func (t *Tracing) Handler(next core.Handler) core.Handler {
	if t == nil || option.IsNil(next) {
		return next
	}
	traced := core.HandlerFunc(func(ctx context.Context, d core.Delivery) error {
		if d.Event.TraceParent == "" {
			return next.Handle(ctx, d)
		}
		ctx, d, span := t.consume(ctx, "handle", d)
		err := next.Handle(ctx, d)
		end(span, err)
		return err
	})
	if next, ok := next.(core.Readier); ok {
		return readyHandler{traced, next}
	}
	return traced
}

func (t *Tracing) consume(
	ctx context.Context, name string, d core.Delivery,
) (context.Context, core.Delivery, trace.Span) {
	attrs := append(describe(d.Manager, &d.Event), keyRuntime.String(string(d.Runtime)))
	ctx, span := t.child(ctx, d.Event.TraceParent, name, trace.SpanKindConsumer, attrs...)
	if span != nil {
		d.Event.TraceParent = format(ctx)
	}
	return ctx, d, span
}

type readyHandler struct {
	core.Handler
	core.Readier
}

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
