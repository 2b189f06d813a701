// Package dropin tests that each part of this project can take the place of its counterpart in
// today's fleet, without any other change.
package dropin

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

const (
	patience = 90 * time.Second
	image    = "runtime-watcher-skr:dropin"
	runtime  = "11111111-2222-3333-4444-555555555555"
)

// runtimeWorld is a runtime of today's fleet, and the end of the path in the control plane.
type runtimeWorld struct {
	t        *testing.T
	plane    *apiserver.ControlPlane
	node     *node.Node
	ca       *testpki.CA
	listener *today.Listener
	refusal  atomic.Int32 // the status of a gateway that does not know contract v3
	down     atomic.Bool
	steps    *rig.Steps
}

func newRuntimeWorld(t *testing.T) *runtimeWorld {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}

	w := &runtimeWorld{t: t, listener: &today.Listener{}}
	ca, err := testpki.NewCA("klm-watcher-selfsigned-ca", testpki.Options{})
	w.must(err)
	w.ca = ca

	kcp := w.serve()
	w.node = node.New(t, node.Options{
		Images:   map[string]string{image: rig.Build(t, "cmd/agent")},
		ImageEnv: map[string][]string{image: today.ImageEnv(t)},
		Hosts:    map[string]string{today.Host + ":443": kcp},
	})
	w.plane = apiserver.StartT(t, apiserver.Options{APIServerArgs: w.node.APIServerArgs()})
	w.node.Start(w.plane)
	return w
}

func (w *runtimeWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// serve is a gateway in front of an operator of today.
func (w *runtimeWorld) serve() (addr string) {
	w.t.Helper()
	leaf, err := w.ca.Server(today.Host, testpki.Options{DNSNames: []string{today.Host}})
	w.must(err)
	key, err := leaf.KeyPEM()
	w.must(err)
	material, err := keys.NewMaterial(w.ca.PEM(), leaf.CertPEM(), key)
	w.must(err)

	server := httptest.NewUnstartedServer(http.HandlerFunc(w.answer))
	server.TLS = keys.ServerTLSConfig(material)
	server.EnableHTTP2 = true
	server.StartTLS()
	w.t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func (w *runtimeWorld) answer(rw http.ResponseWriter, r *http.Request) {
	switch {
	case w.down.Load():
		rw.WriteHeader(http.StatusServiceUnavailable)
	case strings.HasPrefix(r.URL.Path, "/v3/"):
		http.Error(rw, "RBAC: access denied", int(w.refusal.Load()))
	default:
		w.listener.ServeHTTP(rw, r)
	}
}

// install applies today's objects with our image, and nothing else.
func (w *runtimeWorld) install() {
	w.t.Helper()
	leaf, err := w.ca.Client(runtime, testpki.Options{
		DNSNames: []string{
			runtime + ".kyma.example.com", "skr-webhook.kyma-system.svc.cluster.local", "skr-webhook.kyma-system.svc",
		},
		Usages: []x509.ExtKeyUsage{},
	})
	w.must(err)
	files, err := testpki.Files(leaf, w.ca)
	w.must(err)

	w.must(w.plane.Client.Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: today.Namespace}}))
	w.must(w.plane.Client.Create(w.t.Context(), today.Kymas()))
	for _, object := range today.Agent(today.Namespace, image, today.Host+":443", files) {
		w.must(w.plane.Client.Create(w.t.Context(), object))
	}

	w.must(w.plane.Client.Create(w.t.Context(), today.Configuration(today.Namespace, w.ca.PEM())))
}

func (w *runtimeWorld) pods() []node.Pod {
	return w.node.Pods(types.NamespacedName{Namespace: today.Namespace, Name: today.Name})
}

// write changes an object until its event arrives: an API server takes a moment to know a webhook.
func (w *runtimeWorld) write(name string) {
	w.t.Helper()
	for n := 0; ; n++ {
		object := today.WatchedKyma("kyma-1", fmt.Sprintf("%s-%d", name, n))
		begun := time.Now()
		w.must(w.plane.Client.Create(w.t.Context(), object))
		if took := time.Since(begun); took > 5*time.Second {
			w.t.Errorf("write %s took %v", object.GetName(), took)
		}

		if w.arrives(object.GetName(), 3*time.Second) {
			return
		}

		if n == 20 {
			w.t.Fatalf("no event of %s arrives", name)
		}
	}
}

func (w *runtimeWorld) arrives(object string, within time.Duration) bool {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		if w.event(object) != nil {
			return true
		}
	}
	return false
}

func (w *runtimeWorld) event(object string) *today.Event {
	for _, e := range w.listener.Events() {
		if e.Watched.Name == object {
			return &e
		}
	}
	return nil
}

// resyncs returns the events for the whole runtime.
func (w *runtimeWorld) resyncs() int {
	return len(slices.DeleteFunc(w.listener.Events(), func(e today.Event) bool { return e.Watched.Name != "resync" }))
}

// setEnv changes one variable of the Deployment, as an operator that is updated would.
func (w *runtimeWorld) setEnv(name, value string) {
	w.t.Helper()
	deployment := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: today.Namespace, Name: today.Name}
	w.must(w.plane.Client.Get(w.t.Context(), key, deployment))

	before, env := w.pods(), deployment.Spec.Template.Spec.Containers[0].Env
	for i := range env {
		if env[i].Name == name {
			env[i].Value = value
		}
	}

	w.must(w.plane.Client.Update(w.t.Context(), deployment))
	rig.Eventually(w.t, patience, "the pod is replaced", func() bool {
		after := w.pods()
		return len(after) == 1 && after[0].Ready && after[0].Name != before[0].Name
	})
}

// metrics returns the answer of the Service for metrics.
func (w *runtimeWorld) metrics() []byte {
	w.t.Helper()
	text, err := w.node.Get(w.t.Context(), types.NamespacedName{Namespace: today.Namespace, Name: today.Name}, "metrics-port", "/metrics")
	w.must(err)
	return text
}

func TestAgent(t *testing.T) {
	w := newRuntimeWorld(t)
	w.steps = rig.NewSteps()
	w.install()
	rig.Eventually(t, patience, "the pod is ready", func() bool {
		pods := w.pods()
		return len(pods) == 1 && pods[0].Ready
	})
	rig.Eventually(t, patience, "the resync at the start arrives", func() bool { return w.resyncs() > 0 })
	w.steps.Done("today's objects with another image: the pod runs, and asks for a resync of %s", today.Manager)

	w.write("first")
	w.sameEvent()
	w.steps.Done("a write arrives on contract v2, with the body of today")

	w.sameMetrics()
	w.steps.Done("the metrics of today are served by their names, all reasons from the start")

	w.outage()
	w.steps.Done("the control plane is down: no write waits, and the event arrives afterwards")

	w.crash()
	w.steps.Done("the agent is killed while an object changes: a resync stands in for the change")
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden} {
		w.refusal.Store(int32(status))
		w.setEnv("KCP_CONTRACT", "v3")
		w.write(fmt.Sprintf("refused-%d", status))
		w.setEnv("KCP_CONTRACT", "v2")
		w.steps.Done("KCP_CONTRACT=v3 and a gateway that answers %d: events arrive on v2", status)
	}

	if pods := w.pods(); pods[0].Restarts != 0 {
		t.Errorf("the last pod was restarted %d times", pods[0].Restarts)
	}

	w.steps.Log(t)
}

func (w *runtimeWorld) sameEvent() {
	w.t.Helper()
	var event *today.Event
	for n := 0; event == nil; n++ {
		event = w.event(fmt.Sprintf("first-%d", n))
	}

	want := fmt.Sprintf(`{"watched":{"Namespace":"kyma-system","Name":%q},`+
		`"watchedGvk":{"group":"operator.kyma-project.io","version":"v1beta2","kind":"Kyma"}}`, event.Watched.Name)
	if event.Body != want || event.Path != "/v2/lifecycle-manager/event" || event.Runtime != runtime {
		w.t.Errorf("got %+v, want the body %s", event, want)
	}
}

func (w *runtimeWorld) sameMetrics() {
	w.t.Helper()
	text := w.metrics()
	for _, metric := range []string{
		"watcher_admission_request_total", "watcher_kcp_requests_total", "watcher_request_duration",
	} {
		if rig.Sum(text, metric) <= 0 {
			w.t.Errorf("%s is not above 0", metric)
		}
	}

	if mode := rig.Sum(text, "watcher_fips_mode"); mode != 2 {
		w.t.Errorf("FIPS mode %v, want 2: the Deployment sets fips140=only", mode)
	}

	for _, series := range []string{
		"watcher_admission_request_error_total 0", `watcher_failed_kcp_total{error_reason="failed-request"} 0`,
		`watcher_failed_kcp_total{error_reason="unknown-owner"} 0`,
	} {
		if !strings.Contains(string(text), "\n"+series+"\n") {
			w.t.Errorf("no %s", series)
		}
	}
}

func (w *runtimeWorld) outage() {
	w.t.Helper()
	w.down.Store(true)

	object := today.WatchedKyma("kyma-1", "outage")
	begun := time.Now()
	w.must(w.plane.Client.Create(w.t.Context(), object))
	if took := time.Since(begun); took > 5*time.Second {
		w.t.Errorf("the write took %v while the control plane was down", took)
	}

	if w.arrives("outage", 200*time.Millisecond) {
		w.t.Error("the event arrived while the control plane was down")
	}

	w.down.Store(false)
	if !w.arrives("outage", patience) {
		w.t.Error("the event is lost")
	}

	rig.Eventually(w.t, patience, "the failure is counted", func() bool {
		return rig.Sum(w.metrics(), "watcher_failed_kcp_total", `error_reason="failed-request"`) > 0
	})
}

// crash kills the process. The node starts it again after half a second.
func (w *runtimeWorld) crash() {
	w.t.Helper()
	pod, before := w.pods()[0], w.resyncs()
	w.must(syscall.Kill(pod.Pid, syscall.SIGKILL))
	rig.Eventually(w.t, patience, "the process has ended", func() bool { return !w.pods()[0].Ready })
	w.must(w.plane.Client.Create(w.t.Context(), today.WatchedKyma("kyma-1", "crash")))
	if !w.arrives("crash", 10*time.Millisecond) {
		rig.Eventually(w.t, patience, "a resync arrives", func() bool { return w.resyncs() > before })
	}
}
