// Package opentelemetry makes one trace for each change, from the request to the API server of a
// runtime to the reconcile in the control plane.
//
// Create a [Tracing] on each side, and wrap the ports with it:
//
//	API server     traceparent header
//	agent          Webhook, Acceptor, Forwarder
//	control plane  Verifier, Handler, Queue
//
// The trace travels in [core.WatchEvent].TraceParent, and therefore only with contract v3. It is a
// W3C trace context (https://www.w3.org/TR/trace-context/, section 3.2). Merged events have the
// trace of the newest event. Heartbeats and the resyncs of an agent or a fleet have no trace.
//
// A span ends while an API server or a runtime waits for its answer. Therefore the span processor
// must not block: it must collect spans and drop the spans for which it has no room.
//
// The package needs only the API of OpenTelemetry. The program chooses the SDK and the exporter.
package opentelemetry

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const scope = "github.com/runtime-watcher/runtime-watcher/adapters/opentelemetry"

// The attributes of objects follow the semantic conventions of Kubernetes where there is one.
const (
	keyManager   = attribute.Key("runtime_watcher.manager")
	keyRuntime   = attribute.Key("runtime_watcher.runtime")
	keyOutcome   = attribute.Key("runtime_watcher.outcome")
	keyBatch     = attribute.Key("runtime_watcher.batch.events")
	keyKind      = attribute.Key("runtime_watcher.object.kind")
	keyNamespace = attribute.Key("k8s.namespace.name")
	keyName      = attribute.Key("runtime_watcher.object.name")
	keyOperation = attribute.Key("runtime_watcher.operation")
)

// Tracing wraps ports with spans. Create it with [New]. A nil Tracing records nothing and returns
// each port unchanged. It is safe for concurrent use.
//
// An agent takes a Tracing as a part, and a control plane wraps its verifier and handler with it.
// No program in this repository creates a Tracing: the program that imports this package does.
type Tracing struct{ tracer trace.Tracer }

// New returns a Tracing that sends its spans to provider. If provider is nil, New returns a nil
// Tracing, which records nothing.
func New(provider trace.TracerProvider) *Tracing {
	if provider == nil {
		return nil
	}
	return &Tracing{tracer: provider.Tracer(scope)}
}

// startChild starts a span below a trace parent. It returns a nil span for an event without a valid
// one.
func (t *Tracing) startChild(
	ctx context.Context, parent, name string, kind trace.SpanKind, attrs ...attribute.KeyValue,
) (context.Context, trace.Span) {
	carrier := propagation.MapCarrier{headerTraceParent: parent}
	remote := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
	if !remote.IsValid() {
		return ctx, nil
	}
	return t.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, remote), name,
		trace.WithSpanKind(kind), trace.WithAttributes(attrs...))
}

func endSpan(span trace.Span, err error, attrs ...attribute.KeyValue) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, string(core.ReasonOf(err)))
		span.RecordError(err)
	}

	span.SetAttributes(attrs...)
	span.End()
}

// traceParentOf returns the span of ctx as the text of a traceparent header.
func traceParentOf(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[headerTraceParent]
}

const headerTraceParent = "traceparent"

func describe(manager core.Manager, event *core.WatchEvent) []attribute.KeyValue {
	return []attribute.KeyValue{
		keyManager.String(string(manager)), keyKind.String(event.WatchedGVK.Kind),
		keyNamespace.String(event.Watched.Namespace), keyName.String(event.Watched.Name),
		keyOperation.String(string(event.Operation)),
	}
}

// Webhook wraps next so that each request gets a span. If the request from the API server carries a
// trace, the span belongs to that trace. Otherwise the sampler of the provider decides. The request
// that next gets contains the span in its traceparent header, which package admission reads.
func (t *Tracing) Webhook(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		carrier := propagation.HeaderCarrier(r.Header)
		ctx := propagation.TraceContext{}.Extract(r.Context(), carrier)
		ctx, span := t.tracer.Start(ctx, "review", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()

		r = r.Clone(ctx)
		r.Header.Del(headerTraceParent)

		if span.IsRecording() {
			propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header))
		}

		next.ServeHTTP(w, r)
	})
}

// Acceptor wraps next so that each event that carries a trace gets a span, which ends when the
// event is in the outbox.
func (t *Tracing) Acceptor(next core.Acceptor) core.Acceptor {
	if t == nil || option.IsNil(next) {
		return next
	}
	return core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		if event.TraceParent == "" {
			return next.Accept(manager, event)
		}

		ctx, span := t.startChild(context.Background(), event.TraceParent, "accept", trace.SpanKindProducer,
			describe(manager, &event)...)
		if span != nil {
			event.TraceParent = traceParentOf(ctx)
		}

		outcome := next.Accept(manager, event)
		endSpan(span, nil, keyOutcome.String(string(outcome)))
		return outcome
	})
}

// Forwarder wraps next so that each event of a batch that carries a trace gets a span, which ends
// when the batch is answered. The batch that next gets is a copy if one of its events has a trace.
func (t *Tracing) Forwarder(next core.Forwarder) core.Forwarder {
	if t == nil || option.IsNil(next) {
		return next
	}
	return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		if !slices.ContainsFunc(batch.Events, func(e core.Numbered) bool { return e.TraceParent != "" }) {
			return next.Forward(ctx, manager, batch)
		}

		batch.Events = slices.Clone(batch.Events)
		spans := t.startSends(ctx, manager, batch.Events)
		err := next.Forward(ctx, manager, batch)
		endSends(spans, err)

		return err
	})
}

// startSends starts a span for each event, and makes it the trace parent of the event. The span of
// an event without trace is nil.
func (t *Tracing) startSends(ctx context.Context, manager core.Manager, events []core.Numbered) []trace.Span {
	spans := make([]trace.Span, len(events))
	for i := range events {
		event := &events[i].WatchEvent
		attrs := append(describe(manager, event), keyBatch.Int(len(events)))
		within, span := t.startChild(ctx, event.TraceParent, "send", trace.SpanKindClient, attrs...)
		if span != nil {
			event.TraceParent = traceParentOf(within)
		}

		spans[i] = span
	}
	return spans
}

// endSends ends the spans. An error of single events is the error of their spans only.
func endSends(spans []trace.Span, err error) {
	var failed core.EventErrors
	single := errors.As(err, &failed)

	for i, span := range spans {
		if single {
			endSpan(span, failed[i])
		} else {
			endSpan(span, err)
		}
	}
}

// Verifier wraps next so that each check of an event that carries a trace gets a span.
func (t *Tracing) Verifier(next core.Verifier) core.Verifier {
	if t == nil || option.IsNil(next) {
		return next
	}
	return &verifier{tracing: t, next: next}
}

var (
	_ core.RequestVerifier = (*verifier)(nil)
	_ core.Validator       = (*verifier)(nil)
)

type verifier struct {
	tracing *Tracing
	next    core.Verifier
}

// ForRequest calls ForRequest of the wrapped verifier, so that a verifier that remembers something
// for each request, such as SANPinning, still does so.
func (v *verifier) ForRequest() core.Verifier {
	if next, ok := v.next.(core.RequestVerifier); ok {
		return &verifier{tracing: v.tracing, next: next.ForRequest()}
	}
	return v
}

// Validate returns an error if the wrapped verifier is not usable, such as SANPinning without
// domains.
func (v *verifier) Validate() error { return option.Verifier(v.next) }

func (v *verifier) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	if event.TraceParent == "" {
		return v.next.Verify(ctx, peer, event)
	}

	ctx, span := v.tracing.startChild(ctx, event.TraceParent, "verify", trace.SpanKindInternal,
		keyRuntime.String(string(peer.ID)))
	err := v.next.Verify(ctx, peer, event)
	endSpan(span, err)

	return err
}

// Handler wraps next so that each delivery that carries a trace gets a span, which next gets as the
// trace parent. If next has the method Ready, the result also has Ready and RecheckAfter, which
// return the values of next.
func (t *Tracing) Handler(next core.Handler) core.Handler {
	if t == nil || option.IsNil(next) {
		return next
	}

	traced := core.HandlerFunc(func(ctx context.Context, d core.Delivery) error {
		if d.Event.TraceParent == "" {
			return next.Handle(ctx, d)
		}

		ctx, d, span := t.startDelivery(ctx, "handle", d)
		err := next.Handle(ctx, d)
		endSpan(span, err)

		return err
	})
	if next, ok := next.(core.Readier); ok {
		return readyHandler{traced, next}
	}
	return traced
}

// startDelivery starts the span of a delivery, and makes it the trace parent of the event. Handler
// and Queue call it.
func (t *Tracing) startDelivery(
	ctx context.Context, name string, d core.Delivery,
) (context.Context, core.Delivery, trace.Span) {
	attrs := append(describe(d.Manager, &d.Event), keyRuntime.String(string(d.Runtime)))
	ctx, span := t.startChild(ctx, d.Event.TraceParent, name, trace.SpanKindConsumer, attrs...)
	if span != nil {
		d.Event.TraceParent = traceParentOf(ctx)
	}
	return ctx, d, span
}

type readyHandler struct {
	core.Handler
	core.Readier
}

var _ core.Rechecker = readyHandler{}

// RecheckAfter returns the value of the wrapped handler, or 0 if it has no such method.
func (h readyHandler) RecheckAfter() time.Duration {
	next, ok := h.Readier.(core.Rechecker)
	if !ok {
		return 0
	}
	return next.RecheckAfter()
}

const maxRemembered = 10_000

// queue carries traces through a workqueue. It is safe for concurrent use.
type queue[R comparable] struct {
	mu sync.Mutex
	// parents contains the newest trace parent of each request.
	parents map[R]string
}

// Queue carries traces through the workqueue of a controller, which keeps only requests. It wraps
// the map function of a source, and the function of the reconciler. Call it once for each
// controller. The results are safe for concurrent use.
//
// Each delivery that carries a trace and becomes requests gets a span, and so does each reconcile
// of such a request. The newest delivery of a request determines the trace. The traces of up to
// 10,000 requests are remembered. A further trace replaces an arbitrary other trace, because some
// requests are never reconciled. If tracing is nil, Queue returns its arguments.
func Queue[R comparable, Result any](
	tracing *Tracing,
	requests func(context.Context, core.Delivery) ([]R, error), reconcile func(context.Context, R) (Result, error),
) (func(context.Context, core.Delivery) ([]R, error), func(context.Context, R) (Result, error)) {
	if tracing == nil {
		return requests, reconcile
	}

	q := &queue[R]{parents: make(map[R]string)}
	enqueue := func(ctx context.Context, d core.Delivery) ([]R, error) {
		if d.Event.TraceParent == "" {
			return requests(ctx, d)
		}

		ctx, d, span := tracing.startDelivery(ctx, "enqueue", d)
		found, err := requests(ctx, d)
		if span != nil {
			q.keepTraces(found, d.Event.TraceParent)
		}

		endSpan(span, err)
		return found, err
	}

	return enqueue, func(ctx context.Context, r R) (Result, error) {
		parent := q.takeTrace(r)
		if parent == "" {
			return reconcile(ctx, r)
		}

		ctx, span := tracing.startChild(ctx, parent, "reconcile", trace.SpanKindConsumer)
		result, err := reconcile(ctx, r)
		endSpan(span, err)

		return result, err
	}
}

func (q *queue[R]) keepTraces(requests []R, parent string) {
	q.mu.Lock()
	defer q.mu.Unlock()

	for _, r := range requests {
		delete(q.parents, r)
		q.makeRoom()
		q.parents[r] = parent
	}
}

// makeRoom forgets traces until there is room for one. The caller holds the lock.
func (q *queue[R]) makeRoom() {
	for other := range q.parents {
		if len(q.parents) < maxRemembered {
			return
		}
		delete(q.parents, other)
	}
}

func (q *queue[R]) takeTrace(r R) string {
	q.mu.Lock()
	defer q.mu.Unlock()

	parent := q.parents[r]
	delete(q.parents, r)
	return parent
}
