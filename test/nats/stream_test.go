package nats_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// A release changes the limits of a stream in use, and its replicas in a cluster. No message is lost.
func TestReleaseChangesTheStream(t *testing.T) {
	onEach(t, func(t *testing.T, _, program string) {
		t.Helper()
		for nodes := 1; nodes <= 3; nodes += 2 {
			t.Run(strconv.Itoa(nodes), func(t *testing.T) {
				t.Parallel()
				testReleaseChangesTheStream(t, lab.StartBroker(t, lab.BrokerOptions{Program: program, Nodes: nodes}, users()...))
			})
		}
	})
}

func testReleaseChangesTheStream(t *testing.T, b *lab.Broker) {
	t.Helper()
	conn := b.Operator(manager)
	config := natsjetstream.StreamConfig(manager)
	lab.Eventually(t, lab.Patience, "the stream is created", func() bool { return ensure(t, conn, config) == nil })
	f := b.Forwarder(sender, natsjetstream.ForwarderOptions{AnswerWait: -1})
	const stored = 20
	for n := range stored {
		mustForward(t, f, batchOf(sender, fmt.Sprintf("object-%d", n)))
	}
	changed := config
	const less = 64 << 20
	changed.Replicas = len(b.Nodes)
	changed.MaxMsgsPerSubject = 2 * config.MaxMsgsPerSubject
	changed.MaxBytes = less
	lab.Eventually(t, lab.Patience, "the stream is changed", func() bool { return ensure(t, conn, changed) == nil })
	var info *jetstream.StreamInfo
	lab.Eventually(t, lab.Patience, "the stream has a leader", func() bool {
		stream, err := lab.Must(jetstream.New(conn)).Stream(t.Context(), config.Name) // With a new state.
		if err == nil {
			info = stream.CachedInfo()
		}
		return err == nil
	})
	got := info.Config
	lab.Same(t, "replicas, messages of a runtime, and bytes", []int64{int64(len(b.Nodes)), 2 * config.MaxMsgsPerSubject, less},
		[]int64{int64(got.Replicas), got.MaxMsgsPerSubject, got.MaxBytes})
	aged := changed
	fewer := changed
	smaller := changed
	aged.MaxAge, fewer.MaxMsgsPerSubject, smaller.MaxBytes = 1, stored/2, int64(info.State.Bytes/2)
	for _, config := range []jetstream.StreamConfig{aged, fewer, smaller} {
		lab.Fails(t, "a limit with which a server removes messages", ensure(t, conn, config))
	}
	var arrivals lab.Arrivals
	consume(t, conn, &arrivals, natsjetstream.Options{})
	lab.Eventually(t, lab.Patience, "all stored events arrive", func() bool { return arrivals.Total() >= stored })
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
	lab.Eventually(t, lab.Patience, "the batch is stored", func() bool { return f.Forward(t.Context(), manager, batch) == nil })
}

// Replicated streams have an answer of their own for a heartbeat that finds another message. The
// consumer warns about a server that takes an acknowledgement for a request to change their leader. It
// leaves a server that stands still.
func TestHeartbeatsInACluster(t *testing.T) {
	onEach(t, func(t *testing.T, name, p string) {
		t.Helper()
		b := lab.StartBroker(t, lab.BrokerOptions{Program: p, Nodes: 3}, users()...)
		// A client leaves a server that does not answer two pings.
		soon := nats.PingInterval(2 * time.Second)
		conn := b.Operator(manager, soon)
		config := natsjetstream.StreamConfig(manager)
		config.Replicas = len(b.Nodes)
		lab.Eventually(t, lab.Patience, "the stream is created", func() bool { return ensure(t, conn, config) == nil })
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
		lab.Same(t, "the consumer warns about the server", name != "embedded", strings.Contains(log.String(), "strict JSON"))
	})
}

// A runtime that is named as the operators would get their batches and answers.
func TestReservedName(t *testing.T) {
	t.Parallel()
	for _, user := range []natsjetstream.User{
		lab.RuntimeUser("operator", manager), {Name: lab.RuntimeDomain("operator"), Subscribe: []string{"_INBOX.operator.>"}},
	} {
		_, err := natsjetstream.Authorization(user)
		lab.Fails(t, "a runtime named operator", err)
	}
	b := lab.StartBroker(t, lab.BrokerOptions{}, lab.OperatorUser(manager), natsjetstream.User{
		Name: lab.RuntimeDomain("operator"), Publish: []string{">"}, Subscribe: []string{"_INBOX.>"},
	})
	var arrivals lab.Arrivals
	consume(t, b.Operator(manager), &arrivals, natsjetstream.Options{})
	conn := lab.Must(b.Dial(b.Certificate("operator"), nats.CustomInboxPrefix(natsjetstream.InboxPrefix("operator"))))
	defer conn.Close()
	_, err := natsjetstream.NewForwarder(conn, "operator", natsjetstream.ForwarderOptions{})
	lab.Fails(t, "a forwarder named operator", err)
	streams := lab.Must(jetstream.New(conn))
	lab.Eventually(t, lab.Patience, "the message is stored", func() bool {
		_, err := streams.Publish(t.Context(), natsjetstream.Subject(manager, "operator"), encoded("operator", "object"))
		return err == nil
	})
	stream := lab.Must(lab.Must(jetstream.New(b.Operator(manager))).Stream(t.Context(), "watch-"+string(manager)))
	awaitMessages(t, stream, 0)
	lab.Same(t, "delivered events", 0, arrivals.Total())
}

// Each name is that of one client, and can be written.
func TestAuthorizationRefusesNames(t *testing.T) {
	t.Parallel()
	good := lab.RuntimeUser(attacker, manager)
	for _, name := range []string{"", `a"b`, "a b", "ä.example.com", good.Name} {
		bad := lab.RuntimeUser(victim, manager)
		bad.Name = name
		_, err := natsjetstream.Authorization(good, bad)
		lab.Fails(t, "a user named "+name, err)
	}
	_, err := natsjetstream.Authorization(good, lab.RuntimeUser("", manager))
	lab.Fails(t, "a user with managers and without a runtime", err, "only with Runtime")
	lab.Must(natsjetstream.Authorization(good, lab.RuntimeUser(victim, manager)))
}

// TestRepeatedAttemptIsStoredOnce stops the server after it has a message, so that the result is
// unknown to the forwarder.
func TestRepeatedAttemptIsStoredOnce(t *testing.T) {
	onEach(t, func(t *testing.T, _, p string) {
		t.Helper()
		b := lab.StartBroker(t, lab.BrokerOptions{Program: p}, users()...)
		stream := createStream(t, b, manager)
		f := b.Forwarder(sender, natsjetstream.ForwarderOptions{AnswerWait: -1})
		batch := batchOf(sender, "object")
		b.Nodes[0].Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		lab.Fails(t, "Forward to a server that stands still", f.Forward(ctx, manager, batch))
		b.Nodes[0].Thaw()
		mustForward(t, f, batch)
		awaitMessages(t, stream, 1)
	})
}

// A consumer is not ready while its only server stands still, and ready again afterwards.
func TestFrozenServerIsNotReady(t *testing.T) {
	t.Parallel()
	b := lab.StartBroker(t, lab.BrokerOptions{}, users()...)
	c := lab.Must(natsjetstream.NewConsumer(b.Operator(manager, nats.PingInterval(time.Second)), lab.Pinning(),
		map[core.Manager]core.Handler{manager: taking(new(lab.Arrivals))}, natsjetstream.Options{Peer: lab.MappedPeer}))
	lab.Run(t, "consumer", c.Start)
	lab.Eventually(t, lab.Patience, "the consumer is ready", func() bool { return c.Ready() == nil })
	b.Nodes[0].Freeze()
	lab.Eventually(t, lab.Patience, "the consumer is not ready", func() bool { return errors.Is(c.Ready(), core.ErrNotReady) })
	b.Nodes[0].Thaw()
	lab.Eventually(t, lab.Patience, "the consumer is ready again", func() bool { return c.Ready() == nil })
}

// TestCheck runs "agent check" with TRANSPORT=nats. The runtime may publish to a manager without a
// stream, too.
func TestCheck(t *testing.T) {
	const absent = "absent"
	onEach(t, func(t *testing.T, _, p string) {
		t.Helper()
		pki := lab.NewPKI(t)
		b := lab.StartBroker(t, lab.BrokerOptions{Program: p, CA: pki.CA},
			lab.OperatorUser(manager), lab.RuntimeUser(attacker, manager, absent))
		watched := lab.Must(fleet.New(fleet.Options{}))
		stop := consume(t, b.Operator(manager), new(lab.Arrivals), natsjetstream.Options{Fleet: watched})
		sound := map[string]string{
			"TRANSPORT": "nats", "CONTROL_PLANE_ADDRESS": b.Nodes[0].Addr, "MANAGERS": string(manager), "FORWARD_TIMEOUT": "10s",
		}
		maps.Copy(sound, lab.VolumeEnv(pki.RuntimeVolume(string(attacker), lab.RuntimeDomain(attacker))))
		check := func(name string, change map[string]string, code int, line string) {
			t.Helper()
			env := maps.Clone(sound)
			maps.Copy(env, change)
			out, got := lab.Check(t, env)
			if got != code || !regexp.MustCompile(`^`+line).MatchString(lab.Telling(out, code)) {
				t.Errorf("%s: exit code %d, want %d and a match of %s:\n%s", name, got, code, line, out)
			}
		}
		lab.Eventually(t, lab.Patience, "a check of a sound set-up is good", func() bool {
			_, code := lab.Check(t, sound)
			return code == 0
		})
		check("none", nil, 0, `ok    heartbeat +manager my-operator acknowledges`)
		other := lab.VolumeEnv(lab.NewPKI(t).RuntimeVolume(string(attacker), lab.RuntimeDomain(attacker)))
		check("wrong CA", map[string]string{"CA_CERT": other["CA_CERT"]}, 1, `FAIL  TLS .*unknown authority.*CA_CERT`)
		other["CA_CERT"] = sound["CA_CERT"]
		check("untrusted client", other, 1, `FAIL  TLS .*want a control plane that accepts TLS_CERT`)
		check("wrong name", map[string]string{"CONTROL_PLANE_SERVER_NAME": "other"}, 1, `FAIL  TLS .*set CONTROL_PLANE_SERVER_NAME`)
		check("closed port", map[string]string{"CONTROL_PLANE_ADDRESS": lab.Address(lab.FreePort(t))}, 1, `FAIL  connection .*refused`)
		check("no user", lab.VolumeEnv(pki.RuntimeVolume(string(victim), lab.RuntimeDomain(victim))), 1,
			`FAIL  TLS .*Authorization Violation.*want a user with a SAN of TLS_CERT`)
		check("no right", map[string]string{"MANAGERS": "nobody"}, 1, `FAIL  heartbeat .*forbidden.*add this manager to the user`)
		check("no stream", map[string]string{"MANAGERS": absent}, 1, `FAIL  heartbeat .*unknown_manager.*start the operator`)
		lab.Same(t, "state after checks without an agent", fleet.Unknown, watched.Get(attacker, manager).State)
		stop()
		check("no operator", map[string]string{"FORWARD_TIMEOUT": "2s"}, 1, `FAIL  heartbeat .*timeout.*load of the operator`)
	})
}
