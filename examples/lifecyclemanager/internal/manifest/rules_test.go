package manifest_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/manifest"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestRules holds the rules of ownership without an API server. TestRemoval holds them with one, and
// those about definitions and Namespaces, which nothing makes ready here.
func TestRules(t *testing.T) {
	w := newFakeWorld(t)
	w.play(t, w.rules()...)
}

// row is a rule and its test.
type row struct {
	name string
	test func(*testing.T)
}

func (w *world) play(t *testing.T, rows ...row) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			before := w.t
			defer func() { w.t = before }()
			w.t = t
			row.test(t)
		})
	}
}

func (w *world) rules() []row {
	return []row{
		{"foreign objects", w.foreignObjects},
		{"impossible objects", w.impossibleObjects},
		{"a cluster made anew", w.clusterMadeAnew},
		{"another cluster", w.anotherCluster},
		{"a Manifest that is gone", w.goneManifest},
		{"one object of two modules", w.oneObjectOfTwo},
		{"a version that is no longer served", w.formerVersion},
		{"a cluster made anew while a module ends", w.madeAnewWhileEnding},
		{"another cluster while a Kyma ends", w.anotherWhileEnding},
	}
}

func (w *world) rulesOfDefinitions() []row {
	return []row{
		{"enabled again", w.enabledAgain},
		{"one custom resource of two modules", w.oneCustomResourceOfTwo},
		{"true states", w.trueStates},
		{"a shared definition", w.sharedDefinition},
		{"a custom resource of another module", w.dependentModule},
		{"an object that cannot be read", w.unreadableObject},
		{"an object of a user in a Namespace", w.guestOfNamespace},
	}
}

// kinds are those of the unit tests.
var kinds = map[schema.GroupVersionKind]meta.RESTScope{
	{Version: "v1", Kind: "ConfigMap"}:                                               meta.RESTScopeNamespace,
	{Version: "v1", Kind: "Secret"}:                                                  meta.RESTScopeNamespace,
	{Version: "v1", Kind: "Namespace"}:                                               meta.RESTScopeRoot,
	{Group: "apps", Version: "v1", Kind: "Deployment"}:                               meta.RESTScopeNamespace,
	{Group: "batch", Version: "v1", Kind: "Job"}:                                     meta.RESTScopeNamespace,
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}:         meta.RESTScopeRoot,
	{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}: meta.RESTScopeRoot,
	{Group: "example.com", Version: "v1", Kind: "Keda"}:                              meta.RESTScopeNamespace,
	{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}:            meta.RESTScopeNamespace,
	{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Manifest"}:        meta.RESTScopeNamespace,
	{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "ModuleTemplate"}:  meta.RESTScopeNamespace,
}

// newFakeWorld returns a world without an API server.
func newFakeWorld(t *testing.T) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	lab.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1beta2.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)))
	var served []schema.GroupVersion
	for kind := range kinds {
		served = append(served, kind.GroupVersion())
	}
	mapper := meta.NewDefaultRESTMapper(served)
	for kind, scope := range kinds {
		mapper.Add(kind, scope)
	}
	here := metav1.ObjectMeta{Namespace: "default", Name: "runtime-1"}
	c := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithReturnManagedFields().
		WithStatusSubresource(&v1beta2.Kyma{}, &v1beta2.Manifest{}, &appsv1.Deployment{}, &batchv1.Job{}).
		WithObjects(
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "the cluster"}},
			&v1beta2.Kyma{ObjectMeta: here, Spec: v1beta2.KymaSpec{Channel: "regular"}},
		).Build()
	connections := skr.NewConnections(c, scheme)
	connections.Connect = func(context.Context, client.Object) (client.Client, error) { return c, nil }
	w := &world{Client: c, t: t, reconciler: &manifest.Reconciler{Clusters: skr.Clusters{
		Client: c, Direct: c,
		Connect: func(ctx context.Context, _, kyma client.ObjectKey) (*skr.Runtime, error) {
			return connections.Get(ctx, kyma)
		},
		RequeueAfter: func(core.RuntimeID) time.Duration { return time.Hour },
	}}}
	w.setCluster(w.cluster())
	return w
}

// create creates the Manifest of a module, without a reconcile.
func (w *world) create(name string, objects ...any) {
	w.t.Helper()
	w.must(w.Create(w.t.Context(), &v1beta2.Manifest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{v1beta2.KymaLabel: "runtime-1"},
			Finalizers: []string{v1beta2.ManifestFinalizer},
		},
		Spec: w.spec(v1beta2.ModuleName(name), "1", objects...),
	}))
}

func (w *world) get(name string) *v1beta2.Manifest {
	w.t.Helper()
	m := &v1beta2.Manifest{}
	w.must(w.Get(w.t.Context(), key(name), m))
	return m
}

// update changes the objects of a module.
func (w *world) update(name string, objects ...any) {
	w.t.Helper()
	m := w.get(name)
	m.Spec = w.spec(v1beta2.ModuleName(name), "1", objects...)
	w.must(w.Update(w.t.Context(), m))
}

// refused wants a reconcile to fail with all these texts, which are also in the status.
func (w *world) refused(name string, texts ...string) {
	w.t.Helper()
	_, err := w.reconciler.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: key(name)})
	status := w.get(name).Status
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(status.Message, text) || status.State != v1beta2.Error {
			w.t.Errorf("error %v, status %+v: want %q", err, status, text)
		}
	}
}

// end removes a module.
func (w *world) end(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.disable(name)
	}
	for _, name := range names {
		w.untilGone(name)
	}
}

func clusterRole(name string) map[string]any {
	return map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": name},
	}
}

func withData(name string, data map[string]any) map[string]any {
	object := configMap(name)
	object["data"] = data
	return object
}

// foreignObjects wants objects of others to stay as they are, each named, unless an annotation on
// them gives them to the module.
func (w *world) foreignObjects(t *testing.T) {
	t.Helper()
	theirs := []*corev1.ConfigMap{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "theirs-1"}, Data: map[string]string{"of": "others"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "theirs-2"}, Data: map[string]string{"of": "others"}},
	}
	for _, object := range theirs {
		w.must(w.Create(t.Context(), object))
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}
	w.must(w.Create(t.Context(), role))
	w.create("greedy2", configMap("own"), withData("theirs-1", map[string]any{"of": "module"}), configMap("theirs-2"), clusterRole("theirs"))
	w.refused("greedy2", "ConfigMap default/theirs-1", "ConfigMap default/theirs-2", "ClusterRole theirs exists")
	if w.exists(&corev1.ConfigMap{}, "own") {
		t.Error("an object was applied before the refusal")
	}

	metav1.SetMetaDataAnnotation(&theirs[0].ObjectMeta, skr.AdoptBy, "greedy2")
	w.must(w.Update(t.Context(), theirs[0]))
	w.update("greedy2", configMap("own"), withData("theirs-1", map[string]any{"of": "module"}))
	w.reconcileOne("greedy2")
	live := &corev1.ConfigMap{}
	if !w.exists(live, "theirs-1") || live.Data["of"] != "module" {
		t.Errorf("data %v of an object that was given to the module", live.Data)
	}

	// A user may remove the label. The object is still that of the module.
	delete(live.Labels, skr.ManagedByLabel)
	delete(live.Annotations, skr.AdoptBy)
	w.must(w.Update(t.Context(), live))
	w.reconcileOne("greedy2")
	if !w.exists(live, "theirs-1") || live.Labels[skr.ManagedByLabel] != skr.FieldOwner {
		t.Errorf("labels %v, want that of the operator again", live.Labels)
	}
	w.end("greedy2")
	if w.exists(live, "theirs-1") || !w.exists(live, "theirs-2") || live.Data["of"] != "others" {
		t.Errorf("want the adopted object gone, and the other one as it was: %v", live.Data)
	}
}

// impossibleObjects are refused before anything is written. An inventory that has them does not hold
// a corrected version, nor the removal.
func (w *world) impossibleObjects(t *testing.T) {
	t.Helper()
	nowhere := configMap("nowhere")
	nowhere["metadata"] = map[string]any{"name": "nowhere"}
	role := clusterRole("reader")
	role["metadata"] = map[string]any{"namespace": "default", "name": "reader"}
	unknown := map[string]any{
		"apiVersion": "example.org/v1", "kind": "Unknown", "metadata": map[string]any{"namespace": "default", "name": "a"},
	}
	w.create("wrong", nowhere, role, unknown, configMap("twice"), configMap("twice"))
	w.refused("wrong", `ConfigMap "nowhere" has no namespace`, `ClusterRole "default/reader" has a namespace`,
		`Unknown "default/a" has a kind`, `ConfigMap "default/twice" is there twice`)
	if len(w.get("wrong").Status.Inventory) > 0 {
		t.Error("impossible objects are in the inventory")
	}
	m := w.get("wrong")
	m.Status.Inventory = []v1beta2.Object{
		{Version: "v1", Kind: "ConfigMap", Name: "nowhere"},
		{Group: "example.org", Version: "v1", Kind: "Unknown", Name: "a"},
		{Version: "v1", Kind: "ConfigMap", Namespace: "default"},
	}
	w.must(w.Status().Update(t.Context(), m))
	w.update("wrong", configMap("right"))
	w.reconcileOne("wrong")
	if m := w.get("wrong"); m.Status.State != v1beta2.Ready || len(m.Status.Inventory) != 1 {
		t.Errorf("status %+v of the corrected version", m.Status)
	}
	w.end("wrong")
}

// clusterMadeAnew wants the custom resource again in a cluster that has another identity.
func (w *world) clusterMadeAnew(t *testing.T) {
	t.Helper()
	w.install("anew", configMap("anew"))
	m := w.get("anew")
	m.Status.Cluster = "former"
	m.Status.CustomResourceCreated = true
	m.Status.Inventory = append(m.Status.Inventory, v1beta2.Object{Version: "v1", Kind: "ConfigMap", Namespace: "default", Name: "former"})
	w.must(w.Status().Update(t.Context(), m))
	w.reconcileOne("anew")
	if now := w.get("anew").Status; now.CustomResourceCreated || len(now.Inventory) != 1 || now.Cluster != w.cluster() {
		t.Errorf("status %+v, want that of a new cluster", now)
	}
	w.end("anew")
}

// anotherCluster wants nothing applied or removed in a cluster that the Kyma does not have.
func (w *world) anotherCluster(t *testing.T) {
	t.Helper()
	w.install("stays", configMap("stays"))
	w.setCluster("another")
	w.create("strange", configMap("strange"))
	w.refused("strange", "Kyma runtime-1 has cluster")
	w.disable("stays")
	if _, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key("stays")}); err == nil {
		t.Error("want the removal to wait")
	}
	if w.exists(&corev1.ConfigMap{}, "strange") || !w.exists(&corev1.ConfigMap{}, "stays") {
		t.Error("the operator has changed the cluster of another Kyma")
	}
	w.setCluster(w.cluster())
	w.untilGone("stays")
	w.end("strange")
}

// enabledAgain takes a disabled module back while a user's custom resource holds it.
func (w *world) enabledAgain(t *testing.T) {
	t.Helper()
	w.install("again", kedaDefinition(), deployment("again-manager", "again"))
	template := &v1beta2.ModuleTemplate{}
	w.must(w.Get(t.Context(), key("again-1"), template))
	template.Spec.Data = &resources(t, keda("default"))[0]
	w.must(w.Update(t.Context(), template))
	setSpec := func(since *metav1.Time) {
		m := w.get("again")
		m.Spec.Template.Generation = template.Generation
		m.Spec.DisabledSince = since
		w.must(w.Update(t.Context(), m))
	}
	setSpec(nil)
	w.reconcileOne("again")
	users := &unstructured.Unstructured{Object: keda("users")}
	w.must(w.Create(t.Context(), users))

	setSpec(new(metav1.Now()))
	for range 3 {
		w.reconcileOne("again")
	}
	if message, _ := w.message("again"); message != "waiting for the end of Keda default/users" {
		t.Errorf("message %q", message)
	}
	if w.exists(&unstructured.Unstructured{Object: keda("default")}, "default") {
		t.Error("the custom resource of the module is there")
	}
	setSpec(nil)
	w.reconcileOne("again")
	w.available("again-manager")
	w.reconcileOne("again")
	if status := w.get("again").Status; status.State != v1beta2.Ready {
		t.Errorf("status %+v of a module that was enabled again", status)
	}
	w.keda("default")

	setSpec(new(metav1.Now()))
	w.must(w.Delete(t.Context(), users))
	w.untilGone("again")
	if w.exists(&unstructured.Unstructured{Object: deployment("again-manager", "again")}, "again-manager") {
		t.Error("the manager is left")
	}
}

// stale shows an object that is gone already, as a cache may.
type stale struct {
	client.Client

	shown *v1beta2.Manifest
}

func (s stale) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if m, ok := object.(*v1beta2.Manifest); ok {
		s.shown.DeepCopyInto(m)
		return nil
	}
	return s.Client.Get(ctx, key, object, opts...)
}

// goneManifest wants no object of a Manifest that is gone: nothing would remove it.
func (w *world) goneManifest(t *testing.T) {
	t.Helper()
	for _, finalizers := range [][]string{nil, {v1beta2.ManifestFinalizer}} {
		w.create("gone", configMap("gone"))
		m := w.get("gone")
		shown := m.DeepCopy()
		m.Finalizers = nil
		w.must(w.Update(t.Context(), m))
		w.must(w.Delete(t.Context(), m))
		shown.Finalizers = finalizers
		clusters := w.reconciler.Clusters
		clusters.Client = stale{w.Client, shown}
		reconciler := &manifest.Reconciler{Clusters: clusters}
		result, err := reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key("gone")})
		if err != nil || result.RequeueAfter > time.Second {
			t.Errorf("result %v, error %v, want the visit to end", result, err)
		}
		if w.exists(&corev1.ConfigMap{}, "gone") {
			t.Error("an object was applied without an inventory")
		}
	}
}

// oneObjectOfTwo refuses the second module with the same object and other content, and names the
// first. When the first ends, the second gets the object.
func (w *world) oneObjectOfTwo(t *testing.T) {
	t.Helper()
	w.install("one", withData("both", map[string]any{"of": "one"}))
	w.create("two", withData("both", map[string]any{"of": "two"}))
	for range 3 {
		w.refused("two", "ConfigMap default/both belongs to module one")
		w.reconcileOne("one")
	}
	live := &corev1.ConfigMap{}
	if !w.exists(live, "both") || live.Data["of"] != "one" {
		t.Errorf("data %v, want that of the first module", live.Data)
	}
	w.end("one")
	w.reconcileOne("two")
	if !w.exists(live, "both") || live.Data["of"] != "two" || live.Annotations[skr.ModuleMark] != "two" {
		t.Errorf("data %v, annotations %v: want those of the second module", live.Data, live.Annotations)
	}
	w.end("two")
	if w.exists(live, "both") {
		t.Error("the object is left")
	}
}

// anotherWhileEnding deletes a Kyma with a kubeconfig that leads to another cluster. If another Kyma
// has that cluster, the kubeconfig is wrong, and the Manifest waits for the right one. Otherwise its
// cluster is gone. In both cases, nothing is deleted.
func (w *world) anotherWhileEnding(t *testing.T) {
	t.Helper()
	w.install("held", configMap("held"))
	m := w.get("held")
	m.Status.Cluster = "another"
	w.must(w.Status().Update(t.Context(), m))
	w.setCluster("another")
	setFinalizers := func(finalizers ...string) *v1beta2.Kyma {
		kyma := &v1beta2.Kyma{}
		w.must(w.Get(t.Context(), key("runtime-1"), kyma))
		kyma.Finalizers = finalizers
		w.must(w.Update(t.Context(), kyma))
		return kyma
	}
	w.must(w.Delete(t.Context(), setFinalizers("example.com/held")))
	other := &v1beta2.Kyma{Spec: v1beta2.KymaSpec{Channel: "regular"}}
	other.Namespace = "default"
	other.Name = "runtime-2"
	w.must(w.Create(t.Context(), other))
	other.Status.Cluster = w.cluster()
	w.must(w.Status().Update(t.Context(), other))

	w.disable("held")
	_, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key("held")})
	if err == nil || !strings.Contains(err.Error(), "Kyma runtime-1 has cluster") {
		t.Errorf("error %v, want the wrong kubeconfig", err)
	}
	w.must(w.Delete(t.Context(), other))
	w.untilGone("held")
	if !w.exists(&corev1.ConfigMap{}, "held") {
		t.Error("an object of another cluster was deleted")
	}

	w.must(w.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "held"}}))
	setFinalizers()
	w.must(w.Create(t.Context(), &v1beta2.Kyma{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-1"}, Spec: v1beta2.KymaSpec{Channel: "regular"},
	}))
	w.setCluster(w.cluster())
}

// setData gives the ModuleTemplate of a module a custom resource.
func (w *world) setData(name string, data map[string]any) {
	w.t.Helper()
	template := &v1beta2.ModuleTemplate{}
	w.must(w.Get(w.t.Context(), key(name+"-1"), template))
	template.Spec.Data = &resources(w.t, data)[0]
	w.must(w.Update(w.t.Context(), template))
	m := w.get(name)
	m.Spec.Template.Generation = template.Generation
	w.must(w.Update(w.t.Context(), m))
}

// oneCustomResourceOfTwo lets two modules start with one custom resource: the first creates it, and
// it is deleted with the last.
func (w *world) oneCustomResourceOfTwo(t *testing.T) {
	t.Helper()
	for _, name := range []string{"start", "again"} {
		w.create(name, configMap("of-"+name))
		w.setData(name, withData("common", map[string]any{"of": name}))
		w.reconcileOne(name)
	}
	live := &corev1.ConfigMap{}
	if !w.exists(live, "common") || live.Data["of"] != "start" || w.get("again").Status.State != v1beta2.Ready {
		t.Errorf("data %v, status %+v: want the custom resource of the first module", live.Data, w.get("again").Status)
	}
	w.end("start")
	if !w.exists(live, "common") {
		t.Error("the custom resource is gone with the first module")
	}
	w.end("again")
	if w.exists(live, "common") {
		t.Error("the custom resource is left")
	}
}

// formerVersion has an object in the inventory by a version that the cluster served once. The object
// is still that of the module, and ends with it.
func (w *world) formerVersion(t *testing.T) {
	t.Helper()
	age := func() {
		m := w.get("aged")
		for i := range m.Status.Inventory {
			m.Status.Inventory[i].Version = "v1beta1"
		}
		w.must(w.Status().Update(t.Context(), m))
	}
	w.install("aged", configMap("aged-1"), configMap("aged-2"))
	age()
	w.update("aged", configMap("aged-2"))
	w.reconcileOne("aged")
	if w.exists(&unstructured.Unstructured{Object: configMap("aged-1")}, "aged-1") {
		t.Error("an object of the former version is left after an upgrade")
	}
	age()
	w.end("aged")
	if w.exists(&unstructured.Unstructured{Object: configMap("aged-2")}, "aged-2") {
		t.Error("an object of the former version is left")
	}
}

// madeAnewWhileEnding wants the Manifest of a disabled module to end when its cluster is another one,
// and nothing to be deleted there.
func (w *world) madeAnewWhileEnding(t *testing.T) {
	t.Helper()
	w.install("leaving", configMap("leaving"))
	m := w.get("leaving")
	m.Status.Cluster = "former"
	w.must(w.Status().Update(t.Context(), m))
	m.Spec.DisabledSince = new(metav1.Now())
	w.must(w.Update(t.Context(), m))
	w.untilGone("leaving")
	if !w.exists(&corev1.ConfigMap{}, "leaving") {
		t.Error("an object of another cluster was deleted")
	}
	w.must(w.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "leaving"}}))
}

// trueStates are those that a Job and a custom resource report.
func (w *world) trueStates(t *testing.T) {
	t.Helper()
	job := map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"namespace": "default", "name": "migration"},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
			"restartPolicy": "Never", "containers": []any{map[string]any{"name": "a", "image": "a:v1"}},
		}}},
	}
	w.install("states", kedaDefinition(), job, keda("stateful"))
	live := &batchv1.Job{}
	w.must(w.Get(t.Context(), key("migration"), live))
	now := metav1.Now()
	live.Status = batchv1.JobStatus{StartTime: &now, Failed: 1, Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded", LastTransitionTime: now},
		{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded", LastTransitionTime: now},
	}}
	w.must(w.Status().Update(t.Context(), live))
	wantState := func(want v1beta2.State, text string) {
		t.Helper()
		w.reconcileOne("states")
		if status := w.get("states").Status; status.State != want || !strings.Contains(status.Message, text) {
			t.Errorf("status %+v, want %s and %q", status, want, text)
		}
	}
	wantState(v1beta2.Error, "Job migration")
	w.must(w.Delete(t.Context(), live, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	w.update("states", kedaDefinition(), keda("stateful"))
	for state, want := range map[string]v1beta2.State{
		"Error": v1beta2.Error, "Processing": v1beta2.Processing, "Deleting": v1beta2.Processing, "Ready": v1beta2.Ready,
		"Warning": v1beta2.Ready,
	} {
		cr := w.keda("stateful")
		cr.Object["status"] = map[string]any{"state": state}
		w.must(w.Update(t.Context(), cr))
		text := ""
		if want != v1beta2.Ready {
			text = "Keda stateful reports the state " + state
		}
		wantState(want, text)
	}
	w.end("states")
}

// sharedDefinition keeps the manager of a module while its kind has objects, also if the definition
// stays for another module. The objects of that one are not awaited.
func (w *world) sharedDefinition(t *testing.T) {
	t.Helper()
	w.install("first", kedaDefinition(), deployment("first-manager", "first"))
	w.install("second", kedaDefinition(), keda("of-second"))
	users := &unstructured.Unstructured{Object: keda("users")}
	w.must(w.Create(t.Context(), users))
	w.disable("first")
	for range 3 {
		w.reconcileOne("first")
	}
	if message, _ := w.message("first"); message != "waiting for the end of Keda default/users" {
		t.Errorf("message %q, want the object of the user", message)
	}
	if !w.exists(&unstructured.Unstructured{Object: deployment("first-manager", "first")}, "first-manager") {
		t.Error("the manager is gone before the object of the user")
	}
	w.must(w.Delete(t.Context(), users))
	w.untilGone("first")
	w.keda("of-second")
	w.end("second")
}

// dependentModule has a custom resource in the kind of another module. When both end, the manager
// stays until it has taken the finalizer off that custom resource.
func (w *world) dependentModule(t *testing.T) {
	t.Helper()
	w.install("provider", kedaDefinition(), deployment("provider-manager", "provider"))
	w.install("user", keda("dependent"))
	cr := w.keda("dependent")
	cr.SetFinalizers([]string{"example.com/keda"})
	w.must(w.Update(t.Context(), cr))
	w.disable("provider")
	w.disable("user")
	for range 3 {
		w.reconcileOne("user")
		w.reconcileOne("provider")
	}
	if message, _ := w.message("provider"); message != "waiting for the end of Keda default/dependent" {
		t.Errorf("message %q, want the custom resource of the other module", message)
	}
	if !w.exists(&unstructured.Unstructured{Object: deployment("provider-manager", "provider")}, "provider-manager") {
		t.Error("the manager is gone before the custom resource")
	}
	cr = w.keda("dependent")
	cr.SetFinalizers(nil)
	w.must(w.Update(t.Context(), cr))
	w.untilGone("user")
	w.untilGone("provider")
}

// unreadableObject has a kind that nothing can read or delete. It holds neither a corrected version
// nor the removal.
func (w *world) unreadableObject(t *testing.T) {
	t.Helper()
	review := map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": map[string]any{"name": "may-i"},
		"spec": map[string]any{},
	}
	w.create("review", review)
	w.refused("review", "SelfSubjectAccessReview")
	w.update("review", configMap("instead"))
	w.reconcileOne("review")
	w.update("review", review)
	w.refused("review", "SelfSubjectAccessReview")
	w.end("review")
}

// guestOfNamespace keeps a Namespace with a Secret of a user, and names the Secret there. A lock of
// the manager and the objects of the module do not keep it.
func (w *world) guestOfNamespace(t *testing.T) {
	t.Helper()
	inside := map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "module-room", "name": "inside"},
	}
	empty := maps.Clone(inside)
	empty["metadata"] = map[string]any{"namespace": "module-empty", "name": "inside"}
	w.install("room", namespace("module-room"), namespace("module-empty"), inside, empty)
	room := client.ObjectKey{Namespace: "module-room", Name: "mine"}
	w.must(w.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: room.Namespace, Name: room.Name}}))

	// The control plane keeps all Namespaces, and this cluster is also the control plane.
	there := lab.Must(w.reconciler.Connect(t.Context(), key("room"), key("runtime-1")))
	entry := func(name string) *unstructured.Unstructured {
		object, _ := namespace(name).(map[string]any)
		return &unstructured.Unstructured{Object: object}
	}
	w.end("room")
	for _, name := range []string{"module-room", "module-empty"} {
		gone, err := there.DeleteNamespace(t.Context(), entry(name))
		w.must(err)
		live := &corev1.Namespace{}
		w.must(w.Get(t.Context(), client.ObjectKey{Name: name}, live))
		isKept := live.DeletionTimestamp == nil
		if want := name == "module-room"; isKept != want || gone != want {
			t.Errorf("Namespace %s: kept %t, gone for the module %t", name, isKept, gone)
		}
		if isKept && (live.Annotations[skr.KeptFor] != "Secret mine" || live.Labels[skr.ManagedByLabel] != "") {
			t.Errorf("metadata %+v of the Namespace, want the Secret and no label", live.ObjectMeta)
		}
	}
	w.must(w.Get(t.Context(), room, &corev1.Secret{}))
}
