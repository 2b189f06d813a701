package installation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/manifests"
)

const patience = time.Minute

// issuer issues at the second request, as cert-manager takes its time.
type issuer struct {
	t *testing.T

	mu      sync.Mutex
	asked   map[core.RuntimeID]int
	secrets map[core.RuntimeID]map[string][]byte
	removed []core.RuntimeID
	domains []string
}

func (*issuer) Reconcile(context.Context) (certificates.Status, error) {
	return certificates.Status{RequeueAfter: time.Minute}, nil
}

func (i *issuer) EnsureRuntime(_ context.Context, r certificates.Runtime) (certificates.RuntimeStatus, error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.domains = append(i.domains, r.Domain)

	i.asked[r.ID]++
	if i.asked[r.ID] == 1 {
		return certificates.RuntimeStatus{Reason: "Issuing"}, nil
	}

	if i.secrets[r.ID] == nil {
		i.secrets[r.ID] = newSecret(i.t, string(r.ID), installation.DefaultNamespace)
	}

	return certificates.RuntimeStatus{Ready: true, Secret: i.secrets[r.ID]}, nil
}

func (*issuer) OwnsRuntime(context.Context, certificates.Runtime) (bool, error) { return true, nil }

func (i *issuer) RemoveRuntime(_ context.Context, r certificates.Runtime) error {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.removed = append(i.removed, r.ID)

	return nil
}

func (i *issuer) hasRemoved(id core.RuntimeID) bool {
	i.mu.Lock()
	defer i.mu.Unlock()

	return slices.Contains(i.removed, id)
}

// TestRuntimes runs the ready reconciler in a control plane, which is a runtime as well, with
// another runtime beside it. ConfigMaps represent runtimes.
func TestRuntimes(t *testing.T) {
	plane := startPlane(t)
	second := apiserver.StartT(t, apiserver.Options{})
	issuer := &issuer{t: t, asked: map[core.RuntimeID]int{}, secrets: map[core.RuntimeID]map[string][]byte{}}

	heard, err := fleet.New(fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}

	startReconciler(t, plane, issuer, heard)

	// No controller finalises namespaces here, so they must not be the installer's.
	for _, runtime := range []*apiserver.ControlPlane{plane, second} {
		create(t, runtime, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: installation.DefaultNamespace}})
	}

	create(t, plane, newWatcher("first"))
	represent(t, plane, "runtime-1", read(t, plane.Kubeconfig))
	represent(t, plane, "runtime-2", read(t, second.Kubeconfig))

	for _, runtime := range []*apiserver.ControlPlane{plane, second} {
		agentAnswers(t, runtime)
		eventuallyCalls(t, runtime, "default.first")
	}

	create(t, plane, newWatcher("second"))
	eventuallyCalls(t, plane, "default.first", "default.second")
	eventuallyCalls(t, second, "default.first", "default.second")

	remove(t, plane, newWatcher("second"))
	eventuallyCalls(t, plane, "default.first")
	eventuallyCalls(t, second, "default.first")

	for _, id := range []core.RuntimeID{"runtime-1", "runtime-2"} {
		heard.Observe(core.Peer{ID: id}, "manager", core.NewBatch(core.WatchEvent{}), nil)
	}

	t.Run("removed", func(t *testing.T) {
		remove(t, plane, represented("runtime-1"))
		eventuallyGone(t, plane, "runtime-1")
		eventuallyCalls(t, plane)

		if left := (&world{t: t, namespace: installation.DefaultNamespace, client: plane.Client}).left(); len(left) > 0 {
			t.Errorf("left in the runtime: %v", left)
		}

		if !issuer.hasRemoved("runtime-1") || issuer.hasRemoved("runtime-2") {
			t.Errorf("certificates were removed of %v", issuer.removed)
		}

		eventuallyKnows(t, heard, "runtime-2")
	})

	t.Run("gone", func(t *testing.T) {
		remove(t, plane, kubeconfig("runtime-2", nil))
		remove(t, plane, represented("runtime-2"))
		eventuallyGone(t, plane, "runtime-2")
		eventuallyCalls(t, second, "default.first") // It could not be reached.

		if !issuer.hasRemoved("runtime-2") {
			t.Error("its certificate stays")
		}

		eventuallyKnows(t, heard)
	})

	t.Run("out of reach", func(t *testing.T) {
		text := strings.ReplaceAll(string(read(t, plane.Kubeconfig)), plane.Config.Host,
			"https://"+rig.Address(rig.FreePort(t)))
		represent(t, plane, "runtime-3", []byte(text))
		rig.Eventually(t, patience, "runtime-3 is held", func() bool {
			object := represented("runtime-3")

			return plane.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object) == nil && len(object.Finalizers) > 0
		})
		remove(t, plane, represented("runtime-3"))
		eventuallyGone(t, plane, "runtime-3")

		if !issuer.hasRemoved("runtime-3") {
			t.Error("runtime-3 was let go with its certificate")
		}
	})
}

func startReconciler(t *testing.T, plane *apiserver.ControlPlane, issuer *issuer, heard *fleet.Fleet) {
	t.Helper()

	mgr := newManager(t, plane)

	installer, err := installation.New("agent.example.com/agent:v1", "control-plane.example.com:443",
		installation.Options{NoCanary: true})
	if err != nil {
		t.Fatal(err)
	}

	kubeconfigs := runtimes.NewKubeconfigs(mgr.GetAPIReader(), "config", client.ObjectKeyFromObject,
		runtimes.KubeconfigOptions{})
	identify := func(_ context.Context, object client.Object) (runtimes.Identity, error) {
		domain, ok := object.GetAnnotations()["skr-domain"]
		if !ok {
			return runtimes.Identity{}, nil
		}

		return runtimes.Identity{ID: core.RuntimeID(object.GetName()), Domain: domain}, nil
	}

	// An operator's cache need not hold more.
	kind := &metav1.PartialObjectMetadata{}
	kind.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))

	err = runtimes.SetUp(mgr, kind, identify, kubeconfigs.Connect, issuer, installer,
		runtimes.Options{Retry: 100 * time.Millisecond, GiveUp: time.Second, Interval: time.Hour, Fleet: heard})
	if err != nil {
		t.Fatal(err)
	}

	rig.Run(t, "manager", mgr.Start)
}

// startPlane starts a control plane with the definition of Watchers. Its client has their scheme.
func startPlane(t *testing.T) *apiserver.ControlPlane {
	t.Helper()

	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}

	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), v1beta2.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}

	return apiserver.StartT(t, apiserver.Options{
		Scheme: known, CRDs: []*apiextensionsv1.CustomResourceDefinition{manifests.Watchers(t)},
	})
}

// newManager returns a manager without metrics. Several may have controllers of the same names.
func newManager(t *testing.T, plane *apiserver.ControlPlane) ctrl.Manager {
	t.Helper()

	mgr, err := ctrl.NewManager(plane.Config, ctrl.Options{
		Scheme: plane.Client.Scheme(), Metrics: server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatal(err)
	}

	return mgr
}

func newWatcher(name string) *v1beta2.Watcher {
	return &v1beta2.Watcher{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: v1beta2.WatcherSpec{
			Manager:         "manager",
			ServiceInfo:     v1beta2.Service{Name: "events", Namespace: "kcp-system", Port: 8082},
			ResourceToWatch: v1beta2.WatchableGVR{Version: "v1", Resource: "configmaps"},
			Gateway: v1beta2.GatewayConfig{LabelSelector: v1beta2.GatewaySelector{
				MatchLabels: map[string]v1beta2.LabelValue{"a": "b"},
			}},
		},
	}
}

func represented(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: name, Annotations: map[string]string{"skr-domain": name + ".example.com"},
	}}
}

func kubeconfig(name string, text []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault,
			Name:      name,
		}, Data: map[string][]byte{"config": text},
	}
}

// represent creates the object first: the way to a runtime may appear later.
func represent(t *testing.T, plane *apiserver.ControlPlane, name string, text []byte) {
	t.Helper()
	create(t, plane, represented(name))
	create(t, plane, kubeconfig(name, text))
}

func create(t *testing.T, plane *apiserver.ControlPlane, object client.Object) {
	t.Helper()

	if err := plane.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, plane *apiserver.ControlPlane, object client.Object) {
	t.Helper()

	if err := plane.Client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return text
}

// agentAnswers waits for the Deployment and reports of it as a kubelet would.
func agentAnswers(t *testing.T, in *apiserver.ControlPlane) {
	t.Helper()

	deployment := &appsv1.Deployment{}
	rig.Eventually(t, patience, "there is a Deployment", func() bool {
		return in.Client.Get(t.Context(), key(installation.Name), deployment) == nil
	})

	if calls := called(t, in); calls != nil {
		t.Errorf("the API server calls %v before the agent answers", calls)
	}

	deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation, Replicas: 2,
		UpdatedReplicas: 2, ReadyReplicas: 1, AvailableReplicas: 1,
	}
	if err := in.Client.Status().Update(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}

	create(t, in, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: installation.DefaultNamespace, Name: "agent",
			Labels: map[string]string{discoveryv1.LabelServiceName: installation.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	})
}

// called are the names of the webhooks, shortened.
func called(t *testing.T, in *apiserver.ControlPlane) (names []string) {
	t.Helper()

	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}

	err := in.Client.Get(t.Context(), client.ObjectKey{Name: installation.Name}, configuration)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}

	for i := range configuration.Webhooks {
		names = append(names, strings.TrimSuffix(configuration.Webhooks[i].Name, ".operator.kyma-project.io"))
	}

	return names
}

func eventuallyCalls(t *testing.T, in *apiserver.ControlPlane, want ...string) {
	t.Helper()
	rig.Eventually(t, patience, "the API server calls "+strings.Join(want, " and "), func() bool {
		return slices.Equal(called(t, in), want)
	})
}

func eventuallyGone(t *testing.T, plane *apiserver.ControlPlane, name string) {
	t.Helper()
	rig.Eventually(t, patience, name+" is gone", func() bool {
		return apierrors.IsNotFound(plane.Client.Get(t.Context(), client.ObjectKey{
			Namespace: metav1.NamespaceDefault,
			Name:      name,
		}, &corev1.ConfigMap{}))
	})
}

// eventuallyKnows waits until the fleet has exactly these runtimes.
func eventuallyKnows(t *testing.T, heard *fleet.Fleet, want ...core.RuntimeID) {
	t.Helper()
	rig.Eventually(t, patience, "the fleet knows "+fmt.Sprint(want), func() bool {
		var known []core.RuntimeID

		heard.Range(func(s fleet.Status) bool {
			known = append(known, s.Runtime)

			return true
		})

		return slices.Equal(known, want)
	})
}
