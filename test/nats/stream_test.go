package nats_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// A release changes the limits of a stream in use, and its replicas in a cluster. No message is lost.
func TestReleaseChangesTheStream(t *testing.T) {
	t.Parallel()
	for name, p := range lab.NATSServers(t) {
		for nodes := 1; nodes <= 3; nodes += 2 {
			t.Run(fmt.Sprintf("%s/%d", name, nodes), func(t *testing.T) {
				t.Parallel()
				testReleaseChangesTheStream(t, lab.StartBroker(t, lab.BrokerOptions{Program: p, Nodes: nodes}, users()...))
			})
		}
	}
}

func testReleaseChangesTheStream(t *testing.T, b *lab.Broker) {
	t.Helper()
	conn, config := b.Operator(manager), natsjetstream.StreamConfig(manager)
	lab.Eventually(t, patience, "the stream is created", func() bool { return ensure(t, conn, config) == nil })
	f := b.Forwarder(sender, natsjetstream.ForwarderOptions{AnswerWait: -1})
	const stored = 20
	for n := range stored {
		mustForward(t, f, batchOf(sender, fmt.Sprintf("object-%d", n)))
	}
	changed := config
	const less = 64 << 20
	changed.Replicas, changed.MaxMsgsPerSubject, changed.MaxBytes = len(b.Nodes), 2*config.MaxMsgsPerSubject, less
	lab.Eventually(t, patience, "the stream is changed", func() bool { return ensure(t, conn, changed) == nil })
	var info *jetstream.StreamInfo
	lab.Eventually(t, patience, "the stream has a leader", func() bool {
		stream, err := lab.Must(jetstream.New(conn)).Stream(t.Context(), config.Name) // With a new state.
		if err == nil {
			info = stream.CachedInfo()
		}
		return err == nil
	})
	got := info.Config
	if got.Replicas != len(b.Nodes) || got.MaxBytes != less || got.MaxMsgsPerSubject != 2*config.MaxMsgsPerSubject {
		t.Errorf("the stream has %d replicas, %d messages of a runtime and %d bytes", got.Replicas, got.MaxMsgsPerSubject, got.MaxBytes)
	}
	aged, fewer, smaller := changed, changed, changed
	aged.MaxAge, fewer.MaxMsgsPerSubject, smaller.MaxBytes = 1, stored/2, int64(info.State.Bytes/2)
	for _, config := range []jetstream.StreamConfig{aged, fewer, smaller} {
		if ensure(t, conn, config) == nil {
			t.Error("EnsureStream sets a limit with which a server removes messages")
		}
	}
	var arrivals lab.Arrivals
	consume(t, conn, &arrivals, natsjetstream.Options{})
	lab.Eventually(t, patience, "all stored events arrive", func() bool { return arrivals.Total() >= stored })
}

func ensure(t *testing.T, conn *nats.Conn, config jetstream.StreamConfig) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // A request without a leader has no answer.
	defer cancel()
	return natsjetstream.EnsureStream(ctx, conn, config)
}

// mustForward retries while a cluster elects leaders.
func mustForward(t testing.TB, f core.Forwarder, batch core.Batch) {
	t.Helper()
	lab.Eventually(t, patience, "the batch is stored", func() bool { return f.Forward(t.Context(), manager, batch) == nil })
}

// Replicated streams have an answer of their own for a heartbeat that finds another message. The
// consumer warns about a server that takes an acknowledgement for a request to change their leader. It
// leaves a server that stands still.
func TestHeartbeatsInACluster(t *testing.T) {
	t.Parallel()
	for name, p := range lab.NATSServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := lab.StartBroker(t, lab.BrokerOptions{Program: p, Nodes: 3}, users()...)
			// A client leaves a server that does not answer two pings.
			soon := nats.PingInterval(2 * time.Second)
			conn, config := b.Operator(manager, soon), natsjetstream.StreamConfig(manager)
			config.Replicas = len(b.Nodes)
			lab.Eventually(t, patience, "the stream is created", func() bool { return ensure(t, conn, config) == nil })
			f := b.Forwarder(sender, natsjetstream.ForwarderOptions{AnswerWait: -1}, soon)
			for n := range 10 {
				mustForward(t, f, core.Batch{Epoch: "epoch", Heartbeat: &core.Heartbeat{ID: strconv.Itoa(n), Number: uint64(n + 1)}})
			}
			stream := lab.Must(lab.Must(jetstream.New(conn)).Stream(t.Context(), config.Name))
			awaitMessages(t, stream, 1)
			var (
				log      bytes.Buffer
				arrivals lab.Arrivals
			)
			logger := slog.New(slog.NewTextHandler(&log, nil))
			stop := consume(t, conn, &arrivals, natsjetstream.Options{Logger: logger})
			awaitMessages(t, stream, 0)
			frozen := b.Nodes[slices.IndexFunc(b.Nodes, func(n *lab.BrokerNode) bool {
				return strings.HasSuffix(conn.ConnectedUrl(), n.Addr)
			})]
			frozen.Freeze()
			lab.Eventually(t, 3*time.Minute, "an event arrives past the frozen server", func() bool {
				_ = f.Forward(t.Context(), manager, batchOf(sender, "object"))
				return arrivals.Count(of(sender, "object")) > 0
			})
			frozen.Thaw()
			stop()
			if warned := strings.Contains(log.String(), "strict JSON"); warned != (name != "embedded") {
				t.Errorf("the consumer warns about the server: %t", warned)
			}
		})
	}
}

// A runtime that is named as the operators would get their batches and answers.
func TestReservedName(t *testing.T) {
	t.Parallel()
	for _, user := range []natsjetstream.User{
		lab.RuntimeUser("operator", manager), {Name: lab.RuntimeDomain("operator"), Subscribe: []string{"_INBOX.operator.>"}},
	} {
		if text, err := natsjetstream.Authorization(user); err == nil {
			t.Errorf("a configuration is made with a runtime named operator:\n%s", text)
		}
	}
	b := lab.StartBroker(t, lab.BrokerOptions{}, lab.OperatorUser(manager), natsjetstream.User{
		Name: lab.RuntimeDomain("operator"), Publish: []string{">"}, Subscribe: []string{"_INBOX.>"},
	})
	var arrivals lab.Arrivals
	consume(t, b.Operator(manager), &arrivals, natsjetstream.Options{})
	conn := lab.Must(b.Dial(b.Certificate("operator"), nats.CustomInboxPrefix(natsjetstream.InboxPrefix("operator"))))
	defer conn.Close()
	if _, err := natsjetstream.NewForwarder(conn, "operator", natsjetstream.ForwarderOptions{}); err == nil {
		t.Error("NewForwarder accepts a runtime named operator")
	}
	streams := lab.Must(jetstream.New(conn))
	body := lab.Must(contract.V3.Encode(ptr(batchOf("operator", "object")))).Body
	lab.Eventually(t, patience, "the message is stored", func() bool {
		_, err := streams.Publish(t.Context(), natsjetstream.Subject(manager, "operator"), body)
		return err == nil
	})
	stream := lab.Must(lab.Must(jetstream.New(b.Operator(manager))).Stream(t.Context(), "watch-"+string(manager)))
	awaitMessages(t, stream, 0)
	if arrivals.Total() > 0 {
		t.Error("an event of a runtime named operator is delivered")
	}
}

// Each name is that of one client, and can be written.
func TestAuthorizationRefusesNames(t *testing.T) {
	t.Parallel()
	good := lab.RuntimeUser(attacker, manager)
	for _, name := range []string{"", `a"b`, "a b", "ä.example.com", good.Name} {
		bad := lab.RuntimeUser(victim, manager)
		bad.Name = name
		if _, err := natsjetstream.Authorization(good, bad); err == nil {
			t.Errorf("a user named %q is accepted", name)
		}
	}
	if _, err := natsjetstream.Authorization(good, lab.RuntimeUser("", manager)); err == nil || !strings.Contains(err.Error(), "with Runtime only") {
		t.Errorf("a user with managers and without a runtime: %v", err)
	}
	if _, err := natsjetstream.Authorization(good, lab.RuntimeUser(victim, manager)); err != nil {
		t.Error(err)
	}
}
