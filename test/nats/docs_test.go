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
)

// TestDocumentedConfiguration runs a server with the configuration of docs/platforms/nats.md.
func TestDocumentedConfiguration(t *testing.T) {
	t.Parallel()
	for _, p := range programs(t) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			ca := must(testpki.NewCA("ca", testpki.Options{}))
			server := must(ca.Server("nats", testpki.Options{}))
			b := &broker{t: t, ca: ca, nodes: []*node{documented(t, p, map[string][]byte{
				"ca.crt": ca.PEM(), "tls.crt": server.CertPEM(), "tls.key": must(server.KeyPEM()),
			})}}

			op := newOperator()
			leaf := must(b.ca.Client("operator", testpki.Options{DNSNames: []string{documentedUser}}))
			conn := must(b.dial(leaf, nats.CustomInboxPrefix("_INBOX.operator.my-operator")))
			t.Cleanup(conn.Close)
			consume(t, conn, op, natsjetstream.Options{})
			arrives(t, b.forwarder(attacker, natsjetstream.ForwarderOptions{AnswerWait: patience}), op)
		})
	}
}

// documentedUser is the operator in the configuration.
const documentedUser = "my-operator.operators.example.com"

// documented runs a server with the configuration of docs/platforms/nats.md and the key material of a Secret.
func documented(t *testing.T, p program, keys map[string][]byte) *node {
	t.Helper()
	n := &node{t: t, program: p, Name: "documented", Addr: freeAddr(t), Dir: t.TempDir()}
	places := []string{`"/data"`, `"` + n.Dir + `/data"`}
	for name, content := range keys {
		n.write(name, content)
		places = append(places, `"`+name+`"`, `"`+n.Dir+"/"+name+`"`)
	}
	text := strings.NewReplacer(places...).Replace(block(t, "", "tls {"))
	n.write("nats.conf", []byte("listen: \""+n.Addr+"\"\n"+text))
	t.Cleanup(n.kill)
	n.launch()
	n.await()
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
