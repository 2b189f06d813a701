package operator_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// patience bounds the time of an API server, a cache or an election on a busy machine.
const patience = 5 * time.Minute

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// kyma returns the metadata of an object with a name.
func kyma(name string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kymaKind())
	object.Namespace, object.Name = "kcp-system", name
	return object
}

func domain(value string) map[string]string {
	return map[string]string{controllerruntime.DomainAnnotation: value}
}

// kymaCRD defines the kind that represents runtimes. There is no Go type for it.
func kymaCRD() *apiextensionsv1.CustomResourceDefinition {
	kind, anything := kymaKind(), true
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "kymas." + kind.Group
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: kind.Group,
		Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind.Kind, Plural: "kymas", Singular: "kyma"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: kind.Version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", XPreserveUnknownFields: &anything,
			}},
		}},
	}
	return crd
}

// runtime is a remote cluster with a certificate for its name and domain.
type runtime struct{ client *http.Client }

func (l *lab) runtime(t testing.TB, name string, domains ...string) *runtime {
	t.Helper()
	leaf := must(l.CA.Client(name, testpki.Options{DNSNames: domains}))
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: l.CA.Pool(), Certificates: []tls.Certificate{leaf.TLS},
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &runtime{client: &http.Client{Transport: transport, Timeout: patience}}
}

// post sends one event: of contract v1 with an owner, and else of v2. It returns the status of the
// answer, 0 without one.
func (r *runtime) post(t testing.TB, addr, owner, watched string) int {
	t.Helper()
	version := contract.V2
	event := core.WatchEvent{Watched: named("default/" + watched), WatchedGVK: kymaKind()}
	if owner != "" {
		version, event.Owner = contract.V1, named(owner)
	}
	return r.send(t, addr, version, core.NewBatch(event))
}

func (r *runtime) send(t testing.TB, addr string, version contract.Version, batch core.Batch) int {
	t.Helper()
	body := must(version.Encode(&batch)).Body
	request := must(http.NewRequestWithContext(
		t.Context(), http.MethodPost, "https://"+addr+version.Path("my-operator"), bytes.NewReader(body)))
	request.Header.Set("Content-Type", version.ContentType())
	response, err := r.client.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Error(err)
	}
	notReady := response.StatusCode == http.StatusServiceUnavailable
	if retry := response.Header.Get("Retry-After"); (retry != "") != notReady {
		t.Errorf("status %d with Retry-After %q", response.StatusCode, retry)
	}
	return response.StatusCode
}

// reasons stores the reasons of the listener's refusals.
type reasons struct {
	mu   sync.Mutex
	last string
}

func (r *reasons) hooks() listener.Hooks {
	return listener.Hooks{Answered: func(_ string, _ core.Manager, _ int, reason string, _ time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last = reason
	}}
}

func (r *reasons) get() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// operator is a controller manager. Its controller sends each request to the test and does nothing
// else.
type operator struct {
	mgr        manager.Manager
	addr       string
	events     *listener.Listener
	source     *controllerruntime.Source[reconcile.Request]
	reconciled chan string
	reasons    reasons
	stop       func()
	stopOnce   sync.Once
}

func managerOptions() manager.Options {
	skip := true
	return manager.Options{
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Logger:                 logr.Discard(),
		Controller:             ctrlconfig.Controller{SkipNameValidation: &skip},
	}
}

// newOperator has one worker, so requests are reconciled in the order of the queue. Each reconcile
// has ended when the test has its request.
func (l *lab) newOperator(t *testing.T, opts manager.Options) *operator {
	t.Helper()
	o := &operator{mgr: must(manager.New(l.Config, opts)), reconciled: make(chan string)}
	runtimes := must(controllerruntime.NewRuntimes(
		t.Context(), o.mgr.GetCache(), kymaKind(), controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	var network net.ListenConfig
	bound := must(network.Listen(t.Context(), "tcp", "127.0.0.1:0"))
	o.addr = bound.Addr().String()
	var err error
	material := l.ServerMaterial()
	o.events, o.source, err = controllerruntime.RegisterListenerComponent(o.addr, "my-operator",
		listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}), listener.SANPinning(runtimes),
		controllerruntime.EnqueueOwner(controllerruntime.EnqueueByRuntime(runtimes)),
		controllerruntime.ComponentOptions{
			Listener: listener.Options{Listener: bound, TLS: keys.ServerTLSConfig(material), Hooks: o.reasons.hooks()},
			Source:   controllerruntime.SourceOptions{Elected: o.mgr.Elected()},
		})
	err = errors.Join(err, o.mgr.Add(o.events),
		builder.ControllerManagedBy(o.mgr).Named("events").WatchesRawSource(o.source).
			Complete(reconcile.Func(o.reconcile)))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *operator) reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	select {
	case o.reconciled <- request.String():
	case <-ctx.Done():
	}
	return reconcile.Result{}, nil
}

// start runs the controller manager until stop or the end of the test.
func (o *operator) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.mgr.Start(ctx) }()
	o.stop = func() {
		o.stopOnce.Do(func() {
			cancel()
			// A leader ends with a lost lease.
			if err := <-ended; err != nil && err.Error() != "leader election lost" {
				t.Errorf("manager ended with %v", err)
			}
		})
	}
	t.Cleanup(o.stop)
}

// next returns the next request.
func (o *operator) next(t *testing.T) string {
	t.Helper()
	select {
	case request := <-o.reconciled:
		return request
	case <-time.After(patience):
		t.Fatal("nothing is reconciled")
		return ""
	}
}

// eventually waits until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	rig.Eventually(t, patience, what, condition)
}

// accepted posts an event of a runtime until it is accepted, and waits for its reconcile.
func (o *operator) accepted(t *testing.T, from *runtime, want string) {
	t.Helper()
	eventually(t, "an event is accepted", func() bool {
		status := from.post(t, o.addr, "", "probe")
		return status == http.StatusOK
	})
	if got := o.next(t); got != want {
		t.Errorf("reconciled %s, want %s", got, want)
	}
}

// named splits namespace/name.
func named(key string) types.NamespacedName {
	namespace, name, _ := strings.Cut(key, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}
