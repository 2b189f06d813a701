package manifest_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/manifest"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const patience = 5 * time.Minute

// world is one API server, which is control plane and runtime.
type world struct {
	client.Client

	t          *testing.T
	reconciler *manifest.Reconciler
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}
	scheme := runtime.NewScheme()
	lab.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1beta2.AddToScheme(scheme)))
	plane := apiserver.StartT(t, apiserver.Options{
		Scheme: scheme, CRDPaths: []string{
			"../../config/crd/operator.kyma-project.io_kymas.yaml", "../../config/crd/operator.kyma-project.io_manifests.yaml",
			"../../config/crd/operator.kyma-project.io_moduletemplates.yaml",
		},
	})
	connections := skr.NewConnections(plane.Client, scheme)
	w := &world{Client: plane.Client, t: t, reconciler: &manifest.Reconciler{Clusters: skr.Clusters{
		Client: plane.Client, Direct: plane.Client,
		Connect: func(ctx context.Context, _, kyma client.ObjectKey) (*skr.Runtime, error) {
			return connections.Get(ctx, kyma)
		},
		RequeueAfter: func(core.RuntimeID) time.Duration { return time.Hour },
	}}}
	kubeconfig, err := os.ReadFile(plane.Kubeconfig)
	w.must(err)
	w.must(w.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-1"},
		Data:       map[string][]byte{skr.KubeconfigKey: kubeconfig},
	}))
	w.must(w.Create(t.Context(), &v1beta2.Kyma{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-1"}, Spec: v1beta2.KymaSpec{Channel: "regular"},
	}))
	w.setCluster(w.cluster())
	return w
}

// cluster returns the UID that identifies the cluster.
func (w *world) cluster() types.UID {
	w.t.Helper()
	system := &corev1.Namespace{}
	w.must(w.Get(w.t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	return system.UID
}

// setCluster makes a cluster that of the Kyma, as the Kyma controller does.
func (w *world) setCluster(cluster types.UID) {
	w.t.Helper()
	kyma := &v1beta2.Kyma{}
	w.must(w.Get(w.t.Context(), key("runtime-1"), kyma))
	kyma.Status.Cluster = cluster
	w.must(w.Status().Update(w.t.Context(), kyma))
}

func (w *world) must(err error) {
	w.t.Helper()
	lab.NoError(w.t, err)
}

func (w *world) reconcile() ctrl.Result { return w.reconcileOne("m") }

// reconcileOne tries again after an error, as a controller does: an API server may answer 404 for a definition that it
// has just stored.
func (w *world) reconcileOne(name string) (result ctrl.Result) {
	w.t.Helper()
	lab.Eventually(w.t, patience, "a reconcile of "+name+" succeeds", func() bool {
		var err error
		if result, err = w.reconciler.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: key(name)}); err != nil {
			w.t.Log("a reconcile is repeated: ", err)
		}
		return err == nil
	})
	return result
}

func (w *world) manifest() *v1beta2.Manifest {
	w.t.Helper()
	m := &v1beta2.Manifest{}
	w.must(w.Get(w.t.Context(), key("m"), m))
	return m
}

func (w *world) exists(object client.Object, name string) bool {
	w.t.Helper()
	err := w.Get(w.t.Context(), key(name), object)
	w.must(client.IgnoreNotFound(err))
	return err == nil
}

// available reports a Deployment as available, as its controller does.
func (w *world) available(name string) {
	w.t.Helper()
	deployment := &appsv1.Deployment{}
	w.must(w.Get(w.t.Context(), key(name), deployment))
	deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
		},
	}
	w.must(w.Status().Update(w.t.Context(), deployment))
}

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

func resources(t *testing.T, objects ...any) (resources []v1beta2.Resource) {
	t.Helper()
	for _, object := range objects {
		raw := lab.Must(json.Marshal(object))
		resources = append(resources, v1beta2.Resource{RawExtension: runtime.RawExtension{Raw: raw}})
	}
	return resources
}

// spec returns that of a Manifest, with a ModuleTemplate of these objects.
func (w *world) spec(module v1beta2.ModuleName, version v1beta2.Version, objects ...any) v1beta2.ManifestSpec {
	w.t.Helper()
	template := &v1beta2.ModuleTemplate{}
	template.Namespace, template.Name = "default", string(module)+"-"+string(version)
	_, err := controllerutil.CreateOrUpdate(w.t.Context(), w.Client, template, func() error {
		template.Spec = v1beta2.ModuleTemplateSpec{Module: module, Version: version, Resources: resources(w.t, objects...)}
		return nil
	})
	w.must(err)
	return v1beta2.ManifestSpec{Module: module, Version: version, Template: v1beta2.TemplateRef{
		Name: template.Name, UID: template.UID, Generation: template.Generation,
	}}
}

func configMap(name string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "default", "name": name},
	}
}

func deployment(name, app string) map[string]any {
	labels := map[string]any{"app": app}
	return map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"namespace": "default", "name": name},
		"spec": map[string]any{
			"selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "app", "image": "app:v1"}}},
			},
		},
	}
}

func annotate(object map[string]any, annotation string) {
	metadata, _ := object["metadata"].(map[string]any)
	metadata["annotations"] = map[string]any{annotation: "true"}
}

// TestManifest installs, changes, upgrades and deletes a Manifest.
func TestManifest(t *testing.T) {
	w := newWorld(t)
	w.must(w.Create(t.Context(), &v1beta2.Manifest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "m", Labels: map[string]string{v1beta2.KymaLabel: "runtime-1"},
		},
		Spec: w.spec("module", "1", deployment("app", "app"), configMap("old")),
	}))
	if again := w.reconcile().RequeueAfter; again > time.Minute {
		t.Errorf("the Deployment is not ready, and the next reconcile is in %s", again)
	}
	if state := w.manifest().Status.State; state != v1beta2.Processing {
		t.Errorf("state %s before the Deployment is ready, want %s", state, v1beta2.Processing)
	}
	w.available("app")
	if again := w.reconcile().RequeueAfter; again != time.Hour {
		t.Errorf("the next reconcile is in %s, want that of the fleet", again)
	}
	w.wantReady("1", 2)
	w.t.Run("status of an object", func(*testing.T) { w.unavailable() })
	w.t.Run("drift", func(*testing.T) { w.drift() })
	w.t.Run("template in change", func(*testing.T) { w.templateInChange() })
	w.t.Run("foreign object", func(*testing.T) { w.foreign() })
	w.t.Run("upgrade", func(*testing.T) { w.upgrade() })
	w.t.Run("delete", func(*testing.T) { w.delete() })
}

func (w *world) wantReady(version v1beta2.Version, inventory int) {
	w.t.Helper()
	status := w.manifest().Status
	if status.State != v1beta2.Ready || status.Version != version || len(status.Inventory) != inventory {
		w.t.Errorf("status %+v, want version %s ready with %d objects", status, version, inventory)
	}
}

// unavailable wants the state of the module to follow its Deployment, and to be read again soon.
func (w *world) unavailable() {
	w.t.Helper()
	app := &appsv1.Deployment{}
	w.must(w.Get(w.t.Context(), key("app"), app))
	app.Status.AvailableReplicas = 0
	app.Status.ReadyReplicas = 0
	app.Status.Conditions[0].Status = corev1.ConditionFalse
	w.must(w.Status().Update(w.t.Context(), app))
	if again := w.reconcile().RequeueAfter; again > time.Minute {
		w.t.Errorf("the next reconcile is in %s", again)
	}
	if now := w.manifest().Status; now.State != v1beta2.Processing || !strings.Contains(now.Message, "Deployment app") {
		w.t.Errorf("status %+v of a Deployment that is not available", now)
	}
	w.available("app")
	w.reconcile()
	w.wantReady("1", 2)
}

// templateInChange wants nothing to be applied that the Manifest does not name yet.
func (w *world) templateInChange() {
	w.t.Helper()
	_ = w.spec("module", "1", deployment("app", "app"), configMap("unseen"))
	w.reconcile()
	if w.exists(&corev1.ConfigMap{}, "unseen") || w.manifest().Status.State != v1beta2.Processing {
		w.t.Errorf("status %+v, want the changed ModuleTemplate to wait", w.manifest().Status)
	}
	m := w.manifest()
	m.Spec = w.spec("module", "1", deployment("app", "app"), configMap("old"))
	w.must(w.Update(w.t.Context(), m))
	w.reconcile()
	w.wantReady("1", 2)
}

func (w *world) drift() {
	w.t.Helper()
	app := &appsv1.Deployment{}
	w.must(w.Get(w.t.Context(), key("app"), app))
	app.Spec.Template.Spec.Containers[0].Image = "elsewhere"
	w.must(w.Update(w.t.Context(), app))
	w.reconcile()
	w.must(w.Get(w.t.Context(), key("app"), app))
	if image := app.Spec.Template.Spec.Containers[0].Image; image != "app:v1" {
		w.t.Errorf("image %s after the reconcile, want app:v1", image)
	}
	version := app.ResourceVersion
	w.reconcile()
	w.must(w.Get(w.t.Context(), key("app"), app))
	if app.ResourceVersion != version {
		w.t.Error("a reconcile without drift has written the Deployment")
	}
	w.available("app")
	w.reconcile()
}

// foreign adds an object to the inventory that the operator has not made.
func (w *world) foreign() {
	w.t.Helper()
	w.must(w.Create(w.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "foreign"}}))
	m := w.manifest()
	m.Status.Inventory = append(m.Status.Inventory, v1beta2.Object{
		Version: "v1", Kind: "ConfigMap", Namespace: "default", Name: "foreign",
	})
	w.must(w.Status().Update(w.t.Context(), m))
	w.reconcile()
	if !w.exists(&corev1.ConfigMap{}, "foreign") {
		w.t.Error("an object of others was deleted")
	}
}

// upgrade changes an immutable field, adds an object and removes another. The Deployment may be
// replaced only if its annotation allows it.
func (w *world) upgrade() {
	w.t.Helper()
	before := &appsv1.Deployment{}
	w.must(w.Get(w.t.Context(), key("app"), before))
	renamed := deployment("app", "renamed")
	m := w.manifest()
	m.Spec = w.spec("module", "2", renamed, configMap("new"))
	w.must(w.Update(w.t.Context(), m))
	_, err := w.reconciler.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: key("m")})
	if status := w.manifest().Status; err == nil || status.State != v1beta2.Error || !strings.Contains(err.Error(), "Deployment/default/app") {
		w.t.Errorf("error %v and status %+v of a changed selector, want one that names the Deployment", err, status)
	}
	after := &appsv1.Deployment{}
	w.must(w.Get(w.t.Context(), key("app"), after))
	if after.UID != before.UID {
		w.t.Error("the Deployment was replaced without permission")
	}
	annotate(renamed, skr.Replace)
	m = w.manifest()
	m.Spec = w.spec("module", "2", renamed, configMap("new"))
	w.must(w.Update(w.t.Context(), m))
	w.reconcile()
	w.available("app")
	w.reconcile()
	w.wantReady("2", 2)
	if w.exists(&corev1.ConfigMap{}, "old") || !w.exists(&corev1.ConfigMap{}, "new") {
		w.t.Error("want the ConfigMap of version 2 and not that of version 1")
	}
}

func (w *world) delete() {
	w.t.Helper()
	held := &corev1.ConfigMap{}
	w.must(w.Get(w.t.Context(), key("new"), held))
	held.Finalizers = []string{"example.com/held"}
	w.must(w.Update(w.t.Context(), held))
	w.must(w.Delete(w.t.Context(), w.manifest()))
	if again := w.reconcile().RequeueAfter; again == 0 {
		w.t.Error("there is no next reconcile, but an object is left")
	}
	if state := w.manifest().Status; state.State != v1beta2.Deleting || state.Message != "waiting for the end of ConfigMap new" {
		w.t.Errorf("status %+v while an object is left", state)
	}
	w.must(w.Get(w.t.Context(), key("new"), held))
	held.Finalizers = nil
	w.must(w.Update(w.t.Context(), held))
	w.reconcile()
	if err := w.Get(w.t.Context(), key("m"), &v1beta2.Manifest{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("the Manifest is still there: %v", err)
	}
	if w.exists(&appsv1.Deployment{}, "app") || w.exists(&corev1.ConfigMap{}, "new") {
		w.t.Error("objects are left")
	}
}
