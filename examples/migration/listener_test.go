package migration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/lifecyclemanager"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

const testRuntime = "11111111-2222-3333-4444-555555555555"

// planeWorld is a control plane of today with our listener in its operator.
type planeWorld struct {
	t     *testing.T
	plane *apiserver.ControlPlane
	ca    *testpki.CA
	addr  string // of the gateway
	dir   string // has the log of the operator

	mu         sync.Mutex
	reconciled []string
}

func newPlaneWorld(t *testing.T) *planeWorld {
	t.Helper()
	rig.SkipShort(t)
	w := &planeWorld{t: t, addr: rig.Address(rig.FreePort(t)), dir: t.TempDir()}
	w.plane = apiserver.StartT(t, apiserver.Options{CRDPaths: manifests.Routes(t, watcher.VirtualService)})
	ca, err := testpki.NewCA("klm-watcher-selfsigned-ca", testpki.Options{})
	w.must(err)
	w.ca = ca
	for _, name := range []string{today.PlaneNamespace, today.GatewayNamespace} {
		w.must(w.plane.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	w.must(w.plane.Client.Create(t.Context(), today.Kymas()))
	w.must(w.plane.Client.Create(t.Context(), today.Watchers(true)))
	for _, object := range append(today.Plane(), today.Route(), today.RuntimeKyma("kyma-1", testRuntime)) {
		rig.Eventually(t, patience, "the API server knows "+object.GetKind(), func() bool {
			return w.plane.Client.Create(t.Context(), object.DeepCopy()) == nil
		})
	}
	server, err := ca.Server(today.Host, testpki.Options{DNSNames: []string{today.Host}})
	w.must(err)
	w.must(w.plane.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: today.GatewaySecret().Namespace, Name: today.GatewaySecret().Name},
		Data:       testpki.Files(server, ca),
	}))
	return w
}

func (w *planeWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// operate runs the operator, and the gateway and sidecar in front of it, until stop is called.
func (w *planeWorld) operate(opts lifecyclemanager.Options) (stop func()) {
	w.t.Helper()
	log, err := os.Create(filepath.Join(w.dir, "log"))
	w.must(err)
	mgr, err := ctrl.NewManager(w.plane.Config, ctrl.Options{
		Logger:  logr.FromSlogHandler(slog.NewJSONHandler(log, nil)),
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	})
	w.must(err)
	addr := rig.Address(rig.FreePort(w.t))
	reconciler := reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.reconciled = append(w.reconciled, r.String())
		return reconcile.Result{}, nil
	})
	ingress := today.NewIngress(w.plane.Client)
	ingress.Lead(today.Service, addr)
	stopOperator := rig.Run(w.t, "operator", func(ctx context.Context) error {
		received, err := lifecyclemanager.SetUp(mgr, addr, opts)
		if err != nil {
			return err
		}
		kyma := &metav1.PartialObjectMetadata{}
		kyma.SetGroupVersionKind(today.WatcherKind().GroupVersion().WithKind("Kyma"))
		err = ctrl.NewControllerManagedBy(mgr).For(kyma).WatchesRawSource(received).Complete(reconciler)
		return errors.Join(err, mgr.Start(ctx))
	})
	stopIngress := rig.Run(w.t, "ingress", func(ctx context.Context) error { return ingress.Run(ctx, w.addr) })
	return func() {
		stopOperator()
		stopIngress()
	}
}

func (w *planeWorld) reconciles() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.reconciled)
}

// client is an agent of contract v2 with a certificate for a runtime and a domain.
func (w *planeWorld) client(id, domain string) *http.Client {
	w.t.Helper()
	leaf, err := w.ca.Client(id, testpki.Options{DNSNames: []string{domain}, Usages: []x509.ExtKeyUsage{}})
	w.must(err)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{
			RootCAs: w.ca.Pool(), Certificates: []tls.Certificate{leaf.TLS}, ServerName: today.Host, MinVersion: tls.VersionTLS12,
		},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", w.addr)
		},
	}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// post sends an event of contract v2, and returns the status.
func (w *planeWorld) post(client *http.Client, path string) int {
	w.t.Helper()
	body := `{"watched":{"Namespace":"kyma-system","Name":"default"},` +
		`"watchedGvk":{"group":"operator.kyma-project.io","version":"v1beta2","kind":"Kyma"}}`
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, "https://"+today.Host+path, strings.NewReader(body))
	w.must(err)
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

// refusals runs the commands of the guide that list the Kymas that would be refused. The log of the
// operator's Deployment is a file here.
func (w *planeWorld) refusals() string {
	w.t.Helper()
	w.must(w.plane.Client.Create(w.t.Context(), today.RuntimeKyma("kyma-2", "22222222-2222-3333-4444-555555555555")))
	script := "#!/bin/sh\n[ \"$3\" = logs ] && exec cat " + filepath.Join(w.dir, "log") + "\nexec \"$ASSETS/kubectl\" \"$@\"\n"
	w.must(os.WriteFile(filepath.Join(w.dir, "kubectl"), []byte(script), 0o700))
	out, err := shell(w.t, read(string(test.Read(w.t, guide)))[2].blocks[0], w.plane, w.dir)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// The operator is changed by the lines of the guide only. Its gateway, sidecar, routes, policy and
// Secret stay, and so do its runtimes.
func TestListener(t *testing.T) {
	w := newPlaneWorld(t)
	const path = "/v2/lifecycle-manager/event"
	other := []string{"spiffe://other.local/gateway"}
	stop := w.operate(lifecyclemanager.Options{Step: 2, DryRun: true, GatewayNames: other})
	rig.Eventually(t, patience, "an event of another domain and gateway is taken in the dry mode", func() bool {
		return w.post(w.client(testRuntime, "other.kyma.example.com"), path) == http.StatusOK && len(w.reconciles()) > 0
	})
	const labels = `code="200",contract="v2",manager="lifecycle-manager",reason="untrusted_proxy"`
	for _, want := range []string{labels, "\nwatcher_listener_requests_total{"} {
		if text := metricsOf(t); !strings.Contains(text, want) {
			t.Errorf("no %s among the metrics:\n%s", want, text)
		}
	}
	if text := w.refusals(); !strings.Contains(text, "kyma-1") || strings.Contains(text, "kyma-2") {
		t.Errorf("the list of the Kymas that would be refused is\n%s\nwant kyma-1 alone", text)
	}
	stop()
	metrics.Registry = prom.NewRegistry() // The next operator is another process.
	w.operate(lifecyclemanager.Options{Step: 2})
	known := w.client(testRuntime, testRuntime+".kyma.example.com")
	rig.Eventually(t, patience, "an event is accepted", func() bool { return w.post(known, path) == http.StatusOK })
	before := len(w.reconciles())
	if status := w.post(known, path); status != http.StatusOK {
		t.Errorf("status %d of an event of a known runtime, want 200", status)
	}
	rig.Eventually(t, patience, "the Kyma with the label is reconciled", func() bool {
		return slices.Contains(w.reconciles()[before:], "kcp-system/kyma-1")
	})
	for name, test := range map[string]struct {
		id, domain, path string
		want             int
	}{
		"another domain":     {testRuntime, "other.kyma.example.com", path, http.StatusForbidden},
		"an unknown runtime": {"unknown", "unknown.kyma.example.com", path, http.StatusForbidden},
	} {
		if status := w.post(w.client(test.id, test.domain), test.path); status != test.want {
			t.Errorf("%s: status %d, want %d", name, status, test.want)
		}
	}
}

func metricsOf(t *testing.T) string {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, family := range families {
		if strings.HasSuffix(family.GetName(), "watcher_listener_requests_total") {
			_, err = expfmt.MetricFamilyToText(&text, family)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}
