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
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// GatewayOptions are the choices of [StartGateway]. Files are those of one secret each; nginx reads them when it
// starts and at [Nginx.Reload].
type GatewayOptions struct {
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
	// UpstreamName is the name in the listener's certificate. Default: "localhost".
	UpstreamName string
	// Bind is the address from which the gateway connects to the listener. By default the system
	// chooses it.
	Bind string
}

func (o GatewayOptions) withDefaults() GatewayOptions {
	if o.UpstreamName == "" {
		o.UpstreamName = "localhost"
	}
	return o
}

// Nginx is a gateway that runs as a child process.
type Nginx struct {
	// Addr is where runtimes connect.
	Addr string

	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{}
	log  string
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
	n := &Nginx{
		Addr: Address(FreePort(t)), t: t, done: make(chan struct{}),
		log: filepath.Join(prefix, "error.log"),
	}
	if err := configureNginx(prefix, nginxSettings{
		GatewayOptions: opts.withDefaults(), Listen: n.Addr, Modules: modules,
		Root: os.Getuid() == 0,
	}); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(n.log)
	NoError(t, err)
	defer out.Close() // The child has its own descriptor.
	// Its life is that of the test's cleanup, which still needs it when the test's context has
	// ended.
	n.cmd = exec.Command(binary, "-p", prefix, "-c", filepath.Join(prefix, "nginx.conf"), "-e", "stderr")
	n.cmd.Stdout, n.cmd.Stderr = out, out
	n.cmd.SysProcAttr = machine.OwnGroupEnding(syscall.SIGTERM)
	NoError(t, n.cmd.Start())
	go func() {
		defer close(n.done)
		_ = n.cmd.Wait() // ProcessState has the result.
	}()
	t.Cleanup(n.stop)
	n.awaitAccepting()
	return n
}

func (n *Nginx) awaitAccepting() {
	n.t.Helper()
	Eventually(n.t, patience, "nginx accepts connections", func() bool {
		select {
		case <-n.done:
			n.t.Fatalf("nginx ended: %s\n%s", n.cmd.ProcessState, n.Log())
		default:
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
	if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		n.t.Errorf("reload of nginx: %v", err)
	}
}

// AwaitCertificate waits until new connections are shown the certificate with that serial number.
func (n *Nginx) AwaitCertificate(serial string) {
	n.t.Helper()
	Eventually(n.t, patience, "nginx shows certificate "+serial, func() bool { return n.serial() == serial })
}

// serial is that of the certificate which nginx shows, "" when there is none to see.
func (n *Nginx) serial() (serial string) {
	config := &tls.Config{
		InsecureSkipVerify: true, // It is only looked at.
		VerifyConnection: func(state tls.ConnectionState) error {
			serial = state.PeerCertificates[0].SerialNumber.String()
			return nil
		},
	}
	dialer := &tls.Dialer{Config: config}
	if conn, err := dialer.DialContext(n.t.Context(), "tcp", n.Addr); err == nil {
		_ = conn.Close() // It was only looked at.
	}
	return serial
}

// Log returns the end of the log of nginx.
func (n *Nginx) Log() string {
	text, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	const most = 20_000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return string(text)
}

// stop ends nginx at once, workers included, and shows its log where the test has failed.
func (n *Nginx) stop() {
	const grace = 5 * time.Second
	_ = n.cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
	select {
	case <-n.done:
	case <-time.After(grace):
		_ = syscall.Kill(-n.cmd.Process.Pid, syscall.SIGKILL) // The group that was made for it.
		<-n.done
	}
	if n.t.Failed() {
		n.t.Logf("log of nginx:\n%s", n.Log())
	}
}

// settings are the values in the configuration.
type nginxSettings struct {
	GatewayOptions

	Listen, Modules string
	Root            bool
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
