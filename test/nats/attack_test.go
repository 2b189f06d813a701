package nats_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
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

func newSite(t *testing.T, opts lab.BrokerOptions) *site {
	t.Helper()
	b := lab.StartBroker(t, opts, lab.RuntimeUser(attacker, manager), lab.RuntimeUser(victim, manager, other), lab.OperatorUser(manager), lab.OperatorUser(other))
	l := &site{Broker: b}
	consume(t, b.Operator(manager), &l.arrivals, natsjetstream.Options{})
	for _, m := range []core.Manager{manager, other} {
		createStream(t, b, m)
	}
	return l
}

// TestStrangers are attempts to connect.
func TestStrangers(t *testing.T) {
	t.Parallel()
	l := newSite(t, lab.BrokerOptions{})
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
			if row.want != "" {
				lab.Fails(t, "connecting", err, row.want)
			} else {
				lab.NoError(t, err)
			}
		})
	}
}

// TestAttacks are requests of a runtime with a valid certificate. The server must deny each, except
// those that the operator or the stream refuses.
func TestAttacks(t *testing.T) {
	t.Parallel()
	l := newSite(t, lab.BrokerOptions{})
	own := natsjetstream.Subject(manager, attacker)
	stream := natsjetstream.StreamConfig(manager).Name
	publish := func(c *nats.Conn, subject string) error { return c.Publish(subject, []byte("x")) }
	listen := func(c *nats.Conn, subject string) error {
		_, err := c.SubscribeSync(subject)
		return err
	}
	for _, row := range []struct {
		name, subject string
		act           func(*nats.Conn, string) error
	}{
		{"publishes as another runtime", natsjetstream.Subject(manager, victim), publish},
		{"publishes as no runtime", "watch." + string(manager) + ".", publish},
		{"publishes below its own subject", own + ".x", publish},
		{"publishes to another manager", natsjetstream.Subject(other, attacker), publish},
		{"answers another runtime", natsjetstream.InboxPrefix(victim) + ".x", publish},
		{"answers an operator", "_INBOX.operator." + string(manager) + ".x", publish},
		{"confirms a refusal of another runtime", "_INBOX.operator." + string(manager) + ".refused." + string(victim) + ".x", publish},
		{"deletes the stream", "$JS.API.STREAM.DELETE." + stream, publish},
		{"purges the stream", "$JS.API.STREAM.PURGE." + stream, publish},
		{"changes the stream", "$JS.API.STREAM.UPDATE." + stream, publish},
		{"makes a stream", "$JS.API.STREAM.CREATE.mine", publish},
		{"reads a message of the stream", "$JS.API.STREAM.MSG.GET." + stream, publish},
		{"deletes a message of the stream", "$JS.API.STREAM.MSG.DELETE." + stream, publish},
		{"makes a consumer", "$JS.API.CONSUMER.CREATE." + stream, publish},
		{"takes the next message", "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + string(manager), publish},
		{"deletes the consumer", "$JS.API.CONSUMER.DELETE." + stream + "." + string(manager), publish},
		{"acknowledges a message", "$JS.ACK." + stream + "." + string(manager) + ".1.1.1.1700000000000000000.0", publish},
		{"asks the system account", "$SYS.REQ.SERVER.PING", publish},
		{"listens to everything", ">", listen},
		{"listens to all events", "watch.>", listen},
		{"listens to the events of another runtime", natsjetstream.Subject(manager, victim), listen},
		{"listens to its own events", own, listen},
		{"listens to the answers of another runtime", natsjetstream.InboxPrefix(victim) + ".>", listen},
		{"listens to the batches and answers of operators", natsjetstream.InboxPrefix("operator") + ".>", listen},
		{"listens to all answers", "_INBOX.>", listen},
		{"listens to requests for the stream", "$JS.API.>", listen},
		{"listens to advisories", "$JS.EVENT.>", listen},
	} {
		t.Run(row.name, func(t *testing.T) {
			l.denied(t, func(c *nats.Conn) error { return row.act(c, row.subject) })
		})
	}
	lab.Same(t, "arrived events", 0, l.arrivals.Total())
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
	lab.NoError(t, conn.FlushTimeout(lab.Patience))
	select {
	case err := <-refused:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("the server answers %v, want a violation of permissions", err)
		}
	case <-time.After(lab.Patience):
		t.Error("the server does not deny it")
	}
}

// unharmed fails the test unless the events of the victim arrive.
func (l *site) unharmed(t *testing.T) {
	t.Helper()
	err := l.Forwarder(victim, answered).Forward(t.Context(), manager, batchOf(victim, "object"))
	if err != nil || l.arrivals.Count(of(victim, "object")) == 0 {
		t.Errorf("the victim is harmed: Forward = %v", err)
	}
}

// TestHostileMessages are messages under the own name of the attacker: the server allows them.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	l := newSite(t, lab.BrokerOptions{})
	forged := encoded(victim, "forged")
	honest := encoded(attacker, "honest")
	for _, row := range []struct {
		name    string
		body    []byte
		headers map[string]string
		want    string // in the error of the stream; empty: it takes the message
	}{
		{"claims to be the victim", forged, nil, ""},
		{"is not of the contract", []byte("{}"), nil, ""},
		{"replaces all messages", honest, map[string]string{"Nats-Rollup": "all"}, "rollup"},
		{"names another stream", honest, map[string]string{"Nats-Expected-Stream": "watch-other-operator"}, "stream"},
		{"is larger than a batch", make([]byte, 300<<10), nil, "size"},
		{"wants the answer elsewhere", honest, map[string]string{"Watch-Answer": "$JS.API.STREAM.DELETE.watch-my-operator"}, ""},
		{"wants the answer at the victim", honest, map[string]string{"Watch-Answer": natsjetstream.InboxPrefix(victim) + ".x"}, ""},
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
			if row.want != "" {
				lab.Fails(t, "publishing", err, row.want)
			} else {
				lab.NoError(t, err)
			}
		})
	}
	lab.Same(t, "arrivals of the forged event", []lab.Arrival(nil), l.arrivals.Of("forged"))
	l.unharmed(t)
}

// TestAcknowledgementsElsewhere are messages under the own name of the attacker. The server writes
// its acknowledgement to any subject that the attacker names. A server before strict JSON takes that
// text for a request: the stream itself must deny to be purged.
func TestAcknowledgementsElsewhere(t *testing.T) {
	onEach(t, func(t *testing.T, name, program string) {
		t.Helper()
		testAcknowledgementsElsewhere(t, newSite(t, lab.BrokerOptions{Program: program, Lenient: name == "embedded"}))
	})
}

func testAcknowledgementsElsewhere(t *testing.T, l *site) {
	t.Helper()
	publisher := lab.Must(l.Dial(l.Certificate(victim), nats.CustomInboxPrefix(natsjetstream.InboxPrefix(victim))))
	defer publisher.Close()
	lab.Must(lab.Must(jetstream.New(publisher)).Publish(t.Context(), natsjetstream.Subject(other, victim), encoded(victim, "kept")))
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
	lab.NoError(t, conn.FlushTimeout(lab.Patience))
	var late lab.Arrivals
	lab.Run(t, "consumer", lab.Must(natsjetstream.NewConsumer(l.Operator(other), lab.Pinning(),
		map[core.Manager]core.Handler{other: taking(&late)}, natsjetstream.Options{Peer: lab.MappedPeer})).Start)
	lab.Eventually(t, lab.Patience, "the event of the victim arrives", func() bool { return len(late.Of("kept")) > 0 })
	lab.Same(t, "arrived events", 1, late.Total())
}

// The server checks a certificate when a connection is opened, and not after. docs/security.md
// names it as a limit.
func TestOpenConnectionOutlivesItsCertificate(t *testing.T) {
	t.Parallel()
	l := newSite(t, lab.BrokerOptions{})
	var (
		leaf    *testpki.Leaf
		conn    *nats.Conn
		expires time.Time
	)
	// On a busy machine, the first certificates may expire before the server has seen them.
	for life := 2 * time.Second; conn == nil && life < lab.Patience; life *= 2 {
		expires = time.Now().Add(life)
		leaf = lab.Must(l.CA.Client(string(attacker), testpki.Options{DNSNames: []string{lab.RuntimeDomain(attacker)}, NotAfter: expires}))
		conn, _ = l.Dial(leaf, nats.CustomInboxPrefix(natsjetstream.InboxPrefix(attacker)), nats.NoReconnect())
	}
	defer conn.Close()
	lab.Eventually(t, lab.Patience, "the certificate has expired", func() bool {
		second, err := l.Dial(leaf)
		if err == nil {
			second.Close()
		}
		return err != nil && time.Now().After(expires)
	})
	f := lab.Must(natsjetstream.NewForwarder(conn, attacker, natsjetstream.ForwarderOptions{}))
	lab.NoError(t, f.Forward(t.Context(), manager, batchOf(attacker, "object"))) // If the server ends it now, change the documents.
}
