package listener_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	manager = core.Manager("lifecycle")
	// headerXFCC is as Envoy writes it.
	headerXFCC = "X-Forwarded-Client-Cert"
	// The bodies of contracts v1 and v2, as agents of kyma-project/runtime-watcher send them.
	bodyV1 = `{"owner":{"Namespace":"kcp-system","Name":"runtime-a"},"watched":{"Namespace":"kyma-system","Name":"default"},` +
		`"watchedGvk":{"group":"operator.kyma-project.io","version":"v1beta2","kind":"Kyma"}}`
	bodyV2 = `{"watched":{"Namespace":"kyma-system","Name":"default"},` +
		`"watchedGvk":{"group":"operator.kyma-project.io","version":"v1beta2","kind":"Kyma"}}`
)

// recorder keeps deliveries and answers.
type recorder struct {
	mu         sync.Mutex
	deliveries []core.Delivery
	answers    []answered
}

type answered struct {
	Contract string
	Manager  core.Manager
	Status   int
	Reason   string
}

func (r *recorder) Handle(_ context.Context, d core.Delivery) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deliveries = append(r.deliveries, d)
	return nil
}

func (r *recorder) hooks() listener.Hooks {
	return listener.Hooks{
		Answered: func(a hook.Answer) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.answers = append(r.answers, answered{string(a.Contract), a.Manager, a.Status, string(a.Reason)})
		},
	}
}

// taken returns the recorded deliveries and answers, and removes them.
func (r *recorder) taken() ([]core.Delivery, []answered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	deliveries := r.deliveries
	answers := r.answers
	r.deliveries = nil
	r.answers = nil
	return deliveries, answers
}

// known is a peer that needs no certificate.
func known(*http.Request) (core.Peer, error) { return core.Peer{ID: "runtime-a"}, nil }

func handlers(handler core.Handler) map[core.Manager]core.Handler {
	return map[core.Manager]core.Handler{manager: handler}
}

func newListener(
	tb testing.TB, peers listener.Peers, verifier core.Verifier, handler core.Handler, opts listener.Options,
) *listener.Listener {
	tb.Helper()
	return must(listener.New(peers, verifier, handlers(handler), opts))(tb)
}

func post(target, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

func serve(handler http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// running is a listener that serves.
type running struct {
	*listener.Listener

	url  string
	stop context.CancelFunc
	done chan error
}

// start serves on a free port, or with the listener of the options, until the test ends.
func start(
	tb testing.TB, peers listener.Peers, verifier core.Verifier, handler core.Handler, opts listener.Options,
) *running {
	tb.Helper()
	if opts.Listener == nil {
		opts.Listener = listen(tb)
	}
	run := serving(tb, newListener(tb, peers, verifier, handler, opts))
	run.url = "http://" + opts.Listener.Addr().String()
	if opts.TLS != nil {
		run.url = "https://" + opts.Listener.Addr().String()
	}
	return run
}

// serving runs a listener until the test ends.
func serving(tb testing.TB, l *listener.Listener) *running {
	tb.Helper()
	run := &running{Listener: l, done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	run.stop = cancel
	go func() { run.done <- run.Start(ctx) }()

	tb.Cleanup(func() {
		cancel()
		if err, ended := <-run.done; ended && err != nil {
			tb.Errorf("Start returned %v", err)
		}
	})

	return run
}

// stopped waits for the end of Start and returns its error.
func (r *running) stopped() error {
	err := <-r.done
	close(r.done)
	return err
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	return must(net.Listen("tcp", "127.0.0.1:0"))(tb)
}

func serverConfig(tb testing.TB, ca *authority, auth tls.ClientAuthType, clients *authority) *tls.Config {
	tb.Helper()
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{must(ca.Server("listener", testpki.Options{}))(tb).TLS},
		ClientAuth:   auth,
		ClientCAs:    clients.Pool(),
	}
}

// newClient returns a client that shows certs, with connections that it does not share.
func newClient(tb testing.TB, ca *authority, http2 bool, certs ...tls.Certificate) *http.Client {
	tb.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{Protocols: &protocols}

	if ca != nil {
		transport.TLSClientConfig = &tls.Config{
			MinVersion: tls.VersionTLS13,
			RootCAs:    ca.Pool(),
			// Not Certificates: a client would keep back those that the server's CA did not issue.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if len(certs) == 0 {
					return &tls.Certificate{}, nil
				}
				return &certs[0], nil
			},
		}
	}

	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 2 * time.Minute}
}

// send posts and returns the answer with its body read.
func send(tb testing.TB, client *http.Client, target, body string, header http.Header) (*http.Response, string, error) {
	tb.Helper()
	r := must(http.NewRequestWithContext(tb.Context(), http.MethodPost, target, strings.NewReader(body)))(tb)
	if header != nil {
		r.Header = header
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := client.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response, string(text), err
}

func mustSend(tb testing.TB, client *http.Client, target, body string, header http.Header) (*http.Response, string) {
	tb.Helper()
	response, text, err := send(tb, client, target, body, header)
	if err != nil {
		tb.Fatal(err)
	}
	return response, text
}

// eventually waits until met reports true, for as long as the test may run.
func eventually(tb testing.TB, met func() bool) {
	tb.Helper()
	for tick := time.NewTicker(time.Millisecond); !met(); {
		select {
		case <-tick.C:
		case <-tb.Context().Done():
			tb.Fatal("not met when the test ended")
		}
	}
}

func (r *running) address() string { return r.url[strings.LastIndexByte(r.url, '/')+1:] }

const runtimeA, runtimeB = core.RuntimeID("runtime-a"), core.RuntimeID("runtime-b")

// encode returns the body of a request with a batch.
func encode(tb testing.TB, batch core.Batch) []byte {
	tb.Helper()
	request, err := contract.V3.Encode(&batch)
	if err != nil || request.Failed != nil {
		tb.Fatal(err, request.Failed)
	}
	return request.Body
}

// change is a batch with one event. Its object is named by the sequence.
func change(runtime core.RuntimeID, sequence uint64) core.Batch {
	name := strconv.FormatUint(sequence, 10)
	event := core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "kyma-system", Name: name},
		WatchedGVK: schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"},
	}
	return core.Batch{
		Source: runtime, Epoch: "e", Events: []core.Numbered{{WatchEvent: event, ID: name, Sequence: sequence}},
	}
}

func changes(runtime core.RuntimeID, count int) core.Batch {
	batch := core.Batch{Source: runtime, Epoch: "e"}
	for i := range count {
		batch.Events = append(batch.Events, change(runtime, uint64(i+1)).Events...)
	}
	return batch
}

func newFleet(tb testing.TB, opts fleet.Options) *fleet.Fleet {
	tb.Helper()
	return must(fleet.New(opts))(tb)
}

// authority is a throw-away CA.
type authority struct{ *testpki.CA }

// leaf is a certificate with its key.
type leaf struct{ *testpki.Leaf }

// must returns the value of a constructor of package testpki.
func must[T any](value T, err error) func(tb testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}

func newAuthority(tb testing.TB, name string) *authority {
	tb.Helper()
	return &authority{must(testpki.NewCA(name, testpki.Options{}))(tb)}
}

// intermediate returns a CA below a.
func (a *authority) intermediate(tb testing.TB, name string) *authority {
	tb.Helper()
	return &authority{must(a.Intermediate(name, testpki.Options{}))(tb)}
}

// client issues a certificate for a runtime; edits change the good template.
func (a *authority) client(tb testing.TB, name string, edits ...func(*x509.Certificate)) *leaf {
	tb.Helper()
	return &leaf{must(a.Client(name, testpki.Options{Edit: func(c *x509.Certificate) {
		for _, edit := range edits {
			edit(c)
		}
	}}))(tb)}
}

func (a *authority) roots() func() *x509.CertPool {
	pool := a.Pool()
	return func() *x509.CertPool { return pool }
}

// pair is the certificate without others of its chain.
func (l *leaf) pair() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{l.TLS.Leaf.Raw}, PrivateKey: l.TLS.PrivateKey, Leaf: l.TLS.Leaf}
}

// header is the header in which a gateway forwards the certificate.
func (l *leaf) header() string {
	return "Hash=" + fingerprint(l.TLS.Leaf) + `;Cert="` + escapedPEM(l.TLS.Leaf) + `";Subject="` + l.TLS.Leaf.Subject.String() + `";URI=`
}

func selfSigned(tb testing.TB, name string) *leaf {
	tb.Helper()
	return &leaf{must(testpki.SelfSigned(name, testpki.Options{}))(tb)}
}

func expired(c *x509.Certificate) {
	c.NotBefore = time.Now().Add(-2 * time.Hour)
	c.NotAfter = time.Now().Add(-time.Hour)
}

func serverOnly(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }

func dnsNames(names ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.DNSNames = names }
}

func uri(tb testing.TB, text string) func(*x509.Certificate) {
	tb.Helper()
	parsed := must(url.Parse(text))(tb)
	return func(c *x509.Certificate) { c.URIs = append(c.URIs, parsed) }
}

func escapedPEM(certs ...*x509.Certificate) string {
	return strings.ReplaceAll(url.PathEscape(string(encodePEM(certs...))), "+", "%2B")
}

func encodePEM(certs ...*x509.Certificate) []byte {
	var text []byte
	for _, cert := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return text
}

func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}
