package nats_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/test"
)

// TestDocumentedConfiguration runs a server with the configuration of docs/nats.md.
func TestDocumentedConfiguration(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?s)```\n(tls \\{.*?)```\n").FindSubmatch(test.Read(t, "docs/nats.md"))
	if blocks == nil {
		t.Fatal("docs/nats.md has no configuration that begins with tls")
	}
	for _, p := range programs(t) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			b := &broker{t: t, ca: must(testpki.NewCA("ca", testpki.Options{}))}
			n := &node{t: t, program: p, Name: "documented", Addr: freeAddr(t), Dir: t.TempDir()}
			b.nodes = []*node{n}
			server := must(b.ca.Server("nats", testpki.Options{}))
			n.write("ca.crt", b.ca.PEM())
			n.write("tls.crt", server.CertPEM())
			n.write("tls.key", must(server.KeyPEM()))
			here := strings.NewReplacer(`"tls.crt"`, `"`+n.Dir+`/tls.crt"`, `"tls.key"`, `"`+n.Dir+`/tls.key"`,
				`"ca.crt"`, `"`+n.Dir+`/ca.crt"`, `"/data"`, `"`+n.Dir+`/data"`)
			n.write("nats.conf", []byte("listen: \""+n.Addr+"\"\n"+here.Replace(string(blocks[1]))))
			t.Cleanup(n.kill)
			n.launch()
			n.await()

			op := newOperator()
			leaf := must(b.ca.Client("operator", testpki.Options{DNSNames: []string{"my-operator.operators.example.com"}}))
			conn := must(b.dial(leaf, nats.CustomInboxPrefix("_INBOX.operator.my-operator")))
			t.Cleanup(conn.Close)
			consume(t, conn, op, natsjetstream.Options{})
			f := b.forwarder(attacker, natsjetstream.ForwarderOptions{AnswerWait: patience})
			eventually(t, "the batch is sent", func() bool {
				return f.Forward(t.Context(), manager, batchOf(attacker, "object")) == nil
			})
			if op.generation(object{attacker, "object"}) != 1 {
				t.Error("the event did not arrive")
			}
		})
	}
}
