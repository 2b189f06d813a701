package traces

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/runtime-watcher/runtime-watcher/adapters/opentelemetry"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// spansFile names the file to which the agent of this test writes its spans. With it, the test binary is that agent.
const spansFile = "SPANS_FILE"

// runAgent is an agent of an author: that of this repository, with traces.
func runAgent() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	file, err := os.OpenFile(os.Getenv(spansFile), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(&lines{json.NewEncoder(file)}),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	running, err := agent.New(ctx, agent.Parts{Tracing: opentelemetry.New(provider)}, agent.Options{
		Managers:       []core.Manager{manager},
		Keys:           agent.Keys{Client: keys.Paths{CA: os.Getenv("CA_CERT"), Certificate: os.Getenv("TLS_CERT"), Key: os.Getenv("TLS_KEY")}},
		ControlPlane:   agent.ControlPlane{Address: os.Getenv("KCP_ADDR")},
		Webhook:        agent.Webhook{Address: "127.0.0.1:" + os.Getenv("WEBHOOK_PORT")},
		MetricsAddress: "127.0.0.1:" + os.Getenv("METRICS_PORT"),
		Outbox:         outbox.Options{Resend: []time.Duration{}},
		Logger:         slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	return running.Start(ctx)
}

// lines writes each span as a line of JSON.
type lines struct{ encoder *json.Encoder }

// ExportSpans implements [sdktrace.SpanExporter].
func (l *lines) ExportSpans(_ context.Context, ended []sdktrace.ReadOnlySpan) error {
	for _, s := range ended {
		if err := l.encoder.Encode(newSpan("agent", s)); err != nil {
			return err
		}
	}
	return nil
}

// Shutdown implements [sdktrace.SpanExporter].
func (*lines) Shutdown(context.Context) error { return nil }

// span is a span of one of the processes.
type span struct {
	Process string    `json:"process"`
	Name    string    `json:"name"`
	Trace   string    `json:"trace"`
	ID      string    `json:"id"`
	Parent  string    `json:"parent"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
}

func newSpan(process string, s sdktrace.ReadOnlySpan) span {
	return span{
		process, s.Name(), s.SpanContext().TraceID().String(), s.SpanContext().SpanID().String(),
		s.Parent().SpanID().String(), s.StartTime(), s.EndTime(),
	}
}

func (s *span) String() string {
	return fmt.Sprintf("%-13s %-9s %s below %s", s.Process, s.Name, s.ID, s.Parent)
}
