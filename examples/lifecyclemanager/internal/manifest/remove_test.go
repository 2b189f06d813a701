package manifest_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestRemoval deletes nothing that others need: the custom resources before their manager, and
// shared objects never.
func TestRemoval(t *testing.T) {
	w := newWorld(t)
	t.Run("custom resources first", func(t *testing.T) { w.customResourcesFirst(t) })
	t.Run("shared objects", func(t *testing.T) { w.sharedObjects(t) })
	t.Run("the control plane itself", func(t *testing.T) { w.controlPlaneItself(t) })
	t.Run("the user's settings", func(t *testing.T) { w.usersSettings(t) })
	t.Run("custom resource policy", func(t *testing.T) { w.customResourcePolicy(t) })
	t.Run("without a Kyma", func(t *testing.T) { w.withoutKyma(t) })
	t.Run("opt-out", func(t *testing.T) { w.optOut(t) })
	w.play(t, w.rules()...)
	w.play(t, w.rulesOfDefinitions()...)
	t.Run("dead cluster", func(t *testing.T) { w.deadCluster(t) })
}

// install creates a Manifest and reconciles it once.
func (w *world) install(name string, objects ...any) {
	w.t.Helper()
	w.must(w.Create(w.t.Context(), &v1beta2.Manifest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{v1beta2.KymaLabel: "runtime-1"},
		},
		Spec: w.spec(v1beta2.ModuleName(name), "1", objects...),
	}))
	w.reconcileOne(name)
}

func (w *world) disable(name string) {
	w.t.Helper()
	m := &v1beta2.Manifest{}
	w.must(w.Get(w.t.Context(), key(name), m))
	w.must(w.Delete(w.t.Context(), m))
}

// message returns the status message of a Manifest, and whether the Manifest is there.
func (w *world) message(name string) (message string, there bool) {
	w.t.Helper()
	m := &v1beta2.Manifest{}
	err := w.Get(w.t.Context(), key(name), m)
	w.must(client.IgnoreNotFound(err))
	return m.Status.Message, err == nil
}

func kedaDefinition() any {
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "kedas.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"kind": "Keda", "plural": "kedas", "singular": "keda", "listKind": "KedaList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			}}},
		},
		// An API server sets the status itself. That of the unit tests has no controllers.
		"status": map[string]any{"conditions": []any{
			map[string]any{"type": "NamesAccepted", "status": "True"}, map[string]any{"type": "Established", "status": "True"},
		}},
	}
}

func keda(name string) map[string]any {
	return map[string]any{
		"apiVersion": "example.com/v1", "kind": "Keda",
		"metadata": map[string]any{"namespace": "default", "name": name},
		"spec":     map[string]any{"replicas": int64(1)},
	}
}

// customResourcesFirst plays a manager that takes the finalizer off its custom resource. It can do
// so only while its Deployment is there.
func (w *world) customResourcesFirst(t *testing.T) {
	t.Helper()
	w.install("keda", kedaDefinition(), keda("default"), deployment("keda-manager", "keda"))
	cr := w.keda("default")
	cr.SetFinalizers([]string{"example.com/keda"})
	w.must(w.Update(t.Context(), cr))
	users := &unstructured.Unstructured{Object: keda("users")}
	w.must(w.Create(t.Context(), users))
	w.disable("keda")
	for range 3 {
		w.reconcileOne("keda")
	}
	if message, _ := w.message("keda"); message != "waiting for the end of Keda default/default" {
		t.Errorf("message %q, want the custom resource", message)
	}
	if !w.exists(&unstructured.Unstructured{Object: deployment("keda-manager", "keda")}, "keda-manager") {
		t.Fatal("the manager is gone before its custom resource")
	}
	cr = w.keda("default")
	cr.SetFinalizers(nil)
	w.must(w.Update(t.Context(), cr))
	w.reconcileOne("keda")
	if message, _ := w.message("keda"); message != "waiting for the end of Keda default/users" {
		t.Errorf("message %q, want the object of the user", message)
	}
	w.must(w.Delete(t.Context(), users))
	w.untilGone("keda")
	if w.exists(&unstructured.Unstructured{Object: deployment("keda-manager", "keda")}, "keda-manager") {
		t.Error("the manager is left")
	}
}

func (w *world) keda(name string) *unstructured.Unstructured {
	w.t.Helper()
	cr := &unstructured.Unstructured{Object: keda(name)}
	w.must(w.Get(w.t.Context(), key(name), cr))
	return cr
}

func (w *world) untilGone(name string) {
	w.t.Helper()
	lab.Eventually(w.t, patience, "Manifest "+name+" ends", func() bool {
		w.reconcileOne(name)
		_, there := w.message(name)
		return !there
	})
}

func namespace(name string) any {
	return map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}
}

// sharedObjects has two modules with the same ConfigMap, and one with Namespaces of others.
func (w *world) sharedObjects(t *testing.T) {
	t.Helper()
	w.must(w.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "before"}}))
	w.install("a", configMap("shared"), configMap("only-a"), namespace("before"))
	w.install("b", configMap("shared"))
	w.disable("a")
	w.untilGone("a")
	if w.exists(&corev1.ConfigMap{}, "only-a") || !w.exists(&corev1.ConfigMap{}, "shared") {
		t.Error("want the object of one module gone, and that of two modules kept")
	}
	before := &corev1.Namespace{}
	w.must(w.Get(t.Context(), client.ObjectKey{Name: "before"}, before))
	if !before.DeletionTimestamp.IsZero() || before.Labels[skr.ManagedByLabel] != "" {
		t.Errorf("the Namespace that existed before: %v", before.ObjectMeta)
	}
	w.install("c", configMap("shared"))
	w.disable("b")
	w.disable("c")
	for range 10 {
		w.reconcileOne("b")
		w.reconcileOne("c")
	}
	if w.exists(&corev1.ConfigMap{}, "shared") {
		t.Error("the object of two modules that end at the same time is left")
	}
}

// controlPlaneItself wants an object of the control plane to be neither taken over nor deleted: this
// world's runtime is its control plane.
func (w *world) controlPlaneItself(t *testing.T) {
	t.Helper()
	w.must(w.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "operators-own"}}))
	w.must(w.Create(t.Context(), &v1beta2.Manifest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "greedy", Labels: map[string]string{v1beta2.KymaLabel: "runtime-1"}},
		Spec:       w.spec("greedy", "1", configMap("operators-own")),
	}))
	if _, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key("greedy")}); err == nil {
		t.Error("an object of the control plane was taken over")
	}
	w.disable("greedy")
	w.untilGone("greedy")
	if !w.exists(&corev1.ConfigMap{}, "operators-own") {
		t.Error("an object of the control plane was deleted")
	}
}

// usersSettings are in an object that is created once.
func (w *world) usersSettings(t *testing.T) {
	t.Helper()
	settings := configMap("settings")
	annotate(settings, skr.OnlyCreate)
	w.install("once", settings)
	stored := &corev1.ConfigMap{}
	w.must(w.Get(t.Context(), key("settings"), stored))
	stored.Data = map[string]string{"mine": "kept"}
	w.must(w.Update(t.Context(), stored))
	w.reconcileOne("once")
	w.must(w.Get(t.Context(), key("settings"), stored))
	if stored.Data["mine"] != "kept" {
		t.Error("the user's setting was reverted")
	}
	w.disable("once")
	w.untilGone("once")
	if w.exists(&corev1.ConfigMap{}, "settings") {
		t.Error("the object of the module is left")
	}
}

// customResourcePolicy creates the custom resource once, and deletes it with the module. With the
// policy Ignore, it does neither.
func (w *world) customResourcePolicy(t *testing.T) {
	t.Helper()
	setData := func(policy v1beta2.CustomResourcePolicy) v1beta2.TemplateRef {
		template := &v1beta2.ModuleTemplate{}
		w.must(w.Get(t.Context(), key("policed-1"), template))
		template.Spec.Data = &resources(t, configMap("data"))[0]
		template.Spec.CustomResourcePolicy = policy
		w.must(w.Update(t.Context(), template))
		return v1beta2.TemplateRef{Name: template.Name, UID: template.UID, Generation: template.Generation}
	}
	for _, policy := range []v1beta2.CustomResourcePolicy{"", v1beta2.CreateAndDelete, v1beta2.Ignore} {
		created := policy != v1beta2.Ignore
		w.install("policed", configMap("other"))
		m := &v1beta2.Manifest{}
		w.must(w.Get(t.Context(), key("policed"), m))
		m.Spec.Template = setData(policy)
		w.must(w.Update(t.Context(), m))
		w.reconcileOne("policed")
		stored := &corev1.ConfigMap{}
		if w.exists(stored, "data") != created {
			t.Fatalf("policy %q: created is %t", policy, !created)
		}
		if created {
			stored.Data = map[string]string{"users": "setting"}
			w.must(w.Update(t.Context(), stored))
			w.reconcileOne("policed")
			w.must(w.Get(t.Context(), key("data"), stored))
			if stored.Data["users"] != "setting" {
				t.Errorf("policy %q: the user's setting was reverted", policy)
			}
		}
		if policy == v1beta2.CreateAndDelete {
			w.must(w.Delete(t.Context(), stored))
			w.reconcileOne("policed")
			if w.exists(stored, "data") {
				t.Error("a custom resource that the user has deleted was created again")
			}
			w.must(w.Get(t.Context(), key("policed"), m))
			if m.Status.State != v1beta2.Ready {
				t.Errorf("status %+v without the custom resource", m.Status)
			}
		}
		w.disable("policed")
		w.untilGone("policed")
		if w.exists(stored, "data") {
			t.Errorf("policy %q: the custom resource is left", policy)
		}
	}
}

// withoutKyma wants a Manifest without a Kyma to end with its objects, as after a restored backup.
func (w *world) withoutKyma(t *testing.T) {
	t.Helper()
	w.install("orphan", configMap("orphaned"))
	kyma := &v1beta2.Kyma{}
	w.must(w.Get(t.Context(), key("runtime-1"), kyma))
	w.must(w.Delete(t.Context(), kyma))
	w.untilGone("orphan")
	if w.exists(&corev1.ConfigMap{}, "orphaned") {
		t.Error("the object is left")
	}
	kyma.ResourceVersion = ""
	w.must(w.Create(t.Context(), kyma))
	w.setCluster(w.cluster())
}

// optOut wants a Kyma with the label to keep its modules.
func (w *world) optOut(t *testing.T) {
	t.Helper()
	kyma := &v1beta2.Kyma{}
	w.must(w.Get(t.Context(), key("runtime-1"), kyma))
	kyma.Labels = map[string]string{v1beta2.SkipLabel: "true"}
	w.must(w.Update(t.Context(), kyma))
	w.install("held", configMap("held"))
	if w.exists(&corev1.ConfigMap{}, "held") {
		t.Error("a module was installed although the Kyma opts out")
	}
	kyma.Labels = nil
	w.must(w.Update(t.Context(), kyma))
	w.reconcileOne("held")
	if !w.exists(&corev1.ConfigMap{}, "held") {
		t.Error("the module is missing after the opt-out ended")
	}
	w.disable("held")
	w.untilGone("held")
}

// deadCluster has a kubeconfig, and no API server behind it.
func (w *world) deadCluster(t *testing.T) {
	t.Helper()
	w.install("dead", configMap("dead"))
	secret := &corev1.Secret{}
	w.must(w.Get(t.Context(), key("runtime-1"), secret))
	secret.Data[skr.KubeconfigKey] = []byte(`{"users": [{"name": "u", "user": {"token": "t"}}],
		"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
		"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]}`)
	w.must(w.Update(t.Context(), secret))
	w.disable("dead")
	w.reconciler.GiveUp = time.Hour
	_, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key("dead")})
	if message, there := w.message("dead"); err == nil || !there || !strings.Contains(message, "127.0.0.1:1") {
		t.Errorf("error %v, message %q: want the cause in the status", err, message)
	}
	w.reconciler.GiveUp = time.Nanosecond
	w.untilGone("dead")
}
