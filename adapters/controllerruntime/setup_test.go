package controllerruntime_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// records is a log that many goroutines write.
type records struct {
	mu    sync.Mutex
	lines []string
}

func (r *records) add(prefix, args string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, prefix+args)
}

func (r *records) has(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(strings.Join(r.lines, "\n"), text)
}

func newManager(t *testing.T, log *records) manager.Manager {
	t.Helper()
	mgr, err := manager.New(&rest.Config{Host: "127.0.0.1:1"}, manager.Options{
		Logger: funcr.New(log.add, funcr.Options{}), Metrics: metricsserver.Options{BindAddress: "0"},
		NewCache: func(*rest.Config, cache.Options) (cache.Cache, error) { return controllerruntimetest.NewCache(), nil },
		NewClient: func(*rest.Config, client.Options) (client.Client, error) {
			return nil, nil //nolint:nilnil // Nothing uses it.
		},
	})
	check(t, err)
	return mgr
}

// A runtime that is refused has a line in the log of the controller manager, and nothing else was
// added to it by hand.
func TestSetUpListener(t *testing.T) {
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	serving, stranger := must(ca.Server("operator", testpki.Options{})), must(ca.Client("runtime-1", testpki.Options{}))
	volume, reloaded := testpki.NewVolume(t.TempDir()), make(chan struct{}, 1)
	if err := volume.Write(testpki.Files(serving, ca)); err != nil {
		t.Fatal(err)
	}
	bundle, cert, key := volume.Paths()
	material := must(keys.NewFiles(keys.Paths{CA: bundle, Certificate: cert, Key: key}, keys.FilesOptions{
		Poll: time.Millisecond, Hooks: keys.FilesHooks{Reloaded: func(keys.Generation) { reloaded <- struct{}{} }},
	}))
	refuse := core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error {
		return listener.Forbidden("san_mismatch", "not registered")
	})
	socket := must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	log := &records{}
	mgr := newManager(t, log)
	none := func(context.Context, core.Delivery) ([]string, error) { return nil, nil }
	opts := controllerruntime.ComponentOptions{Listener: listener.Options{Listener: socket}}
	source, err := controllerruntime.SetUpListener(mgr, "", "my-operator", controllerruntime.MutualTLS(material), refuse, none, opts)
	if err != nil || source == nil {
		t.Fatalf("source %v, error %v", source, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		check(t, <-ended)
	}()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	defer queue.ShutDown()
	check(t, source.Start(ctx, queue))
	pair := must(tls.X509KeyPair(stranger.CertPEM, stranger.KeyPEM))
	sender := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: ca.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13,
	}}}
	defer sender.CloseIdleConnections()
	deadline := time.Now().Add(2 * time.Minute)
	for status := 0; status != http.StatusForbidden; {
		if time.Now().After(deadline) {
			t.Fatalf("status %d, want 403", status)
		}
		status = post(t, sender, "https://"+socket.Addr().String()+"/v2/my-operator/event")
	}
	for !log.has("san_mismatch") {
		if time.Now().After(deadline) {
			t.Fatalf("the refusal is not in the log of the controller manager: %q", log.lines)
		}
	}
	if err := volume.Write(testpki.Files(must(ca.Server("operator", testpki.Options{})), ca)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reloaded:
	case <-time.After(time.Minute):
		t.Error("the files were not read again")
	}
}

func post(t *testing.T, sender *http.Client, url string) int {
	t.Helper()
	body := strings.NewReader(`{"watched":{"Namespace":"a","Name":"b"},"watchedGvk":{"group":"","version":"v1","kind":"ConfigMap"}}`)
	request := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url, body))
	request.Header.Set("Content-Type", "application/json")
	answer, err := sender.Do(request)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

func TestSetUpListenerRefusesMissingParts(t *testing.T) {
	none := func(context.Context, core.Delivery) ([]string, error) { return nil, nil }
	gateway := controllerruntime.BehindGateway(listener.FromXFCC(listener.InsecureAnyProxy(), nil, listener.PeerOptions{}))
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	serving := must(ca.Server("operator", testpki.Options{}))
	own := controllerruntime.MutualTLS(must(keys.NewMaterial(ca.PEM, serving.CertPEM, serving.KeyPEM)))
	mgr := newManager(t, &records{})
	setUp := func(mgr manager.Manager, component string, senders controllerruntime.Senders, config *tls.Config) error {
		_, err := controllerruntime.SetUpListener(mgr, ":0", component, senders, listener.InsecureAllowAll(), none,
			controllerruntime.ComponentOptions{Listener: listener.Options{TLS: config}})
		return err
	}
	for want, test := range map[string]struct {
		component string
		senders   controllerruntime.Senders
		tls       *tls.Config
	}{
		"peers are nil":        {component: "m"},
		"manager":              {senders: gateway},
		"CA bundle is nil":     {component: "n", senders: controllerruntime.MutualTLS((*keys.Files)(nil))},
		"Options.Listener.TLS": {component: "o", senders: own, tls: &tls.Config{MinVersion: tls.VersionTLS13}},
	} {
		err := setUp(mgr, test.component, test.senders, test.tls)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	// A call that failed leaves nothing. A second readiness check of a name would replace the first.
	check(t, setUp(mgr, "o", own, nil))
	if err := setUp(mgr, "o", own, nil); err == nil || !strings.Contains(err.Error(), `listener component "o" is`) {
		t.Errorf("a second listener of one name: error %v", err)
	}
	check(t, errors.Join(setUp(mgr, "p", own, nil), setUp(newManager(t, &records{}), "o", own, nil)))
}

// defaultLog is that of controller-runtime, which a process sets once.
var defaultLog records

func TestMain(m *testing.M) {
	ctrl.SetLogger(funcr.New(defaultLog.add, funcr.Options{}))
	goleak.VerifyTestMain(m)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestRegisterListenerComponentRefuses(t *testing.T) {
	t.Parallel()
	peers := listener.FromTLSWithRoots(func() *x509.CertPool { return nil }, listener.PeerOptions{})
	verify, none := listener.InsecureAllowAll(), controllerruntime.ComponentOptions{}
	for name, tc := range map[string]struct {
		component string
		peers     listener.Peers
		verify    core.Verifier
		mapFunc   controllerruntime.MapFunc[string]
		opts      controllerruntime.ComponentOptions
		want      string
	}{
		"no component":         {"", peers, verify, byWatched, none, "DNS-1123 label"},
		"component in capital": {"Operator", peers, verify, byWatched, none, "DNS-1123 label"},
		"component with slash": {"a/b", peers, verify, byWatched, none, "DNS-1123 label"},
		"component too long":   {strings.Repeat("a", 64), peers, verify, byWatched, none, "DNS-1123 label"},
		"no peers":             {"operator", listener.Peers{}, verify, byWatched, none, "operator: listener"},
		"no verifier":          {"operator", peers, nil, byWatched, none, "operator: listener"},
		"a nil verifier":       {"operator", peers, core.VerifierFunc(nil), byWatched, none, "operator: listener"},
		"no map":               {"operator", peers, verify, nil, none, "map function"},
		"two addresses": {
			"operator", peers, verify, byWatched,
			controllerruntime.ComponentOptions{Listener: listener.Options{Addr: ":8443"}},
			`":8082" and ":8443"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events, source, err := controllerruntime.RegisterListenerComponent(
				":8082", tc.component, tc.peers, tc.verify, tc.mapFunc, tc.opts)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("have %v, want an error that says %q", err, tc.want)
			}
			if events != nil || source != nil {
				t.Error("have a listener or a source beside the error")
			}
		})
	}
}

func TestBrowserFilterRefusesNil(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a provider that is nil is taken")
		}
	}()
	controllerruntime.BrowserFilter(nil)
}

// A panic must not be silent if no logger is given.
func TestTheDefaultLoggerIsThatOfTheOperator(t *testing.T) {
	t.Parallel()
	source := controllerruntime.NewSource(func(context.Context, core.Delivery) ([]string, error) {
		panic("without a logger")
	}, controllerruntime.SourceOptions{})
	started(t, source, newQueue(t))
	if err := source.Handle(t.Context(), delivery("skr-1", "a")); err == nil || !defaultLog.has("without a logger") {
		t.Errorf("error %v, and ctrl.Log has %q", err, defaultLog.lines)
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	sink := funcr.New(func(_, args string) { lines.WriteString(args + "\n") }, funcr.Options{Verbosity: 4})
	logger := controllerruntime.Logger(sink).With("manager", "operator")
	logger.Error("broken", "runtime", "skr-1")
	logger.Debug("handled")
	logger.Log(t.Context(), slog.LevelDebug-1, "too much")
	want := `"msg"="broken" "error"=null "manager"="operator" "runtime"="skr-1"` + "\n" +
		`"level"=4 "msg"="handled" "manager"="operator"` + "\n"
	if got := lines.String(); got != want {
		t.Errorf("have\n%swant\n%s", got, want)
	}
}

// answersOfServer are the answers of an API server to each Apply. The last one stays.
type answersOfServer struct {
	client.Writer

	answers          []error
	takes            time.Duration
	calls, endpoints int
}

func (a *answersOfServer) Apply(ctx context.Context, object runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	err := a.answers[min(a.calls, len(a.answers)-1)]
	a.calls++
	if slice, ok := object.(*discoveryv1ac.EndpointSliceApplyConfiguration); ok && err == nil {
		a.endpoints = len(slice.WithResourceVersion("1").Endpoints)
	}
	select {
	case <-time.After(a.takes):
		return err
	case <-ctx.Done():
		return ctx.Err() // It is written.
	}
}

// An API server that has just started may forbid what it allows soon after. That must not end an
// operator that leads. An endpoint is removed, also if it was being written when the operator ended.
func TestLeaderEndpointOutlastsRefusals(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "my-operator-leader", nil)
	for leads, server := range map[time.Duration]*answersOfServer{
		time.Minute: {answers: []error{nil, forbidden, nil}}, time.Second: {answers: []error{nil}, takes: 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			endpoint, err := controllerruntime.NewLeaderEndpoint(server, types.NamespacedName{Namespace: "kcp", Name: "events"},
				"192.0.2.1", map[string]int32{"events": 8082}, controllerruntime.LeaderEndpointOptions{})
			check(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), leads)
			defer cancel()
			if err := endpoint.Start(ctx); err != nil {
				t.Errorf("Start returns %v, want it to try again", err)
			}
			if ctx.Err() == nil || server.calls < len(server.answers) || server.endpoints > 0 {
				t.Errorf("Start ended after %d writes with %d endpoints, want none", server.calls, server.endpoints)
			}
		})
	}
}

// With a negative interval it would write without a pause.
func TestNewLeaderEndpointRefuses(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]controllerruntime.LeaderEndpointOptions{"client": {}, "RefreshInterval": {RefreshInterval: -1}} {
		server := map[string]client.Writer{"RefreshInterval": &answersOfServer{}}[name]
		_, err := controllerruntime.NewLeaderEndpoint(server, types.NamespacedName{Namespace: "kcp", Name: "events"},
			"192.0.2.1", map[string]int32{"events": 8082}, opts)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one about %s", err, name)
		}
	}
}
