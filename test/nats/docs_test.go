package nats_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestDocumentedConfiguration runs a server with the configuration of docs/platforms/nats.md.
func TestDocumentedConfiguration(t *testing.T) {
	t.Parallel()
	for name, p := range lab.NATSServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca := lab.Must(testpki.NewCA("ca", testpki.Options{}))
			server := lab.Must(ca.Server("nats", testpki.Options{}))
			b := &lab.Broker{T: t, CA: ca, Nodes: []*lab.BrokerNode{documented(t, p, map[string][]byte{
				"ca.crt": ca.PEM(), "tls.crt": server.CertPEM(), "tls.key": lab.Must(server.KeyPEM()),
			})}}
			op := newOperator()
			leaf := lab.Must(b.CA.Client("operator", testpki.Options{DNSNames: []string{documentedUser}}))
			conn := lab.Must(b.Dial(leaf, nats.CustomInboxPrefix("_INBOX.operator.my-operator")))
			t.Cleanup(conn.Close)
			consume(t, conn, op, natsjetstream.Options{})
			arrives(t, b.Forwarder(attacker, natsjetstream.ForwarderOptions{AnswerWait: patience}), op)
		})
	}
}

// documentedUser is the operator in the configuration.
const documentedUser = "my-operator.operators.example.com"

// documented runs a server with the configuration of docs/platforms/nats.md and the key material of a Secret.
func documented(t *testing.T, p string, keys map[string][]byte) *lab.BrokerNode {
	t.Helper()
	n := lab.NewBrokerNode(t, "documented", p)
	places := []string{`"/data"`, `"` + n.Dir + `/data"`}
	for name, content := range keys {
		n.Write(name, content)
		places = append(places, `"`+name+`"`, `"`+n.Dir+"/"+name+`"`)
	}
	text := block(t, "", "tls {")
	users := lab.Must(natsjetstream.Authorization(
		lab.RuntimeUser(attacker, manager), natsjetstream.OperatorUser(manager, documentedUser)))
	if !strings.Contains(text, string(users)) {
		t.Errorf("docs/platforms/nats.md has other users than\n%s", users)
	}
	text = strings.NewReplacer(places...).Replace(text)
	n.Write("nats.conf", []byte("listen: \""+n.Addr+"\"\n"+text))
	n.Launch()
	n.Await()
	return n
}

// block returns the code of docs/platforms/nats.md in a language that begins with a text.
func block(t *testing.T, language, begins string) string {
	t.Helper()
	pattern := "(?s)```" + language + "\n(" + regexp.QuoteMeta(begins) + ".*?)```\n"
	found := regexp.MustCompile(pattern).FindSubmatch(test.Read(t, "docs/platforms/nats.md"))
	if found == nil {
		t.Fatalf("docs/platforms/nats.md has no code in %q that begins with %q", language, begins)
	}
	return string(found[1])
}

// arrives fails unless the operator gets an event of the attacker's runtime.
func arrives(t *testing.T, f core.Forwarder, op *operator) {
	t.Helper()
	eventually(t, "the batch is sent", func() bool {
		return f.Forward(t.Context(), manager, batchOf(attacker, "object")) == nil
	})
	if op.generation(object{attacker, "object"}) != 1 {
		t.Error("the event did not arrive")
	}
}
