// Package traces shows one trace over an API server, an agent and an operator, which talk over real
// connections.
package traces

import (
	"context"
	"fmt"
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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/opentelemetry"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
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
	plane := lab.SharedAPIServer(t, apiserver.Options{
		APIServerArgs: map[string][]string{"tracing-config-file": {tracingConfiguration(t)}},
	})
	pki := lab.NewPKI(t)
	name := lab.AddRuntime(t, plane, runtime, domain)
	ofOperator, ofAgent := tracetest.NewInMemoryExporter(), tracetest.NewInMemoryExporter()
	address, reconciled := startOperator(t, plane, pki.ServerMaterial(), ofOperator)
	sender := startAgent(t, pki.RuntimeVolume(runtime, domain), address, ofAgent)
	labels := map[string]string{"watched": "true"}
	lab.Watch(t, plane, sender, pki.CA.PEM, watch.Watch{
		Name: types.NamespacedName{Namespace: lab.Namespace, Name: "configmaps"}, Manager: manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Selector: watch.Selector{Labels: labels},
	})
	<-reconciled // The resync of the start.
	demo := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: lab.Namespace, Name: "demo", Labels: labels}}
	if err := plane.Client.Create(t.Context(), demo); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Client.Delete(context.WithoutCancel(t.Context()), demo, &client.DeleteOptions{}) })
	var spans []span
	lab.Eventually(t, 3*time.Minute, "a reconcile with a trace", func() bool {
		spans = traceOfReconcile(append(spansOf("agent", ofAgent), spansOf("control plane", ofOperator)...))
		// The agent writes a span when it ends: those of the review and of the send may end after the reconcile.
		return ended(spans, "review") && ended(spans, "send")
	})
	if got := <-reconciled; got != name {
		t.Errorf("reconciled %s, want %s", got, name)
	}
	checkTrace(t, spans)
}

func ended(spans []span, name string) bool {
	return slices.ContainsFunc(spans, func(s span) bool { return s.Name == name })
}

// checkTrace holds that the spans are one path, below a span of the API server.
func checkTrace(t *testing.T, spans []span) {
	t.Helper()
	byID, path := map[string]span{}, []string{}
	var last span
	for _, s := range spans {
		byID[s.ID] = s
		if s.Name == "reconcile" {
			last = s
		}
		t.Logf("%s  from %6.1f ms for %5.1f ms", &s, ms(s.Started.Sub(spans[0].Started)), ms(s.Ended.Sub(s.Started)))
	}
	for s, found := last, true; found; s, found = byID[s.Parent] {
		path = append([]string{s.Process + " " + s.Name}, path...)
		if s.Name == "review" && s.Parent == strings.Repeat("0", 16) {
			t.Error("the review is a root, want it below the span of the API server")
		}
	}
	want := "agent review, agent accept, agent send, control plane enqueue, control plane reconcile"
	if have := strings.Join(path, ", "); have != want {
		t.Errorf("path %q, want %q", have, want)
	}
	if settle := last.Started.Sub(spans[0].Started); settle < 50*time.Millisecond {
		t.Errorf("the reconcile starts %v after the review, want the settle time between them", settle)
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// traceOfReconcile returns the spans of the trace that has a reconcile, nil without one.
func traceOfReconcile(all []span) (spans []span) {
	for _, end := range all {
		if end.Name != "reconcile" {
			continue
		}
		for _, s := range all {
			if s.Trace == end.Trace {
				spans = append(spans, s)
			}
		}
		return spans
	}
	return nil
}

// span is a span of one of the programs.
type span struct {
	Process, Name, Trace, ID, Parent string
	Started, Ended                   time.Time
}

func (s *span) String() string {
	return fmt.Sprintf("%-13s %-9s %s below %s", s.Process, s.Name, s.ID, s.Parent)
}

func spansOf(process string, exporter *tracetest.InMemoryExporter) (spans []span) {
	for _, s := range exporter.GetSpans().Snapshots() {
		spans = append(spans, span{
			process, s.Name(), s.SpanContext().TraceID().String(), s.SpanContext().SpanID().String(),
			s.Parent().SpanID().String(), s.StartTime(), s.EndTime(),
		})
	}
	return spans
}

// tracingConfiguration makes an API server trace all requests. Nothing listens on port 9.
func tracingConfiguration(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: apiserver.config.k8s.io/v1
kind: TracingConfiguration
endpoint: 127.0.0.1:9
samplingRatePerMillion: 1000000
`), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

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
	running, err := agent.New(t.Context(), agent.Parts{Tracing: opentelemetry.New(provider)}, agent.Options{
		Managers:       []core.Manager{manager},
		Keys:           agent.Keys{Client: keys.Paths{CA: ca, Certificate: cert, Key: key}},
		ControlPlane:   agent.ControlPlane{Address: address},
		Webhook:        agent.Webhook{Address: lab.Address(a.WebhookPort)},
		MetricsAddress: lab.Address(a.MetricsPort),
		Outbox:         outbox.Options{Resend: []time.Duration{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	lab.Run(t, "agent", running.Start)
	lab.Eventually(t, 3*time.Minute, "the agent is ready", func() bool {
		_, err := lab.Get(t.Context(), "http://"+lab.Address(a.MetricsPort)+"/readyz")
		return err == nil
	})
	return a
}

// startOperator runs an operator with traces in this process, and returns its address and its reconciles.
func startOperator(
	t *testing.T, plane *apiserver.ControlPlane, material *keys.Material, exporter sdktrace.SpanExporter,
) (address string, reconciled <-chan types.NamespacedName) {
	t.Helper()
	mgr := lab.NewManager(t, plane.Config, nil)
	address = lab.Address(lab.FreePort(t))
	requests := make(chan types.NamespacedName, 100)
	tracing := opentelemetry.New(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))
	if err := addListener(t.Context(), mgr, address, material, tracing, requests); err != nil {
		t.Fatal(err)
	}
	lab.Run(t, "operator", mgr.Start)
	return address, requests
}

// addListener is the set-up of the README, with traces.
func addListener(
	ctx context.Context, mgr ctrl.Manager, address string, material *keys.Material, tracing *opentelemetry.Tracing,
	requests chan<- types.NamespacedName,
) error {
	runtimes, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	kymas := func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
		requests <- r.NamespacedName
		return reconcile.Result{}, nil
	}
	mapped, reconciled := opentelemetry.Queue(tracing, controllerruntime.EnqueueByRuntime(runtimes), kymas)
	events, source, err := controllerruntime.RegisterListenerComponent(address, string(manager),
		listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}), tracing.Verifier(listener.SANPinning(runtimes)),
		mapped, controllerruntime.ComponentOptions{Listener: listener.Options{TLS: keys.ServerTLSConfig(material)}})
	if err != nil {
		return err
	}
	if err := mgr.Add(events); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("traces").WatchesRawSource(source).
		Complete(reconcile.Func(reconciled))
}
