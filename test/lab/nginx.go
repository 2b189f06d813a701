package lab

import (
	"context"
	"crypto/tls"
	_ "embed"
	"fmt"
	"net"
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

// GatewayOptions are the choices of [StartGateway]. Files are those of one secret each; nginx reads them when it
// starts and at [Nginx.Reload].
type GatewayOptions struct {
	// Addr is where runtimes connect. Default: a free port.
	Addr string
	// Certificate and Key are for runtimes. ClientCA is the bundle that the certificates of
	// runtimes must chain to.
	Certificate, Key, ClientCA string
	// Lax admits every client, with any certificate or none: a gateway that is set up
	// wrongly. Default: it demands one that chains to ClientCA.
	Lax bool

	// Upstream is the address of the listener.
	Upstream string
	// Others are further replicas of the listener. The gateway asks all in turn, and each request
	// once: it tries no other replica after a failure.
	Others []string
	// UpstreamCertificate and UpstreamKey are the gateway's own client certificate for mTLS to the
	// listener, and UpstreamCA the bundle for the listener's. Default: plain HTTP.
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

// RequireNginx returns where nginx and its modules are. Where they are missing it skips the test, and
// fails it under CI=true, so that CI cannot skip it.
func RequireNginx(t testing.TB) (binary, modules string) {
	t.Helper()
	binary, modules, err := findNginx(t.Context())
	if err == nil {
		return binary, modules
	}
	Missing(t, "needs nginx with its njs module (Debian: nginx-light and libnginx-mod-http-js): %v", err)
	return "", ""
}

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

// StartGateway runs nginx until the test ends, and returns when it accepts connections.
func StartGateway(t testing.TB, opts GatewayOptions) *Nginx {
	t.Helper()
	binary, modules := RequireNginx(t)
	prefix := t.TempDir()
	if opts.Addr == "" {
		opts.Addr = Address(FreePort(t))
	}
	n := &Nginx{Addr: opts.Addr, t: t, log: filepath.Join(prefix, "error.log")}
	NoError(t, configureNginx(prefix, nginxSettings{GatewayOptions: opts, Modules: modules, Root: os.Getuid() == 0}))
	out, err := os.Create(n.log)
	NoError(t, err)
	defer out.Close() // The child has its own descriptor.
	cmd := exec.Command(binary, "-p", prefix, "-c", filepath.Join(prefix, "nginx.conf"), "-e", "stderr")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = machine.OwnGroupEnding(syscall.SIGTERM) // Its workers would outlive a kill.
	n.Process, err = machine.Follow(cmd)
	NoError(t, err)
	t.Cleanup(n.end)
	n.awaitAccepting()
	return n
}

func (n *Nginx) awaitAccepting() {
	n.t.Helper()
	Eventually(n.t, patience, "nginx accepts connections", func() bool {
		if !n.Running() {
			n.t.Fatalf("nginx ended: %s\n%s", n.State(), machine.TailOf(n.log, 200))
		}
		conn, err := new(net.Dialer).DialContext(n.t.Context(), "tcp", n.Addr)
		if err != nil {
			return false
		}
		_ = conn.Close() // It was only asked for.
		return true
	})
}

// Reload makes nginx read its files again: new workers take new connections, and those that exist
// end with their requests. It does not wait for that. A broken file is logged, and changes nothing.
func (n *Nginx) Reload() {
	n.t.Helper()
	if err := n.Signal(syscall.SIGHUP); err != nil {
		n.t.Errorf("reload of nginx: %v", err)
	}
}

// AwaitCertificate waits until new connections to an address are shown a leaf.
func AwaitCertificate(t testing.TB, addr string, leaf *testpki.Leaf) {
	t.Helper()
	Eventually(t, patience, addr+" shows its new certificate", func() (shown bool) {
		dialer := &tls.Dialer{Config: &tls.Config{
			InsecureSkipVerify: true, // It is only looked at.
			VerifyConnection: func(state tls.ConnectionState) error {
				shown = state.PeerCertificates[0].Equal(leaf.TLS.Leaf)
				return nil
			},
		}}
		if conn, err := dialer.DialContext(t.Context(), "tcp", addr); err == nil {
			_ = conn.Close() // It was only looked at.
		}
		return shown
	})
}

// end ends nginx at once, workers included, and shows its log where the test has failed.
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
var nginxConfiguration string

//go:embed hash.js
var hashScript []byte

func configureNginx(prefix string, s nginxSettings) error {
	tmpl, err := template.New("nginx.conf").Parse(nginxConfiguration)
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(prefix, "nginx.conf"))
	if err != nil {
		return err
	}
	defer file.Close() // nginx fails to read a file after an error.
	if err := tmpl.Execute(file, s); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(prefix, "hash.js"), hashScript, 0o600)
}
