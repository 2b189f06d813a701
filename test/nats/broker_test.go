package nats_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program is a NATS server.
type program struct{ name, path string }

// programs returns our build of the newest server and, if it is installed, that of Debian.
func programs(t testing.TB) []program {
	t.Helper()
	found := []program{embedded(t)}
	if path, err := exec.LookPath("nats-server"); err == nil {
		found = append(found, program{"debian", path})
	}
	return found
}

func embedded(t testing.TB) program {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return program{"embedded", path}
}

var build = sync.OnceValues(func() (string, error) {
	_ = os.Getenv("RUNTIME_WATCHER_SOURCES") // A change of the server must not leave cached results: see the Makefile.
	path := filepath.Join(test.Root(), "bin", "test", "natsserver")
	cmd := exec.Command("go", "build", "-o", path, ".") // Shared by all tests, bound to none.
	cmd.Dir = filepath.Join(test.Root(), "test", "lab", "natsserver")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the NATS server: %w: %s", err, out)
	}
	return path, nil
})

// user is an entry of the server's configuration. Name is a SAN of the certificate.
type user struct {
	Name               string
	Publish, Subscribe []string
	Responses          bool
}

// runtimeUser lets a runtime publish under its own name to its managers. docs/platforms/nats.md has the same.
func runtimeUser(runtime core.RuntimeID, managers ...core.Manager) user {
	u := user{
		Name: domain(runtime), Subscribe: []string{natsjetstream.InboxPrefix(runtime) + ".>"}, Responses: true,
	}
	for _, manager := range managers {
		u.Publish = append(u.Publish, natsjetstream.Subject(manager, runtime))
	}
	return u
}

// domain is the registered domain of a runtime, and a SAN of its certificate.
func domain(runtime core.RuntimeID) string { return string(runtime) + ".example.com" }

// operatorUser has the rights of the operator of one manager.
func operatorUser(manager core.Manager) user {
	stream := "watch-" + string(manager)
	return user{
		Name: operatorName(manager),
		Publish: []string{
			"$JS.API.STREAM.INFO." + stream, "$JS.API.STREAM.CREATE." + stream,
			"$JS.API.CONSUMER.*." + stream + ".>", "$JS.API.CONSUMER.MSG.NEXT." + stream + ".>",
			"$JS.ACK." + stream + ".>", "_INBOX.>",
		},
		Subscribe: []string{"_INBOX.operator." + string(manager) + ".>"},
	}
}

func operatorName(manager core.Manager) string { return string(manager) + ".operators.example.com" }

// broker is one NATS server, or a cluster of several.
type broker struct {
	t     testing.TB
	ca    *testpki.CA
	users []user
	nodes []*node
	// full counts the attempts of agents that found no room in the stream.
	full atomic.Int64
}

// node is a server process.
type node struct {
	t             testing.TB
	program       program
	Name          string
	Addr, Cluster string
	Leaf, Dir     string
	process       *exec.Cmd
}

var configuration = template.Must(template.New("").Funcs(template.FuncMap{"list": list}).Parse(`
server_name: {{.Node.Name}}
listen: "{{.Node.Addr}}"
max_payload: 1MB
jetstream { store_dir: "{{.Node.Dir}}/store"{{if .Sync}}, sync_interval: always{{end}} }
tls {
  cert_file: "{{.Node.Dir}}/tls.crt"
  key_file: "{{.Node.Dir}}/tls.key"
  ca_file: "{{.Node.Dir}}/ca.crt"
  verify_and_map: true
}
authorization {
  users: [{{range .Users}}
    { user: "{{.Name}}", permissions: {
      publish: { allow: [{{list .Publish}}] }
      subscribe: { allow: [{{list .Subscribe}}] }
      {{if .Responses}}allow_responses: true{{end}}
    } }{{end}}
  ]
}
leafnodes {
  listen: "{{.Node.Leaf}}"
  tls {
    cert_file: "{{.Node.Dir}}/tls.crt"
    key_file: "{{.Node.Dir}}/tls.key"
    ca_file: "{{.Node.Dir}}/ca.crt"
    verify_and_map: true
  }
}
{{if gt (len .Nodes) 1}}cluster {
  name: test
  listen: "{{.Node.Cluster}}"
  routes: [{{range $i, $n := .Nodes}}{{if $i}}, {{end}}"nats://{{$n.Cluster}}"{{end}}]
}{{end}}
`))

func list(items []string) string { return `"` + strings.Join(items, `", "`) + `"` }

func newBroker(t testing.TB, p program, nodes int, users ...user) *broker {
	t.Helper()
	return newBrokerWith(t, p, nodes, false, users...)
}

// newBrokerWith returns a broker that calls fsync before it acknowledges a message, if fsync is set.
func newBrokerWith(t testing.TB, p program, nodes int, fsync bool, users ...user) *broker {
	t.Helper()
	b := &broker{t: t, ca: must(testpki.NewCA("ca", testpki.Options{})), users: users}
	for i := range nodes {
		b.nodes = append(b.nodes, &node{
			t: t, program: p, Name: fmt.Sprintf("n%d", i), Addr: freeAddr(t), Cluster: freeAddr(t), Leaf: freeAddr(t),
			Dir: t.TempDir(),
		})
	}
	server := must(b.ca.Server("nats", testpki.Options{}))
	for _, n := range b.nodes {
		n.write("ca.crt", b.ca.PEM())
		n.write("tls.crt", server.CertPEM())
		n.write("tls.key", must(server.KeyPEM()))
		var text strings.Builder
		err := configuration.Execute(&text, map[string]any{"Node": n, "Nodes": b.nodes, "Users": users, "Sync": fsync})
		if err != nil {
			t.Fatal(err)
		}
		n.write("nats.conf", []byte(text.String()))
		t.Cleanup(n.kill)
		n.launch()
	}
	for _, n := range b.nodes {
		n.await()
	}
	return b
}

func (n *node) write(name string, content []byte) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.Dir, name), content, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// launch does not wait until the server accepts connections.
func (n *node) launch() {
	n.t.Helper()
	log, err := os.OpenFile(filepath.Join(n.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	n.process = exec.Command(n.program.path, "-c", filepath.Join(n.Dir, "nats.conf")) // Its life is that of the node.
	n.process.Stdout, n.process.Stderr = log, log
	n.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.process.Start(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) await() {
	n.t.Helper()
	eventually(n.t, n.Name+" accepts connections", func() bool {
		conn, err := net.DialTimeout("tcp", n.Addr, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// kill ends the server as a crash would.
func (n *node) kill() {
	if n.process == nil {
		return
	}
	_ = n.process.Process.Kill()
	_ = n.process.Wait()
	n.process = nil
	if n.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(n.Dir, "log"))
		n.t.Logf("log of %s:\n%s", n.Name, log[max(len(log)-4000, 0):])
	}
}

func (n *node) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.process.Process.Signal(s); err != nil {
		n.t.Fatal(err)
	}
}

// freeze returns when all threads of the server stand still.
func (n *node) freeze() {
	n.t.Helper()
	n.signal(syscall.SIGSTOP)
	eventually(n.t, n.Name+" stands still", func() bool {
		tasks := must(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", n.process.Process.Pid)))
		return !slices.ContainsFunc(tasks, func(task string) bool {
			stat, err := os.ReadFile(task)
			return err == nil && !strings.Contains(string(stat), ") T ")
		})
	})
}

func (b *broker) urls() string {
	var urls []string
	for _, n := range b.nodes {
		urls = append(urls, "tls://"+n.Addr)
	}
	return strings.Join(urls, ",")
}

// dial connects with a certificate, nil for none.
func (b *broker) dial(leaf *testpki.Leaf, opts ...nats.Option) (*nats.Conn, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: b.ca.Pool()}
	if leaf != nil {
		// Unlike with Certificates, it is also sent to a server that does not ask for its CA.
		certificate := leaf.TLS()
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	return nats.Connect(b.urls(), append([]nats.Option{nats.Secure(config)}, opts...)...)
}

// certificate is that of a runtime.
func (b *broker) certificate(runtime core.RuntimeID) *testpki.Leaf {
	return must(b.ca.Client(string(runtime), testpki.Options{DNSNames: []string{domain(runtime)}}))
}

// forwarder connects a runtime as an agent would.
func (b *broker) forwarder(runtime core.RuntimeID, opts natsjetstream.ForwarderOptions) *natsjetstream.Forwarder {
	b.t.Helper()
	leaf, roots := b.certificate(runtime).TLS(), b.ca.Pool()
	keys := func() (*tls.Certificate, *x509.CertPool) { return &leaf, roots }
	conn, err := nats.Connect(b.urls(), append(natsjetstream.ConnectOptions(runtime, keys), prompt...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(conn.Close)
	return must(natsjetstream.NewForwarder(conn, runtime, opts))
}

// prompt makes tests short.
var prompt = []nats.Option{nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(0, 0)}

// operator connects the operator of a manager.
func (b *broker) operator(manager core.Manager) *nats.Conn {
	b.t.Helper()
	leaf := must(b.ca.Client("operator", testpki.Options{DNSNames: []string{operatorName(manager)}}))
	conn, err := b.dial(leaf, append(prompt, nats.MaxReconnects(-1),
		nats.CustomInboxPrefix("_INBOX.operator."+string(manager)))...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(conn.Close)
	return conn
}

func freeAddr(t testing.TB) string {
	t.Helper()
	port, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	return port.Addr().String()
}

// patience is for a busy machine.
const patience = time.Minute

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %v it is not so that %s", patience, what)
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
