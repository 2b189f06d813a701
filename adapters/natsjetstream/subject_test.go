package natsjetstream_test

import (
	"context"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

// Every name is one token, and no two names share one.
func TestSubject(t *testing.T) {
	t.Parallel()

	seen := map[string]core.RuntimeID{}
	for _, runtime := range []core.RuntimeID{
		"runtime-1", "runtime.1", "runtime%2E1", "a b", "*", ">", "ä", "a/b", "%", "%2e",
	} {
		subject := natsjetstream.Subject("my-operator", runtime)
		parts := strings.Split(subject, ".")
		if len(parts) != 3 || strings.ContainsAny(parts[2], "*> \t\r\n\x00") {
			t.Errorf("the subject of %q is %q, want one token for the runtime", runtime, subject)
		}
		if other, taken := seen[subject]; taken {
			t.Errorf("%q and %q share the subject %q", runtime, other, subject)
		}

		seen[subject] = runtime
		if got, err := natsjetstream.ParseSubject(subject); err != nil || got != runtime {
			t.Errorf("the subject of %q names %q, %v", runtime, got, err)
		}
	}

	for _, subject := range []string{
		"", "watch.m", "watch.m.", "watch.m.r.x", "other.m.r", "watch.m.%zz", "watch.m.%2e", "watch.m.%00", "watch.m.a%0A",
		"watch.m.%20", "watch.m." + strings.Repeat("a", 2049),
	} {
		if got, err := natsjetstream.ParseSubject(subject); err == nil {
			t.Errorf("subject %q names %q, want an error", subject, got)
		}
	}
}

func TestNewRefusesWhatIsMissing(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	if _, err := natsjetstream.NewForwarder(nil, "runtime-1", natsjetstream.ForwarderOptions{}); err == nil {
		t.Error("NewForwarder accepts a nil connection")
	}
	if _, err := natsjetstream.NewForwarder(b.connect(), "line\nbreak", natsjetstream.ForwarderOptions{}); err == nil ||
		!strings.Contains(err.Error(), "printed") {
		t.Errorf("NewForwarder = %v, want a refusal of a name that cannot be printed", err)
	}

	if _, err := natsjetstream.NewForwarder(b.connect(), "runtime-1", natsjetstream.ForwarderOptions{}); err == nil {
		t.Error("NewForwarder accepts a connection with the inbox prefix of all clients")
	}

	_, err := natsjetstream.NewConsumer(nil, nil, map[core.Manager]core.Handler{"Not a label": nil},
		natsjetstream.Options{MaxInFlight: -1})
	if core.ReasonOf(err) != "invalid_manager" {
		t.Errorf("NewConsumer = %v, want the reason invalid_manager", err)
	}

	for _, want := range []string{"connection", "verifier", "handler", "MaxInFlight"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewConsumer = %v, want all faults, also of %s", err, want)
		}
	}
}

// The code of docs/platforms/nats.md runs. The server here has no TLS, so that the runtime cannot connect.
func TestDocumentedSetUp(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveOperator(ctx, b.connect(), allowAll(), &coretest.Recorder{}) }()
	b.awaitStream(manager)
	runtime, conn, err := connectRuntime(b.addr, "runtime-1", noKeys)
	check(t, err)
	defer conn.Close()

	if err := runtime.Forward(t.Context(), manager, numbered(1, "a")); core.ReasonOf(err) != "disconnected" {
		t.Errorf("Forward without a connection = %v (reason %q), want disconnected", err, core.ReasonOf(err))
	}

	cancel()
	if err := <-served; err != nil {
		t.Errorf("Start = %v, want nil", err)
	}
}
