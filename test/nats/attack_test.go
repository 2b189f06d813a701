package nats_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	attacker core.RuntimeID = "runtime-1"
	victim   core.RuntimeID = "runtime-2"
	other    core.Manager   = "other-operator"
)

// site is a server with two runtimes and the operators of two managers.
type site struct {
	*lab.Broker

	arrivals lab.Arrivals
}

func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteWith(t, lab.BrokerOptions{})
}

func newSiteWith(t *testing.T, opts lab.BrokerOptions) *site {
	t.Helper()
	b := lab.StartBroker(t, opts, lab.RuntimeUser(attacker, manager), lab.RuntimeUser(victim, manager, other), lab.OperatorUser(manager), lab.OperatorUser(other))
	l := &site{Broker: b}
	consume(t, b.Operator(manager), &l.arrivals, natsjetstream.Options{})
	for _, m := range []core.Manager{manager, other} {
		lab.Must(lab.Must(jetstream.New(b.Operator(m))).CreateStream(t.Context(), natsjetstream.StreamConfig(m)))
	}
	return l
}

// TestStrangers are attempts to connect.
func TestStrangers(t *testing.T) {
	t.Parallel()
	l := newSite(t)
	foreign := lab.Must(testpki.NewCA("foreign", testpki.Options{}))
	past := time.Now().Add(-time.Minute)
	names := []string{lab.RuntimeDomain(attacker)}
	for _, row := range []struct {
		name string
		leaf *testpki.Leaf
		want string // in the error; empty: the server accepts the connection
	}{
		{"a runtime", l.Certificate(attacker), ""},
		{"no certificate", nil, "tls"},
		{"a certificate of another CA", lab.Must(foreign.Client(string(attacker), testpki.Options{DNSNames: names})), "tls"},
		{"a self-signed certificate", lab.Must(testpki.SelfSigned(string(attacker), testpki.Options{DNSNames: names})), "tls"},
		{"an expired certificate", lab.Must(l.CA.Client(string(attacker), testpki.Options{DNSNames: names, NotAfter: past})), "tls"},
		{"a server's certificate", lab.Must(l.CA.Server(string(attacker), testpki.Options{DNSNames: names})), "tls"},
		{"the name of a runtime with another SAN", lab.Must(l.CA.Client(string(attacker), testpki.Options{DNSNames: []string{"x.example.com"}})), "Authorization"},
		{"the name of a runtime without SAN", lab.Must(l.CA.Client(string(attacker), testpki.Options{})), "Authorization"},
		{"a wildcard as SAN", lab.Must(l.CA.Client(string(attacker), testpki.Options{DNSNames: []string{"*.example.com"}})), "Authorization"},
	} {
		t.Run(row.name, func(t *testing.T) {
			conn, err := l.Dial(row.leaf)
			if conn != nil {
				conn.Close()
			}
			switch {
			case row.want == "" && err != nil:
				t.Errorf("connecting fails: %v", err)
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
				t.Errorf("connecting = %v, want an error with %q", err, row.want)
			}
		})
	}
}

// TestAttacks are requests of a runtime with a valid certificate. The server must deny each, except
// those that the operator or the stream refuses.
func TestAttacks(t *testing.T) {
	t.Parallel()
	l := newSite(t)
	own := natsjetstream.Subject(manager, attacker)
	stream := natsjetstream.StreamConfig(manager).Name
	for _, row := range []struct {
		name    string
		subject string
	}{
		{"publishes as another runtime", natsjetstream.Subject(manager, victim)},
		{"publishes as no runtime", "watch." + string(manager) + "."},
		{"publishes below its own subject", own + ".x"},
		{"publishes to another manager", natsjetstream.Subject(other, attacker)},
		{"answers another runtime", natsjetstream.InboxPrefix(victim) + ".x"},
		{"answers an operator", "_INBOX.operator." + string(manager) + ".x"},
		{"confirms a refusal of another runtime", "_INBOX.operator." + string(manager) + ".refused." + string(victim) + ".x"},
		{"deletes the stream", "$JS.API.STREAM.DELETE." + stream},
		{"purges the stream", "$JS.API.STREAM.PURGE." + stream},
		{"changes the stream", "$JS.API.STREAM.UPDATE." + stream},
		{"makes a stream", "$JS.API.STREAM.CREATE.mine"},
		{"reads a message of the stream", "$JS.API.STREAM.MSG.GET." + stream},
		{"deletes a message of the stream", "$JS.API.STREAM.MSG.DELETE." + stream},
		{"makes a consumer", "$JS.API.CONSUMER.CREATE." + stream},
		{"takes the next message", "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + string(manager)},
		{"deletes the consumer", "$JS.API.CONSUMER.DELETE." + stream + "." + string(manager)},
		{"acknowledges a message", "$JS.ACK." + stream + "." + string(manager) + ".1.1.1.1700000000000000000.0"},
		{"asks the system account", "$SYS.REQ.SERVER.PING"},
	} {
		t.Run(row.name, func(t *testing.T) {
			l.denied(t, func(c *nats.Conn) error { return c.Publish(row.subject, []byte("x")) })
		})
	}
	for _, row := range []struct {
		name    string
		subject string
	}{
		{"listens to everything", ">"},
		{"listens to all events", "watch.>"},
		{"listens to the events of another runtime", natsjetstream.Subject(manager, victim)},
		{"listens to its own events", own},
		{"listens to the answers of another runtime", natsjetstream.InboxPrefix(victim) + ".>"},
		{"listens to the batches and answers of operators", natsjetstream.InboxPrefix("operator") + ".>"},
		{"listens to all answers", "_INBOX.>"},
		{"listens to requests for the stream", "$JS.API.>"},
		{"listens to advisories", "$JS.EVENT.>"},
	} {
		t.Run(row.name, func(t *testing.T) {
			l.denied(t, func(c *nats.Conn) error {
				_, err := c.SubscribeSync(row.subject)
				return err
			})
		})
	}
	l.unharmed(t)
}

// denied fails the test unless the server denies an act of the attacker.
func (l *site) denied(t *testing.T, act func(*nats.Conn) error) {
	t.Helper()
	refused := make(chan error, 1)
	conn, err := l.Dial(l.Certificate(attacker), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case refused <- err:
		default:
		}
	}))
	lab.NoError(t, err)
	defer conn.Close()
	lab.NoError(t, act(conn))
	lab.NoError(t, conn.FlushTimeout(patience))
	select {
	case err := <-refused:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("the server answers %v, want a violation of permissions", err)
		}
	case <-time.After(patience):
		t.Error("the server does not deny it")
	}
}

// unharmed fails the test unless the events of the victim arrive, and no others.
func (l *site) unharmed(t *testing.T) {
	t.Helper()
	if n := l.arrivals.Total(); n > 0 {
		t.Errorf("%d events arrived, want none", n)
	}
	batch := batchOf(victim, "object")
	if err := l.Forwarder(victim, answered).Forward(t.Context(), manager, batch); err != nil {
		t.Errorf("the victim cannot publish any more: %v", err)
	}
	if l.arrivals.Count(of(victim, "object")) == 0 {
		t.Error("the event of the victim did not arrive")
	}
}

func batchOf(source core.RuntimeID, names ...string) core.Batch {
	batch := core.Batch{Source: source, Epoch: "epoch"}
	for i, name := range names {
		batch.Events = append(batch.Events, core.Numbered{
			Sequence: uint64(i + 1), ID: fmt.Sprintf("%s-%s-%d", source, name, i),
			WatchEvent: core.WatchEvent{
				Watched: types.NamespacedName{Namespace: "default", Name: name}, WatchedGVK: gvk, Generation: 1,
			},
		})
	}
	return batch
}

// TestHostileMessages are messages under the own name of the attacker: the server allows them.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	l := newSite(t)
	forged := lab.Must(contract.V3.Encode(ptr(batchOf(victim, "forged"))))
	honest := lab.Must(contract.V3.Encode(ptr(batchOf(attacker, "honest"))))
	for _, row := range []struct {
		name    string
		body    []byte
		headers map[string]string
		want    string // in the error of the stream; empty: it takes the message
	}{
		{"claims to be the victim", forged.Body, nil, ""},
		{"is not of the contract", []byte("{}"), nil, ""},
		{"replaces all messages", honest.Body, map[string]string{"Nats-Rollup": "all"}, "rollup"},
		{"names another stream", honest.Body, map[string]string{"Nats-Expected-Stream": "watch-other-operator"}, "stream"},
		{"is larger than a batch", make([]byte, 300<<10), nil, "size"},
		{
			"wants the answer of the operator elsewhere", honest.Body,
			map[string]string{"Watch-Answer": "$JS.API.STREAM.DELETE.watch-my-operator"},
			"",
		},
		{
			"wants the answer of the operator at the victim", honest.Body,
			map[string]string{"Watch-Answer": natsjetstream.InboxPrefix(victim) + ".x"},
			"",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			conn := lab.Must(l.Dial(l.Certificate(attacker), nats.CustomInboxPrefix(natsjetstream.InboxPrefix(attacker))))
			defer conn.Close()
			msg := nats.NewMsg(natsjetstream.Subject(manager, attacker))
			msg.Data = row.body
			for name, value := range row.headers {
				msg.Header.Set(name, value)
			}
			_, err := lab.Must(jetstream.New(conn)).PublishMsg(t.Context(), msg)
			if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
				t.Errorf("the stream answers %v, want an error with %q", err, row.want)
			}
		})
	}
	if len(l.arrivals.Of("forged")) > 0 {
		t.Error("the forged event arrived")
	}
	err := l.Forwarder(victim, answered).Forward(t.Context(), manager, batchOf(victim, "object"))
	if err != nil || l.arrivals.Count(of(victim, "object")) == 0 {
		t.Errorf("the victim is harmed: Forward = %v", err)
	}
}

// TestAcknowledgementsElsewhere are messages under the own name of the attacker. The server writes
// its acknowledgement to any subject that the attacker names. A server before strict JSON takes that
// text for a request: the stream itself must deny to be purged.
func TestAcknowledgementsElsewhere(t *testing.T) {
	t.Parallel()
	for name, server := range lab.NATSServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testAcknowledgementsElsewhere(t, newSiteWith(t, lab.BrokerOptions{Program: server, Lenient: name == "embedded"}))
		})
	}
}

func testAcknowledgementsElsewhere(t *testing.T, l *site) {
	t.Helper()
	publisher := lab.Must(l.Dial(l.Certificate(victim), nats.CustomInboxPrefix(natsjetstream.InboxPrefix(victim))))
	defer publisher.Close()
	kept := lab.Must(contract.V3.Encode(ptr(batchOf(victim, "kept"))))
	lab.Must(lab.Must(jetstream.New(publisher)).Publish(t.Context(), natsjetstream.Subject(other, victim), kept.Body))
	stream := natsjetstream.StreamConfig(other).Name
	conn := lab.Must(l.Dial(l.Certificate(attacker)))
	defer conn.Close()
	for _, reply := range []string{
		"$JS.API.STREAM.PURGE." + stream, "$JS.API.STREAM.DELETE." + stream, "$JS.API.STREAM.MSG.DELETE." + stream,
		"$JS.ACK." + stream + "." + string(other) + ".1.1.1.1700000000000000000.0",
		natsjetstream.Subject(other, victim),
	} {
		lab.NoError(t, conn.PublishRequest(natsjetstream.Subject(manager, attacker), reply, []byte("{}")))
	}
	lab.NoError(t, conn.FlushTimeout(patience))
	var late lab.Arrivals
	lab.Run(t, "consumer", lab.Must(natsjetstream.NewConsumer(l.Operator(other), lab.Pinning(),
		map[core.Manager]core.Handler{other: taking(&late)}, natsjetstream.Options{Peer: lab.MappedPeer})).Start)
	lab.Eventually(t, patience, "the event of the victim arrives", func() bool { return len(late.Of("kept")) > 0 })
	if late.Total() != 1 {
		t.Errorf("%d events arrived, want 1", late.Total())
	}
}

func ptr[T any](value T) *T { return &value }

// The server checks a certificate when a connection is opened, and not after. docs/security.md
// names it as a limit.
func TestOpenConnectionOutlivesItsCertificate(t *testing.T) {
	t.Parallel()
	l := newSite(t)
	var (
		leaf    *testpki.Leaf
		conn    *nats.Conn
		expires time.Time
	)
	// On a busy machine, the first certificates may expire before the server has seen them.
	for life := 2 * time.Second; conn == nil && life < patience; life *= 2 {
		expires = time.Now().Add(life)
		leaf = lab.Must(l.CA.Client(string(attacker), testpki.Options{DNSNames: []string{lab.RuntimeDomain(attacker)}, NotAfter: expires}))
		conn, _ = l.Dial(leaf, nats.CustomInboxPrefix(natsjetstream.InboxPrefix(attacker)), nats.NoReconnect())
	}
	defer conn.Close()
	lab.Eventually(t, patience, "the certificate has expired", func() bool {
		second, err := l.Dial(leaf)
		if err == nil {
			second.Close()
		}
		return err != nil && time.Now().After(expires)
	})
	f := lab.Must(natsjetstream.NewForwarder(conn, attacker, natsjetstream.ForwarderOptions{}))
	if err := f.Forward(t.Context(), manager, batchOf(attacker, "object")); err != nil {
		t.Errorf("Forward on a connection that was opened before = %v; if the server ends it now, change the documents", err)
	}
}
