package opentelemetry

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Webhook makes a span of each request. The span belongs to the trace of the API server, if its
// request has one. If not, the sampler of the provider decides. The request that next gets has the
// span in its traceparent header, which package admission reads.
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

// Acceptor makes a span of each event with a trace, for the time until it is in the outbox.
func (t *Tracing) Acceptor(next core.Acceptor) core.Acceptor {
	if t == nil || option.IsNil(next) {
		return next
	}
	return core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		if event.TraceParent == "" {
			return next.Accept(manager, event)
		}
		ctx, span := t.child(context.Background(), event.TraceParent, "accept", trace.SpanKindProducer,
			describe(manager, &event)...)
		if span != nil {
			event.TraceParent = format(ctx)
		}
		outcome := next.Accept(manager, event)
		end(span, nil, keyOutcome.String(string(outcome)))
		return outcome
	})
}

// Forwarder makes a span of each event with a trace in each batch, for the time until the batch is
// answered. The batch that next gets is a copy if one of its events has a trace.
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
		within, span := t.child(ctx, event.TraceParent, "send", trace.SpanKindClient, attrs...)
		if span != nil {
			event.TraceParent = format(within)
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
			end(span, failed[i])
		} else {
			end(span, err)
		}
	}
}
