// Package traces shows that an agent that is composed with traces keeps that of a review up to the
// listener. The whole path, with the operator, is in adapters/opentelemetry.
package traces

import (
	"crypto/tls"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/runtime-watcher/runtime-watcher/adapters/opentelemetry"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	manager = core.Manager("kyma")
	// trace and caller are those of the API server that calls the webhook.
	trace  = "0af7651916cd43dd8448eb211c80319c"
	caller = "b7ad6b7169203331"
)

// TestOneTrace calls the webhook as an API server does that traces all requests, and follows the trace.
func TestOneTrace(t *testing.T) {
	pki, arrived := lab.NewPKI(t), make(chan string, 1)
	plane := lab.StartPlane(t, pki, lab.PlaneOptions{Delivered: func(d core.Delivery) {
		if !d.Event.Resync {
			arrived <- d.Event.TraceParent
		}
	}}, manager)
	exporter := tracetest.NewInMemoryExporter()
	review(t, pki, startAgent(t, pki, plane.Addr, exporter))
	parent := strings.Split(<-arrived, "-")
	if len(parent) != 4 || parent[1] != trace {
		t.Fatalf("the event arrives with %q, want the trace of the API server", parent)
	}
	var spans tracetest.SpanStubs
	lab.Eventually(t, 3*time.Minute, "the spans end", func() bool {
		spans = exporter.GetSpans()
		return len(spans) >= 3
	})
	names, id := []string{}, parent[2]
	for id != caller {
		n := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.SpanContext.SpanID().String() == id })
		if n < 0 {
			t.Fatalf("no span %s below the API server, after %v", id, names)
		}
		names, id = append(names, spans[n].Name), spans[n].Parent.SpanID().String()
	}
	if !slices.Equal(names, []string{"send", "accept", "review"}) {
		t.Errorf("the event arrives below %v, want send, accept and review", names)
	}
}

// review sends a review of an object to the webhook.
func review(t *testing.T, pki *lab.PKI, webhook string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pki.CA.Pool(), ServerName: "localhost"},
	}}
	defer client.CloseIdleConnections()
	request := lab.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+webhook+"/validate/"+string(manager),
		strings.NewReader(lab.Review("demo", 0))))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Traceparent", "00-"+trace+"-"+caller+"-01")
	answer := lab.Must(client.Do(request))
	_ = answer.Body.Close() // Only the status counts.
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("the review is answered %s", answer.Status)
	}
}

// startAgent runs an agent of an author in this process: that of this repository, with traces. It
// returns the address of the webhook.
func startAgent(t *testing.T, pki *lab.PKI, controlPlane string, exporter sdktrace.SpanExporter) (webhook string) {
	t.Helper()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	ca, cert, key := pki.RuntimeVolume("runtime-1", "runtime-1.example.com").Paths()
	webhook, metrics := lab.Address(lab.FreePort(t)), lab.Address(lab.FreePort(t))
	running := lab.Must(agent.New(t.Context(), agent.Parts{Tracing: opentelemetry.New(provider)}, agent.Options{
		Managers:       []core.Manager{manager},
		Keys:           agent.Keys{Client: keys.Paths{CA: ca, Certificate: cert, Key: key}},
		ControlPlane:   agent.ControlPlane{Address: controlPlane},
		Webhook:        agent.Webhook{Address: webhook},
		MetricsAddress: metrics,
		Outbox:         outbox.Options{Resend: []time.Duration{}},
	}))
	lab.Run(t, "agent", running.Start)
	lab.Eventually(t, 3*time.Minute, "the agent is ready", func() bool {
		_, err := lab.Get(t.Context(), "http://"+metrics+"/readyz")
		return err == nil
	})
	return webhook
}
