package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
)

const (
	// asProgram makes the test binary the program itself.
	asProgram = "TEST_AS_PROGRAM"
	// patience is the limit for one step on a busy machine.
	patience  = 2 * time.Minute
	namespace = "kcp-system"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}

	ctrl.SetLogger(logr.Discard()) // Without a logger, controller-runtime prints a stack trace.
	os.Exit(m.Run())
}

// world is a control plane.
type world struct {
	client.Client

	t          *testing.T
	ca         *testpki.CA
	kubeconfig string
}

// TestOperator runs the operator with the rights of config/ and no others. cert-manager's
// controllers do not run: the test itself issues the certificate of the listener.
func TestOperator(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}

	w := newWorld(t)

	t.Run("direct connections", func(t *testing.T) { w.testDirect(t) })
	t.Run("behind a gateway", func(t *testing.T) { w.testGateway(t) })
	t.Run("behind a gateway and a sidecar", func(t *testing.T) { w.testSidecar(t) })
}

func (w *world) testDirect(t *testing.T) {
	t.Helper()
	o := w.start(t, "-events-address=listener.example:443")
	w.checkCertificate(o)
	w.checkRuntime(o)
	w.checkEvents(o)
	w.checkBrokenSecret(o)
	o.stop()

	lease := &coordinationv1.Lease{}
	w.must(w.Get(t.Context(), w.key("lifecycle-manager.operator.kyma-project.io"), lease))
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		t.Errorf("%s still has the lease, want it free for the next replica", *holder)
	}
}

// checkCertificate issues the certificate of the listener. The operator is not ready before.
func (w *world) checkCertificate(o *operator) {
	w.t.Helper()
	o.eventually("a CA is requested", func() bool {
		return w.exists(&certv1.Issuer{}, "watcher-selfsigned") && w.exists(&certv1.Certificate{}, "watcher-ca-1")
	})
	if status := o.get("http://" + o.probes + "/healthz"); status != http.StatusOK {
		o.t.Errorf("/healthz: status %d without a certificate, want 200", status)
	}
	if status := o.get("http://" + o.probes + "/readyz"); status == http.StatusOK {
		o.t.Error("/readyz: status 200 without a certificate")
	}
	w.must(w.Create(w.t.Context(), w.issued()))
	o.eventually("ready with the certificate", o.isReady)
}

// checkRuntime creates a Kyma, for which the operator requests a certificate.
func (w *world) checkRuntime(o *operator) {
	w.t.Helper()
	w.must(w.Create(w.t.Context(), w.kyma("runtime-1", "runtime-1.example.com")))
	o.eventually("a certificate for the runtime is requested", func() bool {
		kyma := newKyma()
		err := w.Get(w.t.Context(), w.key("runtime-1"), kyma)
		return err == nil && len(kyma.Finalizers) == 1 && kyma.Finalizers[0] == runtimes.Finalizer &&
			w.exists(&certv1.Certificate{}, "runtime-1-watcher-tls")
	})
}

// checkEvents sends more events than there were writes to the Kyma itself.
func (w *world) checkEvents(o *operator) {
	w.t.Helper()
	good, bad := w.runtime("runtime-1", "runtime-1.example.com"), w.runtime("runtime-1", "elsewhere.example.com")
	for range 4 {
		looks := o.looks()
		o.eventually("an event is accepted", func() bool {
			return o.post(w.direct(good), "https", "") == http.StatusAccepted
		})
		o.eventually("the runtime is reconciled", func() bool { return o.looks() > looks })
	}
	if status := o.post(w.direct(bad), "https", ""); status != http.StatusForbidden {
		o.t.Errorf("wrong domain: status %d, want 403", status)
	}
}

// checkBrokenSecret replaces the certificate of the listener with a broken one, which is not used.
func (w *world) checkBrokenSecret(o *operator) {
	w.t.Helper()
	broken := w.issued()
	broken.Data[corev1.TLSCertKey] = []byte("broken")
	w.must(w.Update(w.t.Context(), broken))
	good := w.runtime("runtime-1", "runtime-1.example.com")
	o.eventually("the broken certificate is refused", func() bool {
		return o.post(w.direct(good), "https", "") == http.StatusAccepted &&
			strings.Contains(o.log.String(), "the last good one stays")
	})
	o.checkMetrics()
	w.must(w.Update(w.t.Context(), w.issued()))
}

const (
	gatewayName = "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway"
	// sidecar is the address from which an Istio sidecar connects.
	sidecar = "127.0.0.6"
)

// byGateway returns the header in which Envoy describes a runtime, its client.
func byGateway(leaf *x509.Certificate) string {
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})
	escaped := strings.ReplaceAll(url.QueryEscape(string(cert)), "+", "%20")
	return fmt.Sprintf(`Hash=%x;Cert=%q;Subject=%q;URI=`, sha256.Sum256(leaf.Raw), escaped, leaf.Subject)
}

// bySidecar appends the element in which the Envoy of a sidecar describes the gateway, its client.
// A sidecar forwards no Cert.
func bySidecar(header, gateway string) string {
	return fmt.Sprintf(`%s,By=spiffe://cluster.local/ns/kcp-system/sa/lifecycle-manager;Hash=%x;Subject="";URI=%s`,
		header, sha256.Sum256([]byte(gateway)), gateway)
}

// from returns a transport that connects from an address.
func from(address string) *http.Transport {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
}

func (w *world) testGateway(t *testing.T) {
	t.Helper()
	o := w.start(t, "-events-address=gateway.example:443", "-proxy-addresses=127.0.0.1/32")
	w.must(w.Create(t.Context(), w.gateway()))
	w.apply("config/watcher.yaml")
	o.eventually("there is a route", func() bool { return w.exists(&networkingv1beta1.VirtualService{}, "kyma") })
	o.eventually("ready", o.isReady)

	header := byGateway(w.runtime("runtime-1", "runtime-1.example.com").Certificate())
	o.eventually("an event is accepted", func() bool {
		return o.post(from("127.0.0.1"), "http", header) == http.StatusAccepted
	})
	if status := o.post(from("127.0.0.1"), "http", ""); status != http.StatusUnauthorized {
		t.Errorf("without header: status %d, want 401", status)
	}
	if status := o.post(from(sidecar), "http", header); status != http.StatusUnauthorized {
		t.Errorf("without gateway: status %d, want 401", status)
	}
	o.stop()
}

func (w *world) testSidecar(t *testing.T) {
	t.Helper()
	o := w.start(t, "-events-address=gateway.example:443",
		"-proxy-addresses="+sidecar+"/32", "-gateway-names="+gatewayName)
	o.eventually("ready", o.isReady)

	header := byGateway(w.runtime("runtime-1", "runtime-1.example.com").Certificate())
	o.eventually("an event is accepted", func() bool {
		return o.post(from(sidecar), "http", bySidecar(header, gatewayName)) == http.StatusAccepted
	})
	if status := o.post(from("127.0.0.1"), "http", bySidecar(header, gatewayName)); status != http.StatusUnauthorized {
		t.Errorf("without sidecar: status %d, want 401", status)
	}
	other := bySidecar(header, "spiffe://cluster.local/ns/default/sa/other")
	if status := o.post(from(sidecar), "http", other); status != http.StatusUnauthorized {
		t.Errorf("without gateway: status %d, want 401", status)
	}
	o.stop()
}

func TestWrongFlags(t *testing.T) {
	var stderr bytes.Buffer
	err := run(t.Context(), []string{"-events-address=nowhere", "-gateway-names=a", "stray"}, &stderr)
	for _, want := range []string{"-agent-image", `"nowhere"`, `"stray"`, "-gateway-names needs -proxy-addresses"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
	err = run(t.Context(), []string{"-proxy-addresses=nowhere"}, &stderr)
	if err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("error %v, want one about the range", err)
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()

	w := &world{t: t}
	scheme := runtime.NewScheme()
	w.must(errors.Join(clientgoscheme.AddToScheme(scheme), certv1.AddToScheme(scheme), watcher.AddToScheme(scheme)))

	plane := controlplane.StartT(t, controlplane.Options{
		Scheme: scheme,
		CRDs:   []*apiextensionsv1.CustomResourceDefinition{kymaCRD()},
		CRDPaths: []string{
			"../../adapters/controlplane/config/crd/operator.kyma-project.io_watchers.yaml",
			filepath.Join(moduleDir(t, "github.com/cert-manager/cert-manager"), "deploy", "crds"),
			filepath.Join(moduleDir(t, "istio.io/api"), "kubernetes", "customresourcedefinitions.gen.yaml"),
		},
	})
	w.Client = plane.Client

	w.apply("../../deploy/controlplane/role.yaml")
	w.apply("config/rbac.yaml")

	// The operator acts as its service account.
	config, err := clientcmd.LoadFromFile(plane.Kubeconfig)
	w.must(err)

	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:" + namespace + ":lifecycle-manager"
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:authenticated"}
	}

	w.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	w.must(clientcmd.WriteToFile(*config, w.kubeconfig))

	w.ca, err = testpki.NewCA("watcher-ca-1", testpki.Options{})
	w.must(err)

	return w
}

func (w *world) must(err error) {
	w.t.Helper()

	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func (w *world) exists(object client.Object, name string) bool {
	return w.Get(w.t.Context(), w.key(name), object) == nil
}

// apply applies a file, as kubectl does.
func (w *world) apply(path string) {
	w.t.Helper()

	text, err := os.ReadFile(path)
	w.must(err)

	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), len(text)); ; {
		object := &unstructured.Unstructured{}

		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return
		}

		w.must(err)
		w.must(w.Apply(w.t.Context(), client.ApplyConfigurationFromUnstructured(object),
			client.FieldOwner("kubectl"), client.ForceOwnership))
	}
}

// issued returns the Secret of the listener after cert-manager issued its certificate.
func (w *world) issued() *corev1.Secret {
	w.t.Helper()

	server, err := w.ca.Server("listener", testpki.Options{DNSNames: []string{"listener.example"}})
	w.must(err)

	data, err := testpki.Files(server, w.ca)
	w.must(err)

	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: listenerSecret}, Data: data}
}

func (w *world) runtime(name, domain string) *testpki.Leaf {
	w.t.Helper()

	leaf, err := w.ca.Client(name, testpki.Options{DNSNames: []string{domain}})
	w.must(err)

	return leaf
}

// direct returns a transport of a runtime.
func (w *world) direct(leaf *testpki.Leaf) *http.Transport {
	w.t.Helper()

	key, err := leaf.KeyPEM()
	w.must(err)

	material, err := httpmtls.NewMaterial(w.ca.PEM(), leaf.CertPEM(), key)
	w.must(err)

	config, err := httpmtls.ClientTLSConfig(material, "listener.example")
	w.must(err)

	return &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
}

func (w *world) kyma(name, domain string) *unstructured.Unstructured {
	kyma := &unstructured.Unstructured{}
	kyma.SetGroupVersionKind(newKyma().GroupVersionKind())
	kyma.SetNamespace(namespace)
	kyma.SetName(name)
	kyma.SetAnnotations(map[string]string{controllerruntime.DomainAnnotation: domain})

	return kyma
}

func (w *world) gateway() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "networking.istio.io/v1beta1", "kind": "Gateway",
		"metadata": map[string]any{
			"namespace": namespace, "name": "watcher",
			"labels": map[string]any{"operator.kyma-project.io/watcher-gateway": "default"},
		},
		"spec": map[string]any{"servers": []any{map[string]any{
			"hosts": []any{"gateway.example"},
			"port":  map[string]any{"number": int64(443), "name": "https", "protocol": "HTTPS"},
			"tls":   map[string]any{"mode": "MUTUAL", "credentialName": listenerSecret},
		}}},
	}}
}

// kymaCRD defines Kymas without their fields.
func kymaCRD() *apiextensionsv1.CustomResourceDefinition {
	kind := newKyma().GroupVersionKind()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "kymas." + kind.Group
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: kind.Group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{
			Kind: kind.Kind, ListKind: "KymaList", Plural: "kymas", Singular: "kyma",
		},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: kind.Version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"},
			},
		}},
	}

	return crd
}

func moduleDir(t *testing.T, module string) string {
	t.Helper()

	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("cannot find module %s: %v", module, err)
	}

	return strings.TrimSpace(string(out))
}

// operator is the program as a process.
type operator struct {
	t                       *testing.T
	cmd                     *exec.Cmd
	log                     *log
	ended                   chan error
	events, probes, metrics string
}

func (w *world) start(t *testing.T, args ...string) *operator {
	t.Helper()

	self, err := os.Executable()
	w.must(err)

	o := &operator{t: t, log: new(log), ended: make(chan error, 1)}
	o.events, o.probes, o.metrics = freeAddresses(t)
	tokenFile := filepath.Join(t.TempDir(), "token")
	w.must(os.WriteFile(tokenFile, []byte(fleetToken+"\n"), 0o600))
	args = append(args, "-agent-image=agent.example/agent:v1", "-events-bind-address="+o.events,
		"-health-probe-bind-address="+o.probes, "-metrics-bind-address="+o.metrics, "-fleet-token-file="+tokenFile)
	o.cmd = exec.Command(self, args...) // A signal stops it, as in a pod.
	o.cmd.Env = append(os.Environ(), asProgram+"=1", "KUBECONFIG="+w.kubeconfig)
	o.cmd.Stderr = o.log
	w.must(o.cmd.Start())

	go func() { o.ended <- o.cmd.Wait() }()

	t.Cleanup(func() {
		if err := o.cmd.Process.Kill(); err == nil { // The test failed before stop.
			t.Log("killed:", <-o.ended)
		}

		if t.Failed() {
			t.Logf("log of the operator:\n%s", o.log)
		}
	})

	return o
}

// stop ends the program and checks its exit code and its log.
func (o *operator) stop() {
	o.t.Helper()

	if err := o.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		o.t.Fatal(err)
	}

	select {
	case err := <-o.ended:
		if err != nil {
			o.t.Errorf("ended with %v, want exit code 0", err)
		}
	case <-time.After(patience):
		o.t.Fatal("does not end")
	}

	if strings.Contains(o.log.String(), "forbidden:") {
		o.t.Error("lacks rights, see the log")
	}
}

// eventually waits until holds returns true.
func (o *operator) eventually(condition string, holds func() bool) {
	o.t.Helper()

	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()

	for deadline := time.After(patience); !holds(); {
		select {
		case err := <-o.ended:
			o.t.Fatalf("ended with %v before: %s", err, condition)
		case <-deadline:
			o.t.Fatalf("not within %s: %s", patience, condition)
		case <-tick.C:
		}
	}
}

// isReady reports whether the readiness probe succeeds.
func (o *operator) isReady() bool { return o.get("http://"+o.probes+"/readyz") == http.StatusOK }

// get returns the status of an answer, 0 without an answer.
func (o *operator) get(target string) int {
	status, _ := o.fetch(target)

	return status
}

func (o *operator) body(target string) string {
	_, body := o.fetch(target)

	return body
}

func (o *operator) fetch(target string) (status int, body string) {
	request, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, target, http.NoBody)
	if err != nil {
		o.t.Fatal(err)
	}

	return do(&http.Transport{DisableKeepAlives: true}, request)
}

// post sends an event of runtime-1 and returns the status of the answer, 0 without an answer.
func (o *operator) post(transport http.RoundTripper, scheme, header string) int {
	o.t.Helper()

	id := strconv.FormatInt(time.Now().UnixNano(), 10)
	batch := core.Batch{
		Source: "runtime-1", Events: []core.Numbered{{WatchEvent: core.WatchEvent{Resync: true}, ID: id}},
	}

	body, err := contract.V3.Encode(&batch)
	if err != nil {
		o.t.Fatal(err)
	}

	target := scheme + "://" + o.events + contract.V3.Path(component)

	request, err := http.NewRequestWithContext(o.t.Context(), http.MethodPost, target, bytes.NewReader(body.Body))
	if err != nil {
		o.t.Fatal(err)
	}

	if header != "" {
		request.Header.Set(listener.HeaderXFCC, header)
	}

	request.Header.Set("Content-Type", contract.V3.ContentType())
	status, _ := do(transport, request)

	return status
}

func do(transport http.RoundTripper, request *http.Request) (status int, body string) {
	response, err := (&http.Client{Transport: transport, Timeout: patience / 4}).Do(request)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()

	text, _ := io.ReadAll(response.Body)

	return response.StatusCode, string(text)
}

func (o *operator) checkMetrics() {
	o.t.Helper()
	metrics := o.body("http://" + o.metrics + "/metrics")
	for _, want := range []string{
		`runtime_watcher_listener_requests_total{code="403",contract="v3",manager="lifecycle-manager",` +
			`reason="san_mismatch"} 1`,
		`runtime_watcher_listener_certificate_expiry_timestamp_seconds{use="server"} 1.`,
		`runtime_watcher_listener_certificate_reload_failures_total{problem="malformed",use="server"} 1`,
		`runtime_watcher_fleet_runtimes{manager="lifecycle-manager",reason="",state="fresh"}`,
	} {
		if !strings.Contains(metrics, want) {
			o.t.Errorf("no %s in the metrics", want)
		}
	}
	if status, answer := o.fetch("http://" + o.metrics + "/fleet"); status != http.StatusUnauthorized {
		o.t.Errorf("/fleet without the token: %d %q, want 401", status, answer)
	}
	if answer := o.body("http://anyone:" + fleetToken + "@" + o.metrics + "/fleet"); !strings.Contains(answer, `"runtimes"`) {
		o.t.Errorf("/fleet: %q", answer)
	}
}

// fleetToken is the token for /fleet.
const fleetToken = "token-of-the-test"

// looks returns the number of reconciles of the Kyma.
func (o *operator) looks() int {
	return strings.Count(o.log.String(), `"msg":"looked at the runtime"`)
}

// freeAddresses returns three different addresses with free ports.
func freeAddresses(t *testing.T) (events, probes, metrics string) {
	t.Helper()

	var ports [3]net.Listener

	for i := range ports {
		var err error
		if ports[i], err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}

	for _, port := range ports { // All are open until here, so that they differ.
		_ = port.Close()
	}

	return ports[0].Addr().String(), ports[1].Addr().String(), ports[2].Addr().String()
}

// log allows reads during writes.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text.String()
}
