package lab

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

var shared struct {
	sync.Mutex

	plane *apiserver.ControlPlane
}

// SharedAPIServer returns the API server that all tests of a process share. The first call starts
// it with opts, later calls ignore them. A test must remove its objects, or give them unique names.
// TestMain must call [StopSharedAPIServer].
func SharedAPIServer(t testing.TB, opts apiserver.Options) *apiserver.ControlPlane {
	t.Helper()

	SkipShort(t)
	shared.Lock()
	defer shared.Unlock()

	if shared.plane == nil {
		log.SetLogger(logr.Discard()) // The first call counts. Without any, controller-runtime logs a stack trace.
		plane, err := apiserver.Start(context.WithoutCancel(t.Context()), opts)
		NoError(t, err)
		shared.plane = plane
	}

	return shared.plane
}

// StopSharedAPIServer stops the API server of [SharedAPIServer], if there is one.
func StopSharedAPIServer() error {
	shared.Lock()
	defer shared.Unlock()

	if shared.plane == nil {
		return nil
	}

	defer func() { shared.plane = nil }()

	return shared.plane.Stop()
}

// RunTests runs the tests of a package, stops the shared API server, and returns the exit code.
func RunTests(m *testing.M) int {
	code := m.Run()
	if err := StopSharedAPIServer(); err != nil && code == 0 {
		return 1
	}
	return code
}

// Namespace contains the objects in the control plane that represent runtimes.
const Namespace = "default"

// AddRuntime creates the object that represents a runtime: a ConfigMap with its name and with the
// domain in its certificate.
func AddRuntime(t testing.TB, plane *apiserver.ControlPlane, name, domain string) types.NamespacedName {
	t.Helper()

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: Namespace,
		Annotations: map[string]string{controllerruntime.DomainAnnotation: domain},
	}}
	create(t, plane, object)
	return types.NamespacedName{Namespace: Namespace, Name: name}
}

// NewManager returns a controller manager that serves no metrics. Default scheme: client-go's.
func NewManager(t testing.TB, at *rest.Config, scheme *runtime.Scheme) ctrl.Manager {
	t.Helper()

	mgr, err := ctrl.NewManager(at, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	NoError(t, err)
	return mgr
}

// API sends plain HTTP requests to an API server. It is safe for concurrent use.
type API struct{ client rest.Interface }

// NewAPI returns an API with the rights of an administrator.
func NewAPI(t testing.TB, plane *apiserver.ControlPlane) *API {
	t.Helper()
	return &API{Must(discovery.NewDiscoveryClientForConfig(plane.Config)).RESTClient()}
}

// Do sends one request, and returns the status and the body of the answer.
func (a *API) Do(t testing.TB, method, path, contentType, body string) (status int, answer []byte) {
	t.Helper()

	answer, err := a.client.Verb(method).RequestURI(path).SetHeader("Content-Type", contentType).Body([]byte(body)).
		Do(t.Context()).StatusCode(&status).Raw()
	if status == 0 {
		t.Fatal(err)
	}
	return status, answer
}

// ScrapeAPIServer returns the metrics of an API server, in the exposition format.
func ScrapeAPIServer(t testing.TB, plane *apiserver.ControlPlane) []byte {
	t.Helper()

	status, text := NewAPI(t, plane).Do(t, http.MethodGet, "/metrics", "", "")
	if status != http.StatusOK {
		t.Fatalf("metrics: %d: %s", status, text)
	}
	return text
}

// FailedOpen returns how many writes the API server has admitted without an answer of a webhook. The
// labels select webhooks, as in [Sum].
func FailedOpen(t testing.TB, plane *apiserver.ControlPlane, labels ...string) int {
	t.Helper()
	return int(Sum(ScrapeAPIServer(t, plane), "apiserver_admission_webhook_fail_open_count", labels...))
}

// Left returns all objects of a cluster, except Events, for which the condition holds.
func Left(t testing.TB, plane *apiserver.ControlPlane, condition func(*metav1.PartialObjectMetadata) bool) (left []string) {
	t.Helper()
	if err := plane.Objects(t.Context(), func(kind string, o *metav1.PartialObjectMetadata) {
		if condition(o) {
			left = append(left, fmt.Sprintf("%s %s/%s", kind, o.Namespace, o.Name))
		}
	}); err != nil {
		t.Fatal(err)
	}
	return left
}

// Kubectl runs kubectl at the root of the repository, and returns its output.
func Kubectl(t testing.TB, args ...string) string {
	t.Helper()

	assets, err := apiserver.Assets(t.Context(), apiserver.AssetsOptions{Kubectl: true})
	if err != nil {
		Missing(t, "needs kubectl, which test/lab/cmd/assets builds: %v", err)
	}

	out, err := atRoot(t, filepath.Join(assets, "kubectl"), nil, args)
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}

	return out
}

// Helm runs helm at the root of the repository, and returns its output.
func Helm(t testing.TB, args ...string) (string, error) {
	t.Helper()

	path := filepath.Join(test.Root(), "bin", "tools", goruntime.Version(), "helm")
	if _, err := os.Stat(path); err != nil {
		Missing(t, "needs %s, which make test builds", path)
	}

	home := t.TempDir()
	return atRoot(t, path, []string{"HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home}, args)
}

func atRoot(t testing.TB, path string, env, args []string) (string, error) {
	t.Helper()

	test.NoticeDocuments(t)

	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir, cmd.Env = test.Root(), append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()

	return string(out), err
}
