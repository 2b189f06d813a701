package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// asProgram makes the test binary the program itself, for tests that need a process.
const asProgram = "TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const eventV2 = `{"watched":{"Namespace":"default","Name":"demo"},` +
	`"watchedGvk":{"group":"","version":"v1","kind":"ConfigMap"}}`

// pki is the key material of a runtime and of a listener.
type pki struct {
	*lab.PKI

	runtime *testpki.Leaf
	volume  *testpki.Volume
}

func newPKI(t *testing.T) pki {
	t.Helper()
	p := lab.NewPKI(t)
	return pki{
		PKI: p, runtime: lab.Must(p.CA.Client("runtime-1", testpki.Options{})),
		volume: p.Volume(lab.Must(p.CA.Server("listener", testpki.Options{}))),
	}
}

// direct returns the flags for direct connections.
func (p pki) direct() []string {
	ca, cert, key := p.volume.Paths()
	return []string{"-manager=my-operator", "-ca=" + ca, "-cert=" + cert, "-key=" + key}
}

// behind returns the flags for a gateway.
func (p pki) behind(flags ...string) []string {
	return append([]string{"-manager=my-operator", "-ca=" + p.volume.Path("ca.crt")}, flags...)
}

// client returns a client that connects from a loopback address.
func (p pki) client(t *testing.T, from string, certificates ...tls.Certificate) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{
		DialContext:       dialer.DialContext,
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: p.CA.Pool(), Certificates: certificates},
	}
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// addressLog is a log that reports the address of the listener.
type addressLog chan string

var address = regexp.MustCompile(`listener started" address=(\S+)`)

func (l addressLog) Write(text []byte) (int, error) {
	if match := address.FindSubmatch(text); match != nil {
		l <- string(match[1])
	}
	return len(text), nil
}

// start runs the program on a free port until the test ends.
func start(t *testing.T, stdout io.Writer, args []string) (addr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log := make(addressLog, 1)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, append(args, "-addr=127.0.0.1:0"), stdout, log) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("stopped with %v, want nil", err)
		}
	})
	select {
	case addr = <-log:
		return addr
	case err := <-ended:
		ended <- nil
		t.Fatalf("did not start: %v", err)
		return ""
	}
}

// post sends an event and returns the status of the answer.
func post(t *testing.T, client *http.Client, target, header string) (int, error) {
	t.Helper()
	request := lab.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(eventV2)))
	request.Header.Set("Content-Type", "application/json")
	if header != "" {
		request.Header.Set("X-Forwarded-Client-Cert", header)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func TestPrintsEventsOfDirectConnections(t *testing.T) {
	p := newPKI(t)
	out, stdout := io.Pipe()
	addr := start(t, stdout, p.direct())
	printed := make(chan map[string]string, 1)
	go func() {
		var line map[string]string
		_ = json.NewDecoder(out).Decode(&line) // An empty line fails the comparison.
		printed <- line
	}()
	target := "https://" + addr + "/v2/my-operator/event"
	if status, err := post(t, p.client(t, "127.0.0.1", p.runtime.TLS), target, ""); status != http.StatusOK {
		t.Fatalf("status %d and %v, want 200", status, err)
	}
	line := <-printed
	if _, err := time.Parse(time.RFC3339Nano, line["received"]); err != nil {
		t.Error(err)
	}
	delete(line, "received")
	want := map[string]string{
		"runtime": "runtime-1", "manager": "my-operator", "event": "changed",
		"kind": "ConfigMap", "namespace": "default", "name": "demo",
	}
	if diff := cmp.Diff(want, line); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

func TestRefusesAConnectionWithoutCertificate(t *testing.T) {
	p := newPKI(t)
	addr := start(t, io.Discard, p.direct())
	if status, err := post(t, p.client(t, "127.0.0.1"), "https://"+addr+"/v2/my-operator/event", ""); err == nil {
		t.Errorf("status %d, want no connection", status)
	}
}

const (
	gatewayName = "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway"
	// sidecar is the address from which an Istio sidecar connects.
	sidecar = "127.0.0.6"
)

func TestGateways(t *testing.T) {
	p := newPKI(t)
	header := lab.ByGateway(p.runtime.TLS.Leaf)
	behindSidecar := []string{"-proxy-addresses=" + sidecar + "/32", "-gateway-names=gateway.example," + gatewayName}
	for name, c := range map[string]struct {
		flags        []string
		from, header string
		want         int
	}{
		"gateway":                 {[]string{"-proxy-addresses=192.0.2.0/24,127.0.0.1/32"}, "127.0.0.1", header, 200},
		"without a gateway":       {[]string{"-proxy-addresses=192.0.2.0/24"}, "127.0.0.1", header, 401},
		"sidecar":                 {behindSidecar, sidecar, lab.BySidecar(header, gatewayName), 200},
		"without a sidecar":       {behindSidecar, "127.0.0.1", lab.BySidecar(header, gatewayName), 401},
		"sidecar, no gateway":     {behindSidecar, sidecar, header, 401},
		"sidecar, other client":   {behindSidecar, sidecar, lab.BySidecar(header, "spiffe://cluster.local/ns/x/sa/y"), 401},
		"sidecar, names not set":  {behindSidecar[:1], sidecar, lab.BySidecar(header, gatewayName), 401},
		"sidecar, without header": {behindSidecar, sidecar, "", 401},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout bytes.Buffer
			addr := start(t, &stdout, p.behind(c.flags...))
			status, err := post(t, p.client(t, c.from), "http://"+addr+"/v2/my-operator/event", c.header)
			if status != c.want {
				t.Errorf("status %d and %v, want %d", status, err, c.want)
			}
			printed := strings.Contains(stdout.String(), `"runtime":"runtime-1"`)
			if printed != (c.want == http.StatusOK) {
				t.Errorf("printed %q", &stdout)
			}
		})
	}
}

func TestDoesNotAcknowledgeAnUnprintedEvent(t *testing.T) {
	p := newPKI(t)
	broken, stdout := io.Pipe()
	lab.NoError(t, broken.Close())
	addr := start(t, stdout, p.direct())
	target := "https://" + addr + "/v2/my-operator/event"
	status, err := post(t, p.client(t, "127.0.0.1", p.runtime.TLS), target, "")
	if status != http.StatusInternalServerError {
		t.Errorf("status %d and %v, want 500", status, err)
	}
}

func TestWrongFlags(t *testing.T) {
	p := newPKI(t)
	taken := start(t, io.Discard, p.direct())
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown":          {[]string{"-unknown"}, "-unknown"},
		"wrong range":      {p.behind("-proxy-addresses=::1/128,nowhere"), `"nowhere"`},
		"wrong manager":    {append(p.direct(), "-manager=A/b"), `"A/b"`},
		"no mode":          {p.behind(), "want either -cert and -key, or"},
		"two modes":        {append(p.direct(), "-proxy-addresses=::1/128"), "want either -cert and -key, or"},
		"file is missing":  {append(p.direct(), "-ca=missing.crt"), "missing.crt"},
		"address is taken": {append(p.direct(), "-addr="+taken), taken},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), c.args, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about %s", err, c.want)
			}
		})
	}
}

// command returns the program as a process.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), lab.Must(os.Executable()), args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

func TestProcessStopsOnSignal(t *testing.T) {
	p := newPKI(t)
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd := command(t, append(p.direct(), "-addr=127.0.0.1:0")...)
			log := make(addressLog, 1)
			var lines bytes.Buffer
			cmd.Stderr = io.MultiWriter(&lines, log)
			lab.NoError(t, cmd.Start())
			<-log
			lab.NoError(t, cmd.Process.Signal(signal))
			if err := cmd.Wait(); err != nil {
				t.Errorf("ended with %v, want exit code 0:\n%s", err, &lines)
			}
		})
	}
}

func TestProcessReportsErrors(t *testing.T) {
	out, err := command(t, "-manager=my-operator").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "minimal: want either") {
		t.Errorf("ended with %v, want exit code 1 and the reason:\n%s", err, out)
	}
}

func TestHelp(t *testing.T) {
	out, err := command(t, "-help").CombinedOutput()
	if err != nil {
		t.Errorf("ended with %v, want exit code 0", err)
	}
	for _, want := range []string{"-addr", "-manager", "-ca", "-cert", "-key", "-proxy-addresses", "-gateway-names"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}
