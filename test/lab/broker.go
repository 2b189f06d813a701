package lab

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// NATSServers returns programs by name: "embedded" is our build of the newest NATS server, "debian"
// the installed server. If no server is installed, "debian" is left out, or the test fails under
// CI=true.
func NATSServers(t testing.TB) map[string]string {
	t.Helper()

	servers := map[string]string{"embedded": Build(t, "test/lab/natsserver")}
	path, err := exec.LookPath("nats-server")
	if err == nil {
		servers["debian"] = path
	} else if os.Getenv("CI") == "true" {
		Missing(t, "needs a second NATS server (Debian: nats-server)")
	}

	return servers
}

// RuntimeUser lets a runtime publish under its own name to its managers.
func RuntimeUser(runtime core.RuntimeID, managers ...core.Manager) natsjetstream.User {
	return natsjetstream.User{Name: RuntimeDomain(runtime), Runtime: runtime, Managers: managers}
}

// RuntimeDomain is the registered domain of a runtime, and a SAN of its certificate.
func RuntimeDomain(runtime core.RuntimeID) string { return string(runtime) + ".example.com" }

// OperatorUser has the rights of the operator of one manager.
func OperatorUser(manager core.Manager) natsjetstream.User {
	return natsjetstream.User{Name: OperatorDomain(manager), Operator: manager}
}

// OperatorDomain is the SAN by which a NATS server identifies the operator of a manager.
func OperatorDomain(manager core.Manager) string { return string(manager) + ".operators.example.com" }

// Broker is one NATS server, or a cluster of several.
type Broker struct {
	T     testing.TB
	CA    *testpki.CA
	Nodes []*BrokerNode

	opts BrokerOptions
}

// BrokerNode is the process of a NATS server.
type BrokerNode struct {
	*Process

	Name, Addr, Cluster, Leaf, Dir string
}

// BrokerOptions are the choices of [StartBroker].
type BrokerOptions struct {
	// Program is the path of the server. Default: the embedded server.
	Program string
	// Nodes is the size of the cluster. Default: one server.
	Nodes int
	// Sync means that a message is on the disk before it is acknowledged.
	Sync bool
	// Lenient makes the embedded server read requests like servers without strict JSON.
	Lenient bool
	// TLSFirst lets the server wait for TLS before its first line. It needs a server from 2.10.
	TLSFirst bool
	// CA issues all certificates. Default: a new one.
	CA *testpki.CA
}

var brokerConfiguration = template.Must(template.New("").Parse(`
server_name: {{.Node.Name}}
listen: "{{.Node.Addr}}"
max_payload: 1MB
jetstream { store_dir: "{{.Node.Dir}}/store"{{if .Sync}}, sync_interval: always{{end}}{{if .Lenient}}, strict: false{{end}} }
{{define "tls"}}tls {
  cert_file: "{{.Dir}}/tls.crt"
  key_file: "{{.Dir}}/tls.key"
  ca_file: "{{.Dir}}/ca.crt"
  verify_and_map: true
  timeout: 60 # For a busy machine.
}{{end}}
tls {
  cert_file: "{{.Node.Dir}}/tls.crt"
  key_file: "{{.Node.Dir}}/tls.key"
  ca_file: "{{.Node.Dir}}/ca.crt"
  verify_and_map: true
  timeout: 60 # For a busy machine.
  {{if .TLSFirst}}handshake_first: true{{end}}
}
{{.Authorization}}
leafnodes { listen: "{{.Node.Leaf}}", {{template "tls" .Node}} }
{{if gt (len .Nodes) 1}}cluster {
  name: test
  listen: "{{.Node.Cluster}}"
  routes: [{{range $i, $n := .Nodes}}{{if $i}}, {{end}}"nats://{{$n.Cluster}}"{{end}}]
}{{end}}
`))

// StartBroker runs NATS servers until the test ends.
func StartBroker(t testing.TB, opts BrokerOptions, users ...natsjetstream.User) *Broker {
	t.Helper()

	b := &Broker{T: t, CA: opts.CA, opts: opts}
	if b.CA == nil {
		b.CA = NewPKI(t).CA
	}

	for i := range max(opts.Nodes, 1) {
		b.Nodes = append(b.Nodes, NewBrokerNode(t, fmt.Sprintf("n%d", i), opts.Program))
	}

	server := Must(b.CA.Server("nats", testpki.Options{}))
	for _, n := range b.Nodes {
		NoError(t, testpki.NewVolume(n.Dir).Write(testpki.Files(server, b.CA)))
	}

	b.configure(users)
	for _, n := range b.Nodes {
		n.Launch()
	}

	for _, n := range b.Nodes {
		n.Await()
	}

	return b
}

// configure writes the configuration of each server.
func (b *Broker) configure(users []natsjetstream.User) {
	b.T.Helper()
	for _, n := range b.Nodes {
		var text strings.Builder
		data := map[string]any{
			"Node": n, "Nodes": b.Nodes, "Sync": b.opts.Sync, "Lenient": b.opts.Lenient, "TLSFirst": b.opts.TLSFirst,
			"Authorization": string(Must(natsjetstream.Authorization(users...))),
		}
		NoError(b.T, brokerConfiguration.Execute(&text, data))
		n.Write("nats.conf", []byte(text.String()))
	}
}

// Reload gives the servers other users, as "nats-server --signal reload" does. It does not wait.
func (b *Broker) Reload(users ...natsjetstream.User) {
	b.T.Helper()
	b.configure(users)

	for _, n := range b.Nodes {
		n.signal(syscall.SIGHUP)
	}
}

// NewBrokerNode returns a server that is not running yet. Its configuration is the file nats.conf.
// The default program is the embedded server.
func NewBrokerNode(t testing.TB, name, program string) *BrokerNode {
	t.Helper()

	if program == "" {
		program = Build(t, "test/lab/natsserver")
	}

	dir := t.TempDir()
	n := &BrokerNode{
		Process: NewProcess(t, "NATS server "+name, program, nil, "-c", filepath.Join(dir, "nats.conf")),
		Name:    name, Addr: Address(FreePort(t)), Cluster: Address(FreePort(t)), Leaf: Address(FreePort(t)), Dir: dir,
	}
	return n
}

// Write writes a file of the server.
func (n *BrokerNode) Write(name string, content []byte) {
	n.t.Helper()
	NoError(n.t, os.WriteFile(filepath.Join(n.Dir, name), content, 0o600))
}

// Restart kills the server, starts it again, and returns when it accepts connections.
func (n *BrokerNode) Restart() {
	n.t.Helper()

	n.Kill()
	n.Launch()
	n.Await()
}

// Await returns when the server accepts connections.
func (n *BrokerNode) Await() {
	n.t.Helper()
	Eventually(n.t, patience, n.Name+" accepts connections", func() bool { return Accepts(n.Addr) })
}

// Freeze stops the server, and returns when all its threads have stopped.
func (n *BrokerNode) Freeze() {
	n.t.Helper()
	n.Process.Freeze()
	Eventually(n.t, patience, n.Name+" stands still", func() bool {
		tasks := Must(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", n.Pid())))
		return !slices.ContainsFunc(tasks, func(task string) bool {
			stat, err := os.ReadFile(task)
			return err == nil && !strings.Contains(string(stat), ") T ")
		})
	})
}

// URLs are the addresses of all servers.
func (b *Broker) URLs() string {
	var urls []string
	for _, n := range b.Nodes {
		urls = append(urls, "tls://"+n.Addr)
	}
	return strings.Join(urls, ",")
}

// Dial connects with a certificate, nil for none.
func (b *Broker) Dial(leaf *testpki.Leaf, opts ...nats.Option) (*nats.Conn, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: b.CA.Pool()}
	if leaf != nil {
		// Unlike with Certificates, it is also sent to a server that does not ask for its CA.
		certificate := leaf.TLS
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	return nats.Connect(b.URLs(), append([]nats.Option{nats.Secure(config), nats.Timeout(patience)}, opts...)...)
}

// Certificate returns the certificate of a runtime.
func (b *Broker) Certificate(runtime core.RuntimeID) *testpki.Leaf {
	return Must(b.CA.Client(string(runtime), testpki.Options{DNSNames: []string{RuntimeDomain(runtime)}}))
}

// Forwarder connects a runtime as an agent does. Options of the connection take precedence.
func (b *Broker) Forwarder(
	runtime core.RuntimeID, opts natsjetstream.ForwarderOptions, connect ...nats.Option,
) *natsjetstream.Forwarder {
	b.T.Helper()

	leaf := b.Certificate(runtime).TLS
	roots := b.CA.Pool()
	keys := func() (*tls.Certificate, *x509.CertPool) { return &leaf, roots }
	conn := Must(nats.Connect(b.URLs(), slices.Concat(natsjetstream.ConnectOptions(runtime, keys), Prompt, connect)...))
	b.T.Cleanup(conn.Close)

	return Must(natsjetstream.NewForwarder(conn, runtime, opts))
}

// Prompt contains options that restore lost connections soon.
var Prompt = []nats.Option{nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(0, 0)}

// Operator connects the operator of a manager as the guide does. Options of the caller take
// precedence.
func (b *Broker) Operator(manager core.Manager, opts ...nats.Option) *nats.Conn {
	b.T.Helper()

	leaf := Must(b.CA.Client("operator", testpki.Options{DNSNames: []string{OperatorDomain(manager)}})).TLS
	roots := b.CA.Pool()
	keys := func() (*tls.Certificate, *x509.CertPool) { return &leaf, roots }
	opts = slices.Concat(natsjetstream.OperatorConnectOptions(manager, keys), Prompt, opts)
	conn := Must(nats.Connect(b.URLs(), opts...))
	b.T.Cleanup(conn.Close)

	return conn
}

// MappedPeer returns the SAN by which the server has mapped a runtime to its user.
func MappedPeer(runtime core.RuntimeID) core.Peer {
	return core.Peer{ID: runtime, CommonName: string(runtime), DNSNames: []string{RuntimeDomain(runtime)}}
}
