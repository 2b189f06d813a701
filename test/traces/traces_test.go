// Package traces shows one trace over an API server, an agent and an operator, which talk over real
// connections.
package traces

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/opentelemetry"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const (
	manager = core.Manager("kyma")
	runtime = "runtime-1"
	domain  = "runtime-1.example.com"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// TestOneTrace makes a write in an API server that traces all requests, and follows it to the reconcile. No collector is
// needed: the API server drops its own spans.
func TestOneTrace(t *testing.T) {
	tracing := filepath.Join(t.TempDir(), "tracing.yaml")
	lab.NoError(t, os.WriteFile(tracing, []byte(tracingConfiguration), 0o600))
	plane := lab.SharedAPIServer(t, apiserver.Options{
		APIServerArgs: map[string][]string{"tracing-config-file": {tracing}},
	})
	pki := lab.NewPKI(t)
	name := lab.AddRuntime(t, plane, runtime, domain)
	ofOperator := tracetest.NewInMemoryExporter()
	ofAgent := tracetest.NewInMemoryExporter()
	address, reconciled := startOperator(t, plane, pki.ServerMaterial(), ofOperator)
	sender := startAgent(t, pki.RuntimeVolume(runtime, domain), address, ofAgent)
	labels := map[string]string{"watched": "true"}
	lab.Watch(t, plane, sender, pki.CA.PEM, watch.Watch{
		Name: types.NamespacedName{Namespace: lab.Namespace, Name: "configmaps"}, Manager: manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Selector: watch.Selector{Labels: labels},
	})
	<-reconciled // The resync of the start.
	demo := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: lab.Namespace, GenerateName: "demo-", Labels: labels}}
	lab.NoError(t, plane.Client.Create(t.Context(), demo))
	var spans tracetest.SpanStubs
	lab.Eventually(t, lab.Patience, "a reconcile with a trace", func() bool {
		spans = traceOfReconcile(append(spansOf("agent", ofAgent), spansOf("control plane", ofOperator)...))
		// The agent writes a span when it ends: those of the review and of the send may end after the reconcile.
		return named(spans, "agent review") != nil && named(spans, "agent send") != nil
	})
	if got := <-reconciled; got != name {
		t.Errorf("reconciled %s, want %s", got, name)
	}
	checkTrace(t, spans)
}

// checkTrace holds that the spans are one path, below a span of the API server.
func checkTrace(t *testing.T, spans tracetest.SpanStubs) {
	t.Helper()
	review := named(spans, "agent review")
	last := named(spans, reconciles)
	for i := range spans {
		t.Logf("%-25s from %v for %v", spans[i].Name, spans[i].StartTime.Sub(review.StartTime), spans[i].EndTime.Sub(spans[i].StartTime))
	}
	if !review.Parent.IsValid() {
		t.Error("the review is a root, want it below the span of the API server")
	}
	var path []string
	for s := last; s != nil; s = find(spans, func(parent *tracetest.SpanStub) bool {
		return parent.SpanContext.SpanID() == s.Parent.SpanID()
	}) {
		path = append([]string{s.Name}, path...)
	}
	want := "agent review, agent accept, agent send, control plane enqueue, control plane reconcile"
	if have := strings.Join(path, ", "); have != want {
		t.Errorf("path %q, want %q", have, want)
	}
	if settle := last.StartTime.Sub(review.StartTime); settle < 50*time.Millisecond {
		t.Errorf("the reconcile starts %v after the review, want the settle time between them", settle)
	}
}

const reconciles = "control plane reconcile"

// spansOf returns the spans of a process, with its name before theirs.
func spansOf(process string, exporter *tracetest.InMemoryExporter) tracetest.SpanStubs {
	spans := exporter.GetSpans()
	for i := range spans {
		spans[i].Name = process + " " + spans[i].Name
	}
	return spans
}

// find returns the first span that matches, nil without one.
func find(spans tracetest.SpanStubs, match func(*tracetest.SpanStub) bool) *tracetest.SpanStub {
	for i := range spans {
		if match(&spans[i]) {
			return &spans[i]
		}
	}
	return nil
}

func named(spans tracetest.SpanStubs, name string) *tracetest.SpanStub {
	return find(spans, func(s *tracetest.SpanStub) bool { return s.Name == name })
}

// traceOfReconcile returns the spans of the trace that has a reconcile, none without one.
func traceOfReconcile(all tracetest.SpanStubs) tracetest.SpanStubs {
	last := named(all, reconciles)
	return slices.DeleteFunc(all, func(s tracetest.SpanStub) bool {
		return last == nil || s.SpanContext.TraceID() != last.SpanContext.TraceID()
	})
}

// tracingConfiguration makes an API server trace all requests. Nothing listens on port 9.
const tracingConfiguration = `apiVersion: apiserver.config.k8s.io/v1
kind: TracingConfiguration
endpoint: 127.0.0.1:9
samplingRatePerMillion: 1000000
`

// startAgent runs an agent of an author in this process: that of this repository, with traces.
func startAgent(t *testing.T, volume *testpki.Volume, address string, exporter sdktrace.SpanExporter) *lab.Agent {
	t.Helper()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	ca, cert, key := volume.Paths()
	a := &lab.Agent{
		Process:     lab.NewProcess(t, "agent", "", nil), // It is not launched.
		WebhookPort: lab.FreePort(t), MetricsPort: lab.FreePort(t), Volume: volume,
	}
	to := agent.Connection{Address: address, Keys: keys.Paths{CA: ca, Certificate: cert, Key: key}}
	running := lab.Must(agent.New(t.Context(), to, agent.Parts{Tracing: opentelemetry.New(provider)}, agent.Options{
		Managers:       []core.Manager{manager},
		Webhook:        agent.Webhook{Address: lab.Address(a.WebhookPort)},
		MetricsAddress: lab.Address(a.MetricsPort),
		Outbox:         agent.Outbox{Resend: []time.Duration{}},
	}))
	lab.Run(t, "agent", running.Start)
	lab.Eventually(t, lab.Patience, "the agent is ready", func() bool {
		_, err := lab.Get(t.Context(), "http://"+lab.Address(a.MetricsPort)+"/readyz")
		return err == nil
	})
	return a
}

// startOperator runs an operator with traces in this process, and returns its address and its reconciles. It is set up
// as the README says.
func startOperator(
	t *testing.T, plane *apiserver.ControlPlane, material *keys.Material, exporter sdktrace.SpanExporter,
) (address string, reconciled <-chan types.NamespacedName) {
	t.Helper()
	mgr := lab.NewManager(t, plane.Config, nil)
	requests := make(chan types.NamespacedName, 100)
	address = lab.Address(lab.FreePort(t))
	tracing := opentelemetry.New(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))
	runtimes := lab.Must(controllerruntime.NewRuntimes(mgr.GetCache(), lab.MetadataOf(corev1.SchemeGroupVersion.WithKind("ConfigMap")),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	mapped, reconciles := opentelemetry.Queue(tracing, controllerruntime.EnqueueByRuntime(runtimes),
		func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			requests <- r.NamespacedName
			return reconcile.Result{}, nil
		})
	events := lab.Must(controllerruntime.AddListener(mgr, controllerruntime.ListenerConfig{
		Addr: address, Senders: controllerruntime.MutualTLS(material), Verifier: tracing.Verifier(listener.SANPinning(runtimes)),
	}))
	source := lab.Must(controllerruntime.SourceFor(events, manager, mapped, controllerruntime.SourceOptions{}))
	lab.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("traces").WatchesRawSource(source).Complete(reconcile.Func(reconciles)))
	lab.Run(t, "operator", mgr.Start)
	return address, requests
}
