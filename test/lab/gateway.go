package lab

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"text/template"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// GatewayOptions are the choices of [StartGateway]. nginx reads the files when it starts and at
// [Nginx.Reload].
type GatewayOptions struct {
	// Addr is the address to which runtimes connect. Default: a free port.
	Addr string
	// Certificate and Key are for runtimes. ClientCA is the bundle to which the certificates of
	// runtimes must chain.
	Certificate, Key, ClientCA string
	// Lax admits every client, with any certificate or none, like a gateway that is set up wrongly.
	// Default: the gateway demands a certificate that chains to ClientCA.
	Lax bool

	// Upstream is the address of the listener.
	Upstream string
	// Others are further replicas of the listener. The gateway uses all replicas in turn, and sends
	// each request only once: it tries no other replica after a failure.
	Others []string
	// UpstreamCertificate and UpstreamKey are the gateway's own client certificate for mTLS to the
	// listener, and UpstreamCA is the bundle for the certificate of the listener. Default: plain
	// HTTP.
	UpstreamCertificate, UpstreamKey, UpstreamCA string
	// Bind is the address from which the gateway connects to the listener. By default the system
	// chooses it.
	Bind string
}

// Nginx is a gateway that runs as a child process.
type Nginx struct {
	*machine.Process

	// Addr is where runtimes connect.
	Addr string

	t   testing.TB
	log string
}

// findNginx returns where nginx and its modules are.
func findNginx(ctx context.Context) (binary, modules string, err error) {
	if binary, err = exec.LookPath("nginx"); err != nil {
		// The PATH of a user need not have the directories of administrators.
		if binary, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			return "", "", err
		}
	}

	built, err := exec.CommandContext(ctx, binary, "-V").CombinedOutput()
	if err != nil {
		return "", "", fmt.Errorf("%s -V: %w", binary, err)
	}

	for argument := range strings.FieldsSeq(string(built)) {
		if path, ok := strings.CutPrefix(argument, "--modules-path="); ok {
			modules = path
		}
	}

	if _, err := os.Stat(filepath.Join(modules, "ngx_http_js_module.so")); err != nil {
		return "", "", err
	}

	return binary, modules, nil
}

// StartGateway runs nginx until the test ends, and returns when it accepts connections. Without nginx it
// calls [Missing].
func StartGateway(t testing.TB, opts GatewayOptions) *Nginx {
	t.Helper()

	binary, modules, err := findNginx(t.Context())
	if err != nil {
		Missing(t, "needs nginx with its njs module (Debian: nginx-light and libnginx-mod-http-js): %v", err)
	}

	prefix := t.TempDir()
	if opts.Addr == "" {
		opts.Addr = Address(FreePort(t))
	}

	n := &Nginx{Addr: opts.Addr, t: t, log: filepath.Join(prefix, "error.log")}
	config := filepath.Join(prefix, "nginx.conf")
	var text strings.Builder
	NoError(t, nginxConfiguration.Execute(&text, nginxSettings{GatewayOptions: opts, Modules: modules, Root: os.Getuid() == 0}))
	NoError(t, os.WriteFile(config, []byte(text.String()), 0o600))
	NoError(t, os.WriteFile(filepath.Join(prefix, "hash.js"), hashScript, 0o600))
	out, err := os.Create(n.log)
	NoError(t, err)
	defer out.Close() // The child has its own descriptor.

	cmd := exec.Command(binary, "-p", prefix, "-c", config, "-e", "stderr")
	cmd.Stdout = out
	cmd.Stderr = out
	cmd.SysProcAttr = machine.OwnGroupEnding(syscall.SIGTERM) // Its workers would outlive a kill.
	n.Process, err = machine.Follow(cmd)
	NoError(t, err)
	t.Cleanup(n.end)
	Eventually(t, patience, "nginx accepts connections", func() bool {
		if !n.Running() {
			t.Fatalf("nginx ended: %s\n%s", n.State(), machine.TailOf(n.log, 200))
		}
		return Accepts(n.Addr)
	})

	return n
}

// Reload makes nginx read its files again: new workers take new connections, and those that exist
// end with their requests. It does not wait for the new workers. A broken file is logged, and
// changes nothing.
func (n *Nginx) Reload() {
	n.t.Helper()
	if err := n.Signal(syscall.SIGHUP); err != nil {
		n.t.Errorf("reload of nginx: %v", err)
	}
}

// AwaitCertificate waits until new connections to an address are shown a leaf.
func AwaitCertificate(t testing.TB, addr string, leaf *testpki.Leaf) {
	t.Helper()
	Eventually(t, patience, addr+" shows its new certificate", func() bool {
		conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true}) // It is only looked at.
		if err != nil {
			return false
		}
		defer conn.Close()

		return conn.ConnectionState().PeerCertificates[0].Equal(leaf.TLS.Leaf)
	})
}

// end ends nginx immediately, workers included, and shows its log where the test has failed.
func (n *Nginx) end() {
	n.Stop()
	_ = syscall.Kill(-n.Pid(), syscall.SIGKILL) // Workers that have not ended: the group was made for it.

	if n.t.Failed() {
		n.t.Logf("log of nginx:\n%s", machine.TailOf(n.log, 200))
	}
}

// settings are the values in the configuration.
type nginxSettings struct {
	GatewayOptions

	Modules string
	Root    bool
}

//go:embed nginx.conf.tmpl
var nginxTemplate string

var nginxConfiguration = template.Must(template.New("nginx.conf").Parse(nginxTemplate))

//go:embed hash.js
var hashScript []byte

// ByGateway returns the header X-Forwarded-Client-Cert in which Envoy describes a runtime, its client.
func ByGateway(runtime *x509.Certificate) string {
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: runtime.Raw})
	escaped := strings.ReplaceAll(url.QueryEscape(string(cert)), "+", "%20")
	return fmt.Sprintf(`Hash=%x;Cert=%q;Subject=%q;URI=`, sha256.Sum256(runtime.Raw), escaped, runtime.Subject)
}

// BySidecar appends the element in which the Envoy of a sidecar describes the gateway, its client. A
// sidecar forwards no Cert.
func BySidecar(header, gateway string) string {
	return fmt.Sprintf(`%s,By=spiffe://cluster.local/ns/kcp-system/sa/operator;Hash=%x;Subject="";URI=%s`,
		header, sha256.Sum256([]byte(gateway)), gateway)
}
