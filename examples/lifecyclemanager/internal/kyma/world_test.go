package kyma_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/kyma"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/manifest"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const fresh, patience = time.Hour, 5 * time.Minute

// moduleName is the module of most tests. World.keda adds the objects of the sample module to it.
const moduleName = "sample"

var (
	scheme = runtime.NewScheme()
	// startOnce starts the control plane and the runtime that all tests share, and stop ends them.
	startOnce = sync.OnceValues(start)
	stop      = func() error { return nil }
)

func start() (planes []*apiserver.ControlPlane, err error) {
	log.SetLogger(logr.Discard())
	err = errors.Join(clientgoscheme.AddToScheme(scheme), v1beta2.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme))
	if err != nil {
		return nil, err
	}
	planes, stop, err = apiserver.StartAll(context.Background(), []apiserver.Options{{Scheme: scheme, CRDPaths: []string{
		"../../config/crd/operator.kyma-project.io_kymas.yaml",
		"../../config/crd/operator.kyma-project.io_manifests.yaml",
		"../../config/crd/operator.kyma-project.io_moduletemplates.yaml",
	}}, {Scheme: scheme}})
	return planes, err
}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// world is a control plane and one runtime, with both reconcilers.
type world struct {
	t          *testing.T
	plane, skr *apiserver.ControlPlane
	scheme     *runtime.Scheme
	edits      *events.FakeRecorder
	source     *controllerruntime.Source[ctrl.Request]
	// keda adds the sample module to each version.
	keda bool
	operator
}

// operator has the reconcilers of one process.
type operator struct {
	kymas     *kyma.Reconciler
	manifests *manifest.Reconciler
	templates *kyma.Templates
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("needs real API servers, which -short leaves out")
	}
	w := &world{t: t, scheme: scheme}
	w.source = controllerruntime.NewSource(func(context.Context, core.Delivery) ([]ctrl.Request, error) {
		return []ctrl.Request{{NamespacedName: key("runtime-1")}}, nil
	}, controllerruntime.SourceOptions{})
	planes, err := startOnce()
	w.must(err)
	w.plane = planes[0]
	w.skr = planes[1]
	w.clear()
	w.connect()
	w.operator = w.newOperator(nil)
	return w
}

// clear removes what another test has left.
func (w *world) clear() {
	w.t.Helper()
	ctx := w.t.Context()
	here := w.plane.Client
	there := w.skr.Client
	w.must(here.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace("default")))
	w.dropTemplates()
	w.must(there.DeleteAllOf(ctx, &apiextensionsv1.CustomResourceDefinition{}))
	w.must(client.IgnoreNotFound(there.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: skr.Namespace}})))
	lab.Eventually(w.t, patience, "the runtime is as new", func() bool {
		crds := &apiextensionsv1.CustomResourceDefinitionList{}
		err := errors.Join(w.manage(), there.List(ctx, crds))
		return err == nil && len(crds.Items) == 0 && w.namespace(skr.Namespace) == nil
	})
}

// connect writes the kubeconfig of the runtime.
func (w *world) connect() {
	w.t.Helper()
	kubeconfig, err := os.ReadFile(w.skr.Kubeconfig)
	w.must(err)
	w.must(w.plane.Client.Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-1"},
		Data:       map[string][]byte{skr.KubeconfigKey: kubeconfig},
	}))
}

// newOperator returns reconcilers without caches. They fail after the crash, unless it is nil.
func (w *world) newOperator(crash *crash) operator {
	w.t.Helper()
	local := crash.client(w.t, w.plane, w.scheme)
	connections := skr.NewConnections(w.plane.Client, w.scheme)
	connect := crash.connect(w.t, connections.For(w.source), w.skr, w.scheme)
	w.edits = events.NewFakeRecorder(100)
	clusters := skr.Clusters{
		Client: local, Direct: local, Connect: connect, RequeueAfter: func(core.RuntimeID) time.Duration { return fresh },
	}
	return operator{
		&kyma.Reconciler{Clusters: clusters, Events: w.edits}, &manifest.Reconciler{Clusters: clusters},
		&kyma.Templates{Client: local, Direct: local},
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	lab.NoError(w.t, err)
}

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// settle reconciles everything until no reconcile requests another one soon. It tries again after an
// error, as a controller does: an API server may answer 404 for a definition that it has just stored.
// It returns the error of a crash only.
func (w *world) settle() error {
	w.t.Helper()
	limit := time.Now().Add(patience)
	for quiet := 0; quiet < 2; { // The Manifests change the status of the Kyma.
		again, err := w.round()
		switch {
		case errors.Is(err, errCrash):
			return err
		case time.Now().After(limit):
			w.t.Fatal("the reconciles do not end: ", err)
		case err != nil:
			w.t.Log("a round is repeated: ", err)
			quiet = 0
		case again:
			quiet = 0
		default:
			quiet++
		}
	}
	return nil
}

// round reconciles each object once, and reports whether one of them is to be reconciled soon.
func (w *world) round() (again bool, err error) {
	w.t.Helper()
	again, err = reconcileOne(w.t, w.kymas, "runtime-1")
	if err != nil {
		return false, err
	}
	for _, m := range w.listManifests() {
		soon, err := reconcileOne(w.t, w.manifests, m.Name)
		if err != nil {
			return false, err
		}
		again = again || soon
	}
	templates := &v1beta2.ModuleTemplateList{}
	w.must(w.plane.Client.List(w.t.Context(), templates, client.InNamespace("default")))
	for i := range templates.Items {
		if _, err := reconcileOne(w.t, w.templates, templates.Items[i].Name); err != nil {
			return false, err
		}
	}
	return again, w.manage()
}

func reconcileOne(t *testing.T, r reconcile.Reconciler, name string) (again bool, err error) {
	t.Helper()
	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key(name)})
	return result.RequeueAfter > 0 && result.RequeueAfter < fresh, err
}

func (w *world) listManifests() []v1beta2.Manifest {
	w.t.Helper()
	list := &v1beta2.ManifestList{}
	w.must(w.plane.Client.List(w.t.Context(), list))
	return list.Items
}

// template returns a ModuleTemplate of the module with a ConfigMap for each name.
func template(t *testing.T, version string, configMaps ...string) *v1beta2.ModuleTemplate {
	t.Helper()
	made := &v1beta2.ModuleTemplate{Spec: v1beta2.ModuleTemplateSpec{
		Module: moduleName, Channels: []v1beta2.Channel{"regular"}, Version: v1beta2.Version(version),
	}}
	made.Namespace = "default"
	made.Name = moduleName + "-" + version
	for _, name := range configMaps {
		raw, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "default", "name": name},
		})
		if err != nil {
			t.Fatal(err)
		}
		resource := v1beta2.Resource{RawExtension: runtime.RawExtension{Raw: raw}}
		made.Spec.Resources = append(made.Spec.Resources, resource)
	}
	return made
}

// register creates the Kyma of the runtime, with the condition that its agent is installed.
func (w *world) register(modules ...v1beta2.Module) {
	w.t.Helper()
	made := &v1beta2.Kyma{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-1"},
		Spec:       v1beta2.KymaSpec{Channel: "regular", Modules: modules},
	}
	w.must(w.plane.Client.Create(w.t.Context(), made))
	w.setAgent(metav1.ConditionTrue, "Installed")
}

// reset leaves version 1 of the module as the only one, the agent installed, and these modules,
// whatever was there. It removes the module first, as no older version takes its place.
func (w *world) reset(modules ...v1beta2.Module) {
	w.t.Helper()
	unlabelled := w.kyma()
	unlabelled.Labels = nil
	w.must(w.plane.Client.Update(w.t.Context(), unlabelled))
	w.setAgent(metav1.ConditionTrue, "Installed")
	w.setModules()
	w.must(w.settle())
	w.setTemplate("1", "text")
	w.setModules(modules...)
	w.must(w.settle())
	for len(w.edits.Events) > 0 {
		<-w.edits.Events
	}
}

// setAgent writes the condition about the agent, as package runtimes does.
func (w *world) setAgent(status metav1.ConditionStatus, reason string) {
	w.t.Helper()
	stored := w.kyma()
	meta.SetStatusCondition(&stored.Status.Conditions, metav1.Condition{
		Type: v1beta2.WatcherInstalled, Status: status, Reason: reason,
	})
	w.must(w.plane.Client.Status().Update(w.t.Context(), stored))
}

// setTemplate makes a version the only one of the module.
func (w *world) setTemplate(version string, configMaps ...string) {
	w.t.Helper()
	w.dropTemplates()
	made := template(w.t, version, configMaps...)
	if w.keda {
		text, err := os.ReadFile("../../config/samples/keda-1.0.0.yaml")
		w.must(err)
		sample := &v1beta2.ModuleTemplate{}
		w.must(yaml.UnmarshalStrict(text, sample))
		made.Spec.Resources = append(made.Spec.Resources, sample.Spec.Resources...)
		made.Spec.Data = sample.Spec.Data
	}
	w.must(w.plane.Client.Create(w.t.Context(), made))
}

// dropTemplates deletes all ModuleTemplates, also those that are used.
func (w *world) dropTemplates() {
	w.t.Helper()
	list := &v1beta2.ModuleTemplateList{}
	w.must(w.plane.Client.List(w.t.Context(), list, client.InNamespace("default")))
	for i := range list.Items {
		dropped := &list.Items[i]
		before := dropped.DeepCopy()
		dropped.Finalizers = nil
		w.must(client.IgnoreNotFound(w.plane.Client.Patch(w.t.Context(), dropped, client.MergeFrom(before))))
		w.must(client.IgnoreNotFound(w.plane.Client.Delete(w.t.Context(), dropped)))
	}
}

// manage plays the manager of the sample module, and the controllers of a cluster. The manager holds
// its custom resource by a finalizer, which it removes only while its Deployment is there.
func (w *world) manage() error {
	ctx := w.t.Context()
	c := w.skr.Client
	manager := &appsv1.Deployment{}
	custom := &unstructured.Unstructured{}
	namespaces := &corev1.NamespaceList{}
	custom.SetAPIVersion("keda.example.com/v1")
	custom.SetKind("Keda")
	if c.Get(ctx, client.ObjectKey{Namespace: "keda", Name: "keda-manager"}, manager) == nil {
		manager.Status = appsv1.DeploymentStatus{
			ObservedGeneration: manager.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
			Conditions: []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
				{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
			},
		}
		if err := c.Status().Update(ctx, manager); err != nil {
			return err
		}
		change := controllerutil.AddFinalizer
		err := c.Get(ctx, client.ObjectKey{Namespace: "keda", Name: "default"}, custom)
		if custom.GetDeletionTimestamp() != nil {
			change = controllerutil.RemoveFinalizer
		}
		if err == nil && change(custom, "keda.example.com/finalizer") {
			if err := c.Update(ctx, custom); err != nil {
				return err
			}
		}
	}
	err := c.List(ctx, namespaces)
	for i := range namespaces.Items {
		if namespace := &namespaces.Items[i]; namespace.DeletionTimestamp != nil {
			namespace.Spec.Finalizers = nil
			err = errors.Join(err, c.SubResource("finalize").Update(ctx, namespace)) //nolint:misspell // Its name in the API.
		}
	}
	return err
}

// user returns the Kyma that users edit.
func (w *world) user() *v1beta2.Kyma {
	w.t.Helper()
	remote := &v1beta2.Kyma{}
	w.must(w.skr.Client.Get(w.t.Context(), client.ObjectKey{Namespace: skr.Namespace, Name: kyma.RemoteName}, remote))
	return remote
}

// setModules edits the Kyma as a user does. If there is none yet, an administrator edits the other.
func (w *world) setModules(modules ...v1beta2.Module) {
	w.t.Helper()
	remote := &v1beta2.Kyma{}
	if err := w.skr.Client.Get(w.t.Context(), client.ObjectKey{Namespace: skr.Namespace, Name: kyma.RemoteName}, remote); err != nil {
		k := w.kyma()
		k.Spec.Modules = modules
		w.must(w.plane.Client.Update(w.t.Context(), k))
		return
	}
	remote.Spec.Modules = modules
	w.must(w.skr.Client.Update(w.t.Context(), remote))
}
