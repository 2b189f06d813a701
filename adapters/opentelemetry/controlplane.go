package opentelemetry

import (
	"context"

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

// Verify implements [core.Verifier].
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
