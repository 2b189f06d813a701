package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const (
	eventV1 = `{"owner":{"Namespace":"kcp-system","Name":"kyma-1"},"watched":{"Namespace":"default","Name":"demo"},` +
		`"watchedGvk":{"group":"apps","version":"v1","kind":"Deployment"}}`
	eventV2 = `{"watched":{"Namespace":"default","Name":"demo"},"watchedGvk":{"group":"","version":"v1","kind":"ConfigMap"}}`
)

// pki is what a runtime and a listener need to know each other.
type pki struct {
	ca            *testpki.CA
	client        *testpki.Leaf
	caFile        string
	cert, keyFile string
}

func newPKI(t *testing.T) pki {
	t.Helper()

	ca := must(testpki.NewCA("runtimes", testpki.Options{}))(t)
	server := must(ca.Server("listener", testpki.Options{}))(t)
	volume := testpki.NewVolume(t.TempDir())

	if err := volume.Write(must(testpki.Files(server, ca))(t)); err != nil {
		t.Fatal(err)
	}

	p := pki{ca: ca, client: must(ca.Client("runtime-1", testpki.Options{}))(t)}
	p.caFile, p.cert, p.keyFile = volume.Paths()

	return p
}

// runtime returns a client that shows certificates.
func (p pki) runtime(t *testing.T, certificates ...tls.Certificate) *http.Client {
	t.Helper()

	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: p.ca.Pool(), Certificates: certificates},
		ForceAttemptHTTP2: true,
	}
	t.Cleanup(transport.CloseIdleConnections)

	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()

		if err != nil {
			t.Fatal(err)
		}

		return value
	}
}

// output is a stdout that can be read meanwhile.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.text.Write(p)
}

// line takes the next line out.
func (o *output) line() string {
	o.mu.Lock()
	defer o.mu.Unlock()

	text, err := o.text.ReadString('\n')
	if err != nil {
		return "no line, but " + text
	}

	return text
}

// started is a run in progress.
type started struct {
	addr   string
	stdout *output
	stop   func() error
}

// start runs the program on a free port.
func start(t *testing.T, args ...string) started {
	t.Helper()

	stdout := new(output)
	addr, stop := startWith(t, stdout, args...)

	return started{addr: addr, stdout: stdout, stop: stop}
}

func startWith(t *testing.T, stdout io.Writer, args ...string) (addr string, stop func() error) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	log, stderr := io.Pipe()
	ended := make(chan error, 1)

	go func() {
		err := run(ctx, append([]string{"-addr=127.0.0.1:0"}, args...), func(string) string { return "" }, stdout, stderr)
		ended <- errors.Join(err, stderr.CloseWithError(err))
	}()

	return bindAddress(t, log), func() error {
		cancel()

		return <-ended
	}
}

// bindAddress waits for the address in the log, and sees to it that the rest of the log is read.
func bindAddress(t *testing.T, log io.Reader) string {
	t.Helper()

	listening := regexp.MustCompile(`msg=listening addr=(\S+)`)
	reader := bufio.NewReader(log)

	for {
		text, err := reader.ReadString('\n')
		if err != nil {
			t.Fatalf("no address in the log: %v", err)
		}

		if match := listening.FindStringSubmatch(text); match != nil {
			go io.Copy(io.Discard, reader) //nolint:errcheck // Ends with the program.

			return match[1]
		}
	}
}

// next returns the next line, without its time, which must be recent.
func (s started) next(t *testing.T) line {
	t.Helper()

	var l line

	text := s.stdout.line()
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		t.Fatalf("want a line of JSON, have %q: %v", text, err)
	}

	if age := time.Since(l.Received); age < 0 || age > time.Minute {
		t.Errorf("received %v ago, want a moment", age)
	}

	l.Received = time.Time{}

	return l
}

// post sends an event and returns the status of the answer.
func post(t *testing.T, client *http.Client, target, body string, header http.Header) int {
	t.Helper()

	response, err := send(t, client, target, body, header)
	if err != nil {
		t.Fatalf("post: %v", err)
	}

	if err := response.Body.Close(); err != nil {
		t.Errorf("close the answer: %v", err)
	}

	return response.StatusCode
}

func send(t *testing.T, client *http.Client, target, body string, header http.Header) (*http.Response, error) {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}

	request.Header = http.Header{"Content-Type": {"application/json"}}
	maps.Copy(request.Header, header)

	return client.Do(request)
}

func TestPrintsWhatARuntimeSendsByMTLS(t *testing.T) {
	p := newPKI(t)
	program := start(t, "-manager=my-operator,other", "-ca="+p.caFile, "-cert="+p.cert, "-key="+p.keyFile)
	client := p.runtime(t, p.client.TLS())

	cases := []struct {
		path, body string
		want       line
	}{
		{"/v2/my-operator/event", eventV2, line{
			Runtime: "runtime-1", Manager: "my-operator", Event: "changed",
			APIVersion: "v1", Kind: "ConfigMap", Namespace: "default", Name: "demo",
		}},
		{"/v1/other/event", eventV1, line{
			Runtime: "runtime-1", Manager: "other", Event: "changed", Owner: "kcp-system/kyma-1",
			APIVersion: "apps/v1", Kind: "Deployment", Namespace: "default", Name: "demo",
		}},
	}

	for _, c := range cases {
		if got := post(t, client, "https://"+program.addr+c.path, c.body, nil); got != http.StatusOK {
			t.Fatalf("%s was answered %d, want 200", c.path, got)
		}

		if diff := cmp.Diff(c.want, program.next(t)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.path, diff)
		}
	}

	client.CloseIdleConnections()

	if err := program.stop(); err != nil {
		t.Errorf("stopped with %v, want nil", err)
	}
}

func TestRefusesARuntimeWithoutCertificate(t *testing.T) {
	p := newPKI(t)
	program := start(t, "-manager=my-operator", "-ca="+p.caFile, "-cert="+p.cert, "-key="+p.keyFile)

	response, err := send(t, p.runtime(t), "https://"+program.addr+"/v2/my-operator/event", eventV2, nil)
	if err == nil {
		t.Errorf("was answered %d, want no connection", response.StatusCode)

		if err = response.Body.Close(); err != nil {
			t.Error(err)
		}
	}

	if err := program.stop(); err != nil {
		t.Errorf("stopped with %v, want nil", err)
	}
}

func TestBelievesTheHeaderOfTheGatewayOnly(t *testing.T) {
	p := newPKI(t)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.client.Certificate().Raw})
	header := http.Header{listener.HeaderXFCC: {`Cert="` + url.PathEscape(string(cert)) + `"`}}
	client := p.runtime(t)

	gateway := start(t, "-manager=my-operator", "-ca="+p.caFile, "-xfcc-from=127.0.0.0/8, ::1/128")
	if got := post(t, client, "http://"+gateway.addr+"/v2/my-operator/event", eventV2, header); got != http.StatusOK {
		t.Fatalf("from the gateway: was answered %d, want 200", got)
	}

	if got := gateway.next(t).Runtime; got != "runtime-1" {
		t.Errorf("got an event of %q, want runtime-1", got)
	}

	elsewhere := start(t, "-manager=my-operator", "-ca="+p.caFile, "-xfcc-from=192.0.2.0/24")
	if got := post(t, client, "http://"+elsewhere.addr+"/v2/my-operator/event", eventV2, header); got != http.StatusUnauthorized {
		t.Errorf("past the gateway: was answered %d, want 401", got)
	}

	client.CloseIdleConnections()

	if err := errors.Join(gateway.stop(), elsewhere.stop()); err != nil {
		t.Errorf("stopped with %v, want nil", err)
	}
}

// brokenPipe is a stdout that nobody reads any more.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestAnEventThatIsNotPrintedIsNotAcknowledged(t *testing.T) {
	p := newPKI(t)
	addr, stop := startWith(t, brokenPipe{}, "-manager=my-operator", "-ca="+p.caFile, "-cert="+p.cert, "-key="+p.keyFile)
	client := p.runtime(t, p.client.TLS())

	if got := post(t, client, "https://"+addr+"/v2/my-operator/event", eventV2, nil); got != http.StatusServiceUnavailable {
		t.Errorf("was answered %d, want 503", got)
	}

	client.CloseIdleConnections()

	if err := stop(); err != nil {
		t.Errorf("stopped with %v, want nil", err)
	}
}

func TestFailsWithoutKeyMaterialOrPort(t *testing.T) {
	p := newPKI(t)
	program := start(t, "-manager=m", "-ca="+p.caFile, "-cert="+p.cert, "-key="+p.keyFile)

	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no file":    {[]string{"-addr=127.0.0.1:0", "-manager=m", "-ca=" + p.caFile + ".none", "-xfcc-from=::1/128"}, "ca.crt.none"},
		"port taken": {[]string{"-addr=" + program.addr, "-manager=m", "-ca=" + p.caFile, "-xfcc-from=::1/128"}, "bind " + program.addr},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), c.args, func(string) string { return "" }, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != 1 {
				t.Errorf("got %v with exit code %d, want one about %s and 1", err, exitCode(err), c.want)
			}
		})
	}

	if err := program.stop(); err != nil {
		t.Error(err)
	}
}

// command is the program as a process.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")

	return cmd
}

func TestProcessNamesAllWrongFlagsAndExitsWith2(t *testing.T) {
	var stdout, stderr bytes.Buffer

	cmd := command(t, "-manager=A/b,good,-", "-what", "-xfcc-from=nowhere", "stray", "-addr=nothing", "-key=key")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr

	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != exitUsage {
		t.Errorf("ended with %v, want exit code %d", err, exitUsage)
	}

	for _, want := range []string{`"A/b"`, `"-"`, "-what", `"nowhere"`, `"stray"`, "-addr", "-ca is empty", "-xfcc-from and -cert or -key"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("nothing about %s in:\n%s", want, &stderr)
		}
	}

	if stdout.Len() > 0 {
		t.Errorf("printed %q to stdout, want nothing", &stdout)
	}
}

func TestProcessStopsOnSignal(t *testing.T) {
	p := newPKI(t)

	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd := command(t)
			cmd.Env = append(cmd.Env, "ADDR=127.0.0.1:0", "MANAGERS=my-operator", "CA_CERT="+p.caFile, "TLS_CERT="+p.cert, "TLS_KEY="+p.keyFile)

			log, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}

			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}

			bindAddress(t, log)

			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}

			if err := cmd.Wait(); err != nil {
				t.Errorf("ended with %v, want exit code 0", err)
			}
		})
	}
}

func TestHelpIsNoError(t *testing.T) {
	var stdout bytes.Buffer
	if err := run(t.Context(), []string{"-help"}, os.Getenv, &stdout, io.Discard); err != nil {
		t.Errorf("got %v, want nil", err)
	}

	for _, want := range []string{"-addr", "-manager", "-ca", "-cert", "-key", "-xfcc-from"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %s in\n%s", want, &stdout)
		}
	}
}
