package opentelemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const scope = "github.com/runtime-watcher/runtime-watcher/adapters/opentelemetry"

// The attributes of spans. The kinds of objects follow the semantic conventions of Kubernetes where
// there is one.
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

// Tracing wraps ports with spans. Create one with [New]. A nil Tracing is off: it returns each port
// unchanged. It is safe for concurrent use.
type Tracing struct{ tracer trace.Tracer }

// New returns a tracing that sends its spans to provider. Without provider it returns nil, which is
// off.
func New(provider trace.TracerProvider) *Tracing {
	if provider == nil {
		return nil
	}
	return &Tracing{tracer: provider.Tracer(scope)}
}

// child starts a span below a trace parent. It returns a nil span for an event without a valid one.
func (t *Tracing) child(
	ctx context.Context, parent, name string, kind trace.SpanKind, attrs ...attribute.KeyValue,
) (context.Context, trace.Span) {
	remote := parse(parent)
	if !remote.IsValid() {
		return ctx, nil
	}
	return t.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, remote), name,
		trace.WithSpanKind(kind), trace.WithAttributes(attrs...))
}

func end(span trace.Span, err error, attrs ...attribute.KeyValue) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, core.Reason(err))
		span.RecordError(err)
	}
	span.SetAttributes(attrs...)
	span.End()
}

func parse(parent string) trace.SpanContext {
	if parent == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{headerTraceParent: parent}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

func format(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[headerTraceParent]
}

// headerTraceParent is the name of the header in lower case.
const headerTraceParent = "traceparent"

func describe(manager core.Manager, event *core.WatchEvent) []attribute.KeyValue {
	return []attribute.KeyValue{
		keyManager.String(string(manager)), keyKind.String(event.WatchedGVK.Kind),
		keyNamespace.String(event.Watched.Namespace), keyName.String(event.Watched.Name),
		keyOperation.String(string(event.Operation)),
	}
}
