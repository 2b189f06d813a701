package opentelemetry_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/runtime-watcher/runtime-watcher/adapters/opentelemetry"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const (
	manager = core.Manager("kyma")
	traceID = "0af7651916cd43dd8448eb211c80319c"
	written = "00-" + traceID + "-b7ad6b7169203331-01"
)

var errBroken = errors.New("broken")

func newTracing(opts ...sdktrace.TracerProviderOption) (*opentelemetry.Tracing, *tracetest.InMemoryExporter) {
	exporter := tracetest.NewInMemoryExporter()
	return opentelemetry.New(sdktrace.NewTracerProvider(append(opts, sdktrace.WithSyncer(exporter))...)), exporter
}

// chain is the whole path in one process. It returns the function of the API server's call.
func chain(agent, operator *opentelemetry.Tracing, reconciled func(context.Context)) http.Handler {
	var waiting []string
	enqueue, reconcile := opentelemetry.Queue(operator, func(_ context.Context, d core.Delivery) ([]string, error) {
		waiting = append(waiting, d.Event.Watched.Name)
		return waiting, nil
	}, func(ctx context.Context, _ string) (struct{}, error) {
		reconciled(ctx)
		return struct{}{}, nil
	})

	verifier := operator.Verifier(core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil }))
	handler := operator.Handler(core.HandlerFunc(func(ctx context.Context, d core.Delivery) error {
		_, err := enqueue(ctx, d)
		return err
	}))
	forwarder := agent.Forwarder(core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		for i := range batch.Events {
			event := &batch.Events[i].WatchEvent
			if err := verifier.Verify(ctx, core.Peer{ID: "skr"}, event); err != nil {
				return err
			}
			if err := handler.Handle(ctx, core.Delivery{Runtime: "skr", Manager: manager, Event: *event}); err != nil {
				return err
			}
		}

		for _, request := range waiting {
			_, _ = reconcile(ctx, request)
		}

		return nil
	}))

	acceptor := agent.Acceptor(core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		_ = forwarder.Forward(context.Background(), manager, core.NewBatch(event))
		return core.Accepted
	}))
	return agent.Webhook(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		event := core.WatchEvent{TraceParent: r.Header.Get("Traceparent")}
		event.Watched.Name = "demo"
		acceptor.Accept(manager, event)
	}))
}

func call(handler http.Handler, traceParent string) {
	r := httptest.NewRequest(http.MethodPost, "/validate/kyma", http.NoBody)
	if traceParent != "" {
		r.Header.Set("Traceparent", traceParent)
	}

	handler.ServeHTTP(httptest.NewRecorder(), r)
}

// path returns the names of the spans from the root to the reconcile.
func path(spans tracetest.SpanStubs, root string) string {
	names := []string{}
	for parent, found := root, true; found; {
		found = false
		for _, span := range spans {
			if span.Parent.SpanID().String() == parent {
				names = append(names, span.Name)
				parent = span.SpanContext.SpanID().String()
				found = true
			}
		}
	}

	return strings.Join(names, " > ")
}

func TestOneTraceFromTheWriteToTheReconcile(t *testing.T) {
	agent, exporter := newTracing()
	operator, atOperator := newTracing()
	call(chain(agent, operator, func(context.Context) {}), written)

	spans := append(exporter.GetSpans(), atOperator.GetSpans()...)
	for _, span := range spans {
		if id := span.SpanContext.TraceID().String(); id != traceID {
			t.Errorf("%s is of trace %s, want that of the API server, %s", span.Name, id, traceID)
		}
	}

	// Verify and handle are siblings: the verifier does not alter the event.
	if diff := cmp.Diff("review > accept > send > handle > enqueue > reconcile", path(without(spans, "verify"), "b7ad6b7169203331")); diff != "" {
		t.Errorf("path (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff("review > accept > send > verify", path(without(spans, "handle"), "b7ad6b7169203331")); diff != "" {
		t.Errorf("path to the verifier (-want +have):\n%s", diff)
	}
}

func without(spans tracetest.SpanStubs, name string) (rest tracetest.SpanStubs) {
	for _, span := range spans {
		if span.Name != name {
			rest = append(rest, span)
		}
	}
	return rest
}

// Without a trace of the API server the sampler of the agent decides.
func TestSamplerDecidesAboutRoots(t *testing.T) {
	for _, test := range []struct {
		sampler sdktrace.Sampler
		parent  string
		want    int
	}{
		{sdktrace.ParentBased(sdktrace.NeverSample()), "", 0},
		{sdktrace.ParentBased(sdktrace.NeverSample()), written, 7},
		{sdktrace.ParentBased(sdktrace.AlwaysSample()), "", 7},
		{sdktrace.ParentBased(sdktrace.AlwaysSample()), strings.TrimSuffix(written, "1") + "0", 0},
		{sdktrace.ParentBased(sdktrace.NeverSample()), "00-nonsense-01", 0},
	} {
		agent, exporter := newTracing(sdktrace.WithSampler(test.sampler))
		call(chain(agent, agent, func(context.Context) {}), test.parent)
		if n := len(exporter.GetSpans()); n != test.want {
			t.Errorf("%s with parent %q: %d spans, want %d", test.sampler.Description(), test.parent, n, test.want)
		}
	}
}

// An error of one event is the error of its span, and the batch of the caller is not changed.
func TestForwarderKeepsErrorsApart(t *testing.T) {
	tracing, exporter := newTracing()
	batch := core.NewBatch(core.WatchEvent{TraceParent: written}, core.WatchEvent{TraceParent: written}, core.WatchEvent{})
	err := tracing.Forwarder(core.ForwarderFunc(func(_ context.Context, _ core.Manager, sent core.Batch) error {
		if sent.Events[0].TraceParent == written || sent.Events[2].TraceParent != "" {
			t.Errorf("sent %q and %q, want a new parent for the first only", sent.Events[0].TraceParent, sent.Events[2].TraceParent)
		}
		return core.EventErrors{1: errBroken}
	})).Forward(t.Context(), manager, batch)

	var failed core.EventErrors
	if !errors.As(err, &failed) || !errors.Is(failed[1], errBroken) || batch.Events[0].TraceParent != written {
		t.Errorf("error %v, parent %q, want both untouched", err, batch.Events[0].TraceParent)
	}

	have := []codes.Code{}
	for _, span := range exporter.GetSpans() {
		have = append(have, span.Status.Code)
	}

	if diff := cmp.Diff([]codes.Code{codes.Unset, codes.Error}, have); diff != "" {
		t.Errorf("status of the spans (-want +have):\n%s", diff)
	}
}

// A reconcile has the trace of the newest delivery.
func TestQueueMerges(t *testing.T) {
	tracing, exporter := newTracing()
	enqueue, reconcile := opentelemetry.Queue(tracing,
		func(context.Context, core.Delivery) ([]string, error) { return []string{"skr"}, nil },
		func(context.Context, string) (int, error) { return 0, errBroken })

	for range 3 {
		_, _ = enqueue(t.Context(), core.Delivery{Event: core.WatchEvent{TraceParent: written}})
	}

	for range 2 { // The second has no trace any more.
		if _, err := reconcile(t.Context(), "skr"); !errors.Is(err, errBroken) {
			t.Errorf("error %v, want %v", err, errBroken)
		}
	}

	spans := exporter.GetSpans()
	if len(spans) != 4 || spans[3].Parent.SpanID() != spans[2].SpanContext.SpanID() {
		t.Errorf("spans %+v, want three deliveries and one reconcile of the newest", spans)
	}
}

// ready is a handler of a replica that leads.
type ready struct{ core.Handler }

func (ready) Ready() error { return errBroken }

func TestHandlerKeepsReady(t *testing.T) {
	tracing, _ := newTracing()
	plain := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
	if _, ok := tracing.Handler(plain).(interface{ Ready() error }); ok {
		t.Error("a handler without Ready has one")
	}

	handler, ok := tracing.Handler(ready{plain}).(interface{ Ready() error })
	if !ok || !errors.Is(handler.Ready(), errBroken) {
		t.Error("a handler with Ready has lost it")
	}
}

// A port that is nil stays so, for the error of the constructor that gets it.
func TestNilPortsStayNil(t *testing.T) {
	tracing, _ := newTracing()
	for name, port := range map[string]any{
		"acceptor":  tracing.Acceptor(core.AcceptorFunc(nil)),
		"forwarder": tracing.Forwarder(core.ForwarderFunc(nil)),
		"verifier":  tracing.Verifier(core.VerifierFunc(nil)),
		"handler":   tracing.Handler(nil),
	} {
		if !option.IsNil(port) {
			t.Errorf("%s: a nil port is wrapped", name)
		}
	}
}

// perRequest has a verifier of its own for each request.
type perRequest struct{ core.Verifier }

func (p perRequest) ForRequest() core.Verifier {
	return core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return errBroken })
}

func TestVerifierKeepsForRequest(t *testing.T) {
	tracing, _ := newTracing()
	plain := core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil })
	for name, test := range map[string]struct {
		verifier core.Verifier
		want     error
	}{"plain": {plain, nil}, "with a verifier for each request": {perRequest{plain}, errBroken}} {
		v, ok := tracing.Verifier(test.verifier).(core.RequestVerifier)
		if !ok {
			t.Fatalf("%s: the traced verifier has no ForRequest", name)
		}
		if err := v.ForRequest().Verify(t.Context(), core.Peer{}, &core.WatchEvent{}); !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", name, err, test.want)
		}
	}
}

// A verifier inside that can let nothing pass is found at set-up, whatever the transport.
func TestVerifierKeepsValidate(t *testing.T) {
	tracing, _ := newTracing()
	handler := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })

	for _, verifier := range []core.Verifier{listener.SANPinning(nil), listener.AllOf(listener.InsecureAllowAll(), nil)} {
		_, err := intake.New(tracing.Verifier(verifier), map[core.Manager]core.Handler{manager: handler}, intake.Options{})
		if err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("error %v, want one about nil", err)
		}
	}
}

// TestNoAllocations holds that tracing costs nothing while it is off, and while events have no
// trace.
func TestNoAllocations(t *testing.T) {
	on, _ := newTracing()
	for name, tracing := range map[string]*opentelemetry.Tracing{"off": nil, "event without trace": on} {
		requests := []string{"skr"}
		acceptor := tracing.Acceptor(core.AcceptorFunc(func(core.Manager, core.WatchEvent) core.Outcome { return core.Accepted }))
		forwarder := tracing.Forwarder(core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error { return nil }))
		verifier := tracing.Verifier(core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil }))
		handler := tracing.Handler(core.HandlerFunc(func(context.Context, core.Delivery) error { return nil }))
		enqueue, reconcile := opentelemetry.Queue(tracing,
			func(context.Context, core.Delivery) ([]string, error) { return requests, nil },
			func(context.Context, string) (struct{}, error) { return struct{}{}, nil })
		ctx := t.Context()
		event := &core.WatchEvent{}
		batch := core.NewBatch(*event)
		peer := core.Peer{}
		allocated := testing.AllocsPerRun(100, func() {
			acceptor.Accept(manager, *event)
			_ = forwarder.Forward(ctx, manager, batch)
			_ = verifier.Verify(ctx, peer, event)
			_ = handler.Handle(ctx, core.Delivery{})
			_, _ = enqueue(ctx, core.Delivery{})
			_, _ = reconcile(ctx, "skr")
		})
		if allocated != 0 {
			t.Errorf("%s: %.0f allocations for each event, want 0", name, allocated)
		}
	}

	next := http.NewServeMux()
	var off *opentelemetry.Tracing
	if off.Webhook(next) != http.Handler(next) || opentelemetry.New(nil) != nil {
		t.Error("tracing without provider wraps, want the handler itself")
	}
}

// Requests that are never reconciled, as those of deleted objects, do not turn traces off.
func TestQueueMakesRoom(t *testing.T) {
	tracing, exporter := newTracing()
	next := 0
	enqueue, reconcile := opentelemetry.Queue(tracing,
		func(context.Context, core.Delivery) ([]int, error) { next++; return []int{next}, nil },
		func(context.Context, int) (struct{}, error) { return struct{}{}, nil })

	for range 10_001 {
		if _, err := enqueue(t.Context(), core.Delivery{Event: core.WatchEvent{TraceParent: written}}); err != nil {
			t.Fatal(err)
		}
	}

	exporter.Reset()
	if _, err := reconcile(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if spans := exporter.GetSpans(); len(spans) != 1 {
		t.Errorf("%d spans of the newest of 10,001 requests, want 1", len(spans))
	}
}
