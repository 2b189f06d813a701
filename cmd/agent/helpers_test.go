package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the longest wait for an effect that is immediate unless something is broken.
const patience = 2 * time.Minute

func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()

		noError(tb, err)
		return value
	}
}

func noError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// pki is the certificates of a runtime, as a secret volume, and the CA that issued them.
type pki struct {
	ca     *testpki.CA
	volume *testpki.Volume
}

// newPKI issues one certificate that serves the webhook and authenticates with the control plane,
// as today's secrets have it.
func newPKI(tb testing.TB) pki {
	tb.Helper()

	p := pki{must(testpki.NewCA("watcher-ca", testpki.Options{}))(tb), testpki.NewVolume(tb.TempDir())}
	p.write(tb, p.leaf(tb, "runtime-1"))
	return p
}

func (p pki) leaf(tb testing.TB, name string) *testpki.Leaf {
	tb.Helper()
	return must(p.ca.Server(name, testpki.Options{
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}))(tb)
}

func (p pki) write(tb testing.TB, leaf *testpki.Leaf) {
	tb.Helper()
	noError(tb, p.volume.Write(testpki.Files(leaf, p.ca)))
}

// received has the content of one request to a control plane, without resyncs and heartbeats.
type received struct {
	path   string
	runner string // Common Name of the certificate
	proto  string
	events []core.Numbered
}

// controlPlane takes events over mTLS, as a listener does.
type controlPlane struct {
	*httptest.Server

	received chan received
	resyncs  chan string // the path of each request with a resync
	beats    chan *core.Heartbeat
	status   int
	clock    atomic.Pointer[time.Time] // as of which it judges certificates, beyond TLS; nil: not
	ahead    atomic.Int64              // of its clock, in nanoseconds
}

func newControlPlane(tb testing.TB, p pki, status int) *controlPlane {
	tb.Helper()

	leaf := must(p.ca.Server("control-plane", testpki.Options{}))(tb)
	material := must(keys.NewMaterial(p.ca.PEM, leaf.CertPEM, leaf.KeyPEM))(tb)
	kcp := &controlPlane{received: make(chan received, 1000), resyncs: make(chan string, 1000), status: status}
	kcp.beats = make(chan *core.Heartbeat, 1000)
	kcp.Server = httptest.NewUnstartedServer(kcp)
	kcp.TLS = keys.ServerTLSConfig(material)
	kcp.EnableHTTP2 = true
	kcp.StartTLS()
	tb.Cleanup(kcp.Close)

	return kcp
}

// newPlane returns certificates, and a control plane of theirs that takes all.
func newPlane(t *testing.T) (pki, *controlPlane) {
	t.Helper()

	p := newPKI(t)
	return p, newControlPlane(t, p, http.StatusOK)
}

func (kcp *controlPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if ahead := time.Duration(kcp.ahead.Load()); ahead != 0 {
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
	}
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusNotFound)
		return
	}

	body, _ := io.ReadAll(r.Body) // A truncated body fails to decode.
	version := contract.Version(strings.Split(r.URL.Path, "/")[1])
	batch, err := version.Decode(body)
	if err != nil || r.TLS.Version != tls.VersionTLS13 {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}

	if now := kcp.clock.Load(); now != nil && now.After(r.TLS.PeerCertificates[0].NotAfter) {
		w.Header().Set("Retry-After", "300") // Longer than patience.
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if kcp.status != http.StatusOK {
		w.WriteHeader(kcp.status)
		return
	}

	w.WriteHeader(version.Status())
	if kcp.resyncs != nil && bytes.Contains(body, []byte(`resync"`)) {
		kcp.resyncs <- r.URL.Path
	}
	if batch.Heartbeat != nil && kcp.beats != nil {
		select {
		case kcp.beats <- batch.Heartbeat:
		default: // No test reads them.
		}
	}

	changes := slices.DeleteFunc(batch.Events, func(e core.Numbered) bool { return e.Resync })
	if kcp.received != nil && len(changes) > 0 {
		kcp.received <- received{r.URL.Path, r.TLS.PeerCertificates[0].Subject.CommonName, r.Proto, changes}
	}
}

// receive returns the next value that matches.
func receive[T any](tb testing.TB, from <-chan T, match func(T) bool) (value T) {
	tb.Helper()
	for timeout := time.After(patience); ; {
		select {
		case value = <-from:
			if match(value) {
				return value
			}
		case <-timeout:
			tb.Fatalf("no such %T arrived at the control plane", value)
		}
	}
}

func (kcp *controlPlane) next(tb testing.TB) received {
	tb.Helper()
	return receive(tb, kcp.received, func(received) bool { return true })
}

func (kcp *controlPlane) nextResync(tb testing.TB) {
	tb.Helper()
	receive(tb, kcp.resyncs, func(string) bool { return true })
}

// awaitBeat waits for a heartbeat that matches.
func (kcp *controlPlane) awaitBeat(tb testing.TB, match func(*core.Heartbeat) bool) {
	tb.Helper()
	receive(tb, kcp.beats, match)
}

// address is host:port, as today's deployments have it.
func (kcp *controlPlane) address() string { return strings.TrimPrefix(kcp.URL, "https://") }

// env is the variables of an agent that finds free ports.
func env(p pki, kcp *controlPlane, more ...string) []string {
	ca, cert, key := p.volume.Paths()
	return append([]string{
		"WEBHOOK_PORT=0", "METRICS_PORT=0", "CA_CERT=" + ca, "TLS_CERT=" + cert, "TLS_KEY=" + key,
		"KCP_ADDR=" + kcp.address(), "SETTLE=1ms", "RESEND_AFTER=0s", "GOMEMLIMIT=off",
	}, more...)
}

// writeFile writes a file in a folder of the test, and returns its path.
func writeFile(tb testing.TB, path, text string) string {
	tb.Helper()

	noError(tb, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// started is an agent that runs in this process.
type started struct {
	pki              pki
	log              *logBook
	webhook, metrics string
	signal           context.CancelFunc
	ended            chan error
	client           *http.Client
}

// until scrapes the metrics until they have no problem.
func (s *started) until(tb testing.TB, problem func(scrape string) string) {
	tb.Helper()
	for deadline := time.Now().Add(patience); ; {
		scrape := s.scrape(tb)
		wrong := problem(scrape)
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s in\n%s", wrong, scrape)
		}
	}
}

// scrape returns the metrics.
func (s *started) scrape(tb testing.TB) string {
	tb.Helper()

	_, body := s.get(tb, "http://"+s.metrics+"/metrics")
	return body
}

// lookup returns the environment with these pairs. The last pair of a name counts.
func lookup(env []string) environment { return newEnvironment(env) }

// logBook is a log that can be waited for.
type logBook struct {
	mu    sync.Mutex
	lines []map[string]any
	rest  []byte
	more  chan struct{} // closed and replaced when there are more lines
}

func newLogBook() *logBook { return &logBook{more: make(chan struct{})} }

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rest = append(b.rest, p...)

	for {
		text, rest, whole := bytes.Cut(b.rest, []byte("\n"))
		if !whole {
			break
		}

		b.rest = rest
		var line map[string]any
		if err := json.Unmarshal(text, &line); err != nil {
			line = map[string]any{"msg": "NO JSON: " + string(text)}
		}

		b.lines = append(b.lines, line)
	}

	close(b.more)
	b.more = make(chan struct{})
	return len(p), nil
}

// all returns the lines with that message so far. more is closed when another one comes.
func (b *logBook) all(message string) (found []map[string]any, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if line["msg"] == message {
			found = append(found, line)
		}
	}

	return found, b.more
}

func (b *logBook) snapshot() []map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lines)
}

// wait returns the first n lines with that message.
func (b *logBook) wait(tb testing.TB, message string, n int) []map[string]any {
	tb.Helper()

	timeout := time.After(patience)
	for {
		found, more := b.all(message)
		if len(found) >= n {
			return found[:n]
		}

		select {
		case <-more:
		case <-timeout:
			tb.Fatalf("no %d lines %q in the log:\n%v", n, message, b.snapshot())
		}
	}
}

// addresses waits until both servers listen.
func (b *logBook) addresses(tb testing.TB) (webhook, metrics string) {
	tb.Helper()

	for _, line := range b.wait(tb, "listening", 2) {
		_, port, _ := strings.Cut(fmt.Sprint(line["address"]), "]:")
		if port == "" {
			_, port, _ = strings.Cut(fmt.Sprint(line["address"]), ":")
		}
		if line["server"] == "webhook" {
			webhook = "127.0.0.1:" + port
		} else {
			metrics = "127.0.0.1:" + port
		}
	}

	return webhook, metrics
}

func start(tb testing.TB, p pki, env []string, args ...string) *started {
	tb.Helper()

	ctx, signal := context.WithCancel(tb.Context())
	s := &started{pki: p, log: newLogBook(), signal: signal, ended: make(chan error, 1), client: p.apiServer(tb)}
	go func() { s.ended <- run(ctx, args, lookup(env), io.Discard, s.log) }()
	s.webhook, s.metrics = s.log.addresses(tb)

	return s
}

// startWith starts an agent of a control plane that answers a status.
func startWith(tb testing.TB, status int, more ...string) (*controlPlane, *started) {
	tb.Helper()

	p := newPKI(tb)
	kcp := newControlPlane(tb, p, status)
	return kcp, start(tb, p, env(p, kcp, more...))
}

// stalls returns how often the agent did not run for 1 s or longer, on a busy machine. Each stall adds
// a resync for each manager.
func (s *started) stalls() float64 {
	lines, _ := s.log.all("reviews may have been missed: a resync is requested")
	return float64(len(lines))
}

// fates are those of all events. done counts the delivered and the coalesced ones.
type fates struct{ accepted, done, dropped, pending float64 }

// stop stops the agent and returns the fates in its last log line.
func (s *started) stop(tb testing.TB) fates {
	tb.Helper()

	s.client.CloseIdleConnections()
	s.signal()
	if err := <-s.ended; err != nil {
		tb.Errorf("agent ended with %v, want nil", err)
	}

	events := must(json.Marshal(s.log.wait(tb, "agent stopped", 1)[0]["events"]))(tb)
	var managers map[core.Manager]outbox.Counts
	noError(tb, json.Unmarshal(events, &managers))
	var sum fates

	for _, c := range managers {
		sum.accepted += float64(c.Accepted)
		sum.done += float64(c.Delivered + c.Coalesced)
		sum.pending += float64(c.Pending)

		for _, n := range c.Dropped {
			sum.dropped += float64(n)
		}
	}

	return sum
}

// apiServer is the client of an API server, with its client certificates if it has any.
func (p pki) apiServer(tb testing.TB, certificates ...tls.Certificate) *http.Client {
	tb.Helper()

	transport := &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: p.ca.Pool(), Certificates: certificates},
		// An API server offers HTTP/2, too, and the webhook must not choose it.
		ForceAttemptHTTP2: true,
	}

	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// get returns status and body of an answer.
func (s *started) get(tb testing.TB, url string) (int, string) {
	tb.Helper()
	return do(tb, s.client, http.MethodGet, url, "")
}

func do(tb testing.TB, client *http.Client, method, url, body string) (int, string) {
	tb.Helper()

	request := must(http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body)))(tb)
	request.Header.Set("Content-Type", "application/json")
	response := must(client.Do(request))(tb)
	answer := must(io.ReadAll(response.Body))(tb)
	noError(tb, response.Body.Close())

	return response.StatusCode, string(answer)
}

// refuses wants the webhook to refuse the connection of a client.
func (s *started) refuses(tb testing.TB, client *http.Client) {
	tb.Helper()

	request := must(http.NewRequestWithContext(tb.Context(), http.MethodPost, "https://"+s.webhook+"/validate/widgets",
		strings.NewReader(reviewBody("demo", false))))(tb)
	if response, err := client.Do(request); err == nil {
		tb.Errorf("status %d, want no connection", response.StatusCode)
		_ = response.Body.Close() // The test has failed.
	}
}

// review posts the creation of a ConfigMap for manager "widgets" and returns the decision in the
// answer.
func (s *started) review(tb testing.TB, name string, dryRun bool) string {
	tb.Helper()
	return review(tb, s.client, s.webhook, name, dryRun)
}

func review(tb testing.TB, client *http.Client, webhook, name string, dryRun bool) string {
	tb.Helper()

	status, body := do(tb, client, http.MethodPost, "https://"+webhook+"/validate/widgets", reviewBody(name, dryRun))
	message := regexp.MustCompile(`"uid":"uid-1","allowed":true,.*"message":"([^"]*)"`).FindStringSubmatch(body)
	if message == nil || status != http.StatusOK {
		tb.Fatalf("answer %d %s, want uid-1 allowed", status, body)
	}

	return message[1]
}

func reviewBody(name string, dryRun bool) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"uid-1",`+
		`"kind":{"group":"","version":"v1","kind":"ConfigMap"},`+
		`"resource":{"group":"","version":"v1","resource":"configmaps"},`+
		`"name":%[1]q,"namespace":"default","operation":"CREATE","userInfo":{},"dryRun":%[2]t,"oldObject":null,"object":{`+
		`"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%[1]q,"namespace":"default","annotations":{`+
		`"operator.kyma-project.io/owned-by":"kcp-system/kyma-1"}},"data":{"a":"b"}}}}`, name, dryRun)
}
