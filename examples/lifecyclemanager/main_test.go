package main

import (
	"bytes"
	"encoding/pem"
	"errors"
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
	// patience is generous: the machine may be busy with other things.
	patience  = 2 * time.Minute
	namespace = "kcp-system"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}

	ctrl.SetLogger(logr.Discard()) // Or controller-runtime complains, with a stack trace.
	os.Exit(m.Run())
}

// world is a control plane.
type world struct {
	client.Client

	t          *testing.T
	ca         *testpki.CA
	kubeconfig string
}

// The operator runs with the rights of config/ and no others. cert-manager's definitions are there, its controllers are not: what they would
// issue for the listener, the test does.
func TestOperator(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}

	w := newWorld(t)

	t.Run("runtimes connect straight to it", func(t *testing.T) { w.testNative(t) })
	t.Run("a gateway ends TLS", func(t *testing.T) { w.testGateway(t) })
}

func (w *world) testNative(t *testing.T) {
	t.Helper()

	o := w.start(t, "-events-address=listener.example:443")

	o.eventually("it asks for a CA", func() bool {
		return w.exists(&certv1.Issuer{}, "watcher-selfsigned") && w.exists(&certv1.Certificate{}, "watcher-ca-1")
	})

	if status := o.get("http://" + o.probes + "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz says %d without a certificate, want 200", status)
	}

	if status := o.get("http://" + o.probes + "/readyz"); status == http.StatusOK {
		t.Error("it is ready without a certificate")
	}

	w.must(w.Create(t.Context(), w.issued()))
	o.eventually("it is ready with the certificate", func() bool { return o.get("http://"+o.probes+"/readyz") == http.StatusOK })

	w.must(w.Create(t.Context(), w.kyma("runtime-1", "runtime-1.example.com")))
	o.eventually("it asks for a certificate for the runtime", func() bool {
		kyma := newKyma()
		err := w.Get(t.Context(), w.key("runtime-1"), kyma)

		return err == nil && len(kyma.Finalizers) == 1 && kyma.Finalizers[0] == runtimes.Finalizer &&
			w.exists(&certv1.Certificate{}, "runtime-1-watcher-tls")
	})

	good, bad := w.runtime("runtime-1", "runtime-1.example.com"), w.runtime("runtime-1", "elsewhere.example.com")

	// The Kyma itself was written twice: what comes after that is because of events.
	for range 4 {
		looks := o.looks()

		o.eventually("the runtime is heard", func() bool { return o.post(w.trusting(good), "https", nil) == http.StatusAccepted })
		o.eventually("it looks at the runtime", func() bool { return o.looks() > looks })
	}

	if status := o.post(w.trusting(bad), "https", nil); status != http.StatusForbidden {
		t.Errorf("who has another domain was answered %d, want 403", status)
	}

	// A broken Secret does not replace a sound one.
	broken := w.issued()
	broken.Data[corev1.TLSCertKey] = []byte("broken")
	w.must(w.Update(t.Context(), broken))
	o.eventually("it refuses the broken certificate", func() bool {
		return o.post(w.trusting(good), "https", nil) == http.StatusAccepted && strings.Contains(o.log.String(), "the last good one stays")
	})

	metrics := o.body("http://" + o.metrics + "/metrics")
	for _, want := range []string{
		`runtime_watcher_listener_requests_total{code="403",contract="v3",manager="lifecycle-manager",reason="san_mismatch"} 1`,
		`runtime_watcher_listener_certificate_expiry_timestamp_seconds{use="server"} 1.`,
		`runtime_watcher_listener_certificate_reload_failures_total{problem="malformed",use="server"} 1`,
		`runtime_watcher_fleet_runtimes{manager="lifecycle-manager",reason="",state="fresh"}`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("nothing about %s in the metrics", want)
		}
	}

	w.must(w.Update(t.Context(), w.issued()))

	if answer := o.body("http://" + o.metrics + "/fleet"); !strings.Contains(answer, `"runtimes"`) {
		t.Errorf("/fleet says %q", answer)
	}

	o.stop()

	lease := &coordinationv1.Lease{}
	w.must(w.Get(t.Context(), w.key("lifecycle-manager.operator.kyma-project.io"), lease))

	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		t.Errorf("%s still leads, want nobody: the next one would wait", *holder)
	}
}

func (w *world) testGateway(t *testing.T) {
	t.Helper()

	o := w.start(t, "-events-address=gateway.example:443", "-gateway=127.0.0.0/8")

	w.must(w.Create(t.Context(), w.gateway()))
	w.apply("config/watcher.yaml")
	o.eventually("it makes a route to itself", func() bool { return w.exists(&networkingv1beta1.VirtualService{}, "kyma") })
	o.eventually("it is ready", func() bool { return o.get("http://"+o.probes+"/readyz") == http.StatusOK })

	leaf := w.runtime("runtime-1", "runtime-1.example.com")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate().Raw})
	header := http.Header{listener.HeaderXFCC: {`Cert="` + url.PathEscape(string(cert)) + `"`}}

	o.eventually("the runtime is heard through the gateway", func() bool {
		return o.post(&http.Transport{DisableKeepAlives: true}, "http", header) == http.StatusAccepted
	})

	if status := o.post(&http.Transport{DisableKeepAlives: true}, "http", nil); status != http.StatusUnauthorized {
		t.Errorf("who is nobody was answered %d, want 401", status)
	}

	o.stop()
}

func TestNamesAllThatIsWrong(t *testing.T) {
	var stderr bytes.Buffer

	err := run(t.Context(), []string{"-events-address=nowhere", "stray"}, &stderr)
	for _, want := range []string{"-agent-image", `"nowhere"`, `"stray"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing about %s in: %v", want, err)
		}
	}

	if err := run(t.Context(), []string{"-gateway=nowhere"}, &stderr); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("got %v, want an error about the range", err)
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

// apply does what kubectl does with a file.
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
		w.must(w.Apply(w.t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("kubectl"), client.ForceOwnership))
	}
}

// issued is the Secret that is published for the listener once its certificate is issued.
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

func (w *world) trusting(leaf *testpki.Leaf) *http.Transport {
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
			"namespace": namespace, "name": "watcher", "labels": map[string]any{"operator.kyma-project.io/watcher-gateway": "default"},
		},
		"spec": map[string]any{"servers": []any{map[string]any{
			"hosts": []any{"gateway.example"},
			"port":  map[string]any{"number": int64(443), "name": "https", "protocol": "HTTPS"},
			"tls":   map[string]any{"mode": "MUTUAL", "credentialName": listenerSecret},
		}}},
	}}
}

// kymaCRD defines Kymas, as far as they matter here.
func kymaCRD() *apiextensionsv1.CustomResourceDefinition {
	kind := newKyma().GroupVersionKind()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "kymas." + kind.Group
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: kind.Group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind.Kind, ListKind: "KymaList", Plural: "kymas", Singular: "kyma"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: kind.Version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
		}},
	}

	return crd
}

func moduleDir(t *testing.T, module string) string {
	t.Helper()

	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("where is module %s: %v", module, err)
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
	args = append(args, "-agent-image=agent.example/agent:v1", "-events-bind-address="+o.events,
		"-health-probe-bind-address="+o.probes, "-metrics-bind-address="+o.metrics)
	o.cmd = exec.Command(self, args...) // It is stopped by a signal, as in a pod.
	o.cmd.Env = append(os.Environ(), asProgram+"=1", "KUBECONFIG="+w.kubeconfig)
	o.cmd.Stderr = o.log
	w.must(o.cmd.Start())

	go func() { o.ended <- o.cmd.Wait() }()

	t.Cleanup(func() {
		if err := o.cmd.Process.Kill(); err == nil { // The test has failed meanwhile.
			<-o.ended //nolint:errcheck // It was killed.
		}

		if t.Failed() {
			t.Logf("the operator said:\n%s", o.log)
		}
	})

	return o
}

// stop waits until the program has ended in good order.
func (o *operator) stop() {
	o.t.Helper()

	if err := o.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		o.t.Fatal(err)
	}

	select {
	case err := <-o.ended:
		if err != nil {
			o.t.Errorf("it ended with %v, want exit code 0", err)
		}
	case <-time.After(patience):
		o.t.Fatal("it does not end")
	}

	if strings.Contains(o.log.String(), "forbidden:") {
		o.t.Error("it lacks rights, see its log")
	}
}

func (o *operator) eventually(what string, condition func() bool) {
	o.t.Helper()

	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()

	for deadline := time.After(patience); !condition(); {
		select {
		case err := <-o.ended:
			o.t.Fatalf("it has ended with %v before this was so: %s", err, what)
		case <-deadline:
			o.t.Fatalf("not so: %s", what)
		case <-tick.C:
		}
	}
}

// get returns the status of an answer, or 0 if there is none.
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

// post sends an event of runtime-1 and returns the status of the answer, or 0 if there is none.
func (o *operator) post(transport http.RoundTripper, scheme string, header http.Header) int {
	o.t.Helper()

	batch := core.Batch{
		Source: "runtime-1",
		Events: []core.Numbered{{WatchEvent: core.WatchEvent{Resync: true}, ID: strconv.FormatInt(time.Now().UnixNano(), 10)}},
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

	if header != nil {
		request.Header = header.Clone()
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

// looks is how often the operator has reconciled the Kyma.
func (o *operator) looks() int {
	return strings.Count(o.log.String(), `"msg":"looked at the runtime"`)
}

// freeAddresses returns three different ones.
func freeAddresses(t *testing.T) (events, probes, metrics string) {
	t.Helper()

	var ports [3]net.Listener

	for i := range ports {
		var err error
		if ports[i], err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}

	for _, port := range ports { // Not before all are chosen, or one could be chosen twice.
		_ = port.Close()
	}

	return ports[0].Addr().String(), ports[1].Addr().String(), ports[2].Addr().String()
}

// log can be read while it is written.
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
