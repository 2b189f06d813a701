package kyma_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/kyma"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

func TestKyma(t *testing.T) {
	w := newWorld(t)
	t.Run("validation", func(t *testing.T) { w.validation(t) })
	w.register()
	sample := []v1beta2.Module{{Name: moduleName}}
	for _, test := range []struct {
		name    string
		test    func(*testing.T)
		modules []v1beta2.Module
	}{
		{"catalog", w.testCatalog, nil},
		{"resend", w.testResend, nil},
		{"two users", w.testTwoUsers, nil},
		{"status", w.testStatus, append(sample, v1beta2.Module{Name: "missing"})},
		{"ready", w.testReady, sample},
		{"edit in the control plane", w.testEditUndone, sample},
		{"opt-out", w.testSkip, sample},
		{"downgrade", w.testDowngrade, sample},
		{"versions", w.testVersions, sample},
		{"long texts", w.testLongTexts, sample},
		{"user deletes what the operator needs", w.testRepair, sample},
		{"namespaces", w.testNamespaces, sample},
		{"one cluster of two Kymas", w.testOneCluster, sample},
		{"a cluster made anew", w.testMadeAnew, sample},
		{"disabled and enabled again", w.testEnabledAgain, sample},
		{"a version with the name of a module", w.testSimilarNames, nil},
		{"a used template", w.testUsedTemplate, sample},
		{"a template that names another module", w.testRenamedModule, sample},
		{"a Manifest with a former name", w.testFormerName, sample},
		{"a template that changes while a module ends", w.testChangeWhileEnding, sample},
		{"a Kyma gives its cluster to another one", w.testNextKyma, sample},
		{"a deleted Kyma with another cluster", w.testDeletedElsewhere, sample},
		{"dead cluster", w.testDeadCluster, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := w.t
			defer func() { w.t = before }()
			w.t = t
			w.reset(test.modules...)
			test.test(t)
		})
	}
}

// validation is that of the API server, by the definitions.
func (w *world) validation(t *testing.T) {
	t.Helper()
	for name, change := range map[string]func(*v1beta2.ModuleTemplate){
		"must be <module>-<version>":   func(m *v1beta2.ModuleTemplate) { m.Name = "other" },
		"spec.version":                 func(m *v1beta2.ModuleTemplate) { m.Spec.Version = "" },
		"spec.customResourcePolicy":    func(m *v1beta2.ModuleTemplate) { m.Spec.CustomResourcePolicy = "Keep" },
		"spec.resources[0].apiVersion": func(m *v1beta2.ModuleTemplate) { m.Spec.Resources[0].Raw = []byte(`{"kind": "ConfigMap"}`) },
	} {
		made := template(t, "1", "text")
		change(made)
		if err := w.plane.Client.Create(t.Context(), made); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one about %s", err, name)
		}
	}
	twice := &v1beta2.Kyma{Spec: v1beta2.KymaSpec{Channel: "regular", Modules: []v1beta2.Module{{Name: "a"}, {Name: "a"}}}}
	twice.Namespace = "default"
	twice.Name = "twice"
	if err := w.plane.Client.Create(t.Context(), twice); !apierrors.IsInvalid(err) {
		t.Errorf("a module twice: %v, want it refused", err)
	}
	long := &v1beta2.Kyma{Spec: v1beta2.KymaSpec{Channel: "regular"}}
	long.Namespace = "default"
	for _, length := range []int{63, 64} {
		long.Name = strings.Repeat("k", length)
		long.ResourceVersion = ""
		err := w.plane.Client.Create(t.Context(), long)
		if apierrors.IsInvalid(err) != (length > 63) {
			t.Errorf("a name of %d characters: %v", length, err)
		}
		if err == nil {
			w.must(w.plane.Client.Delete(t.Context(), long))
		}
	}
	twice.Spec.Modules = []v1beta2.Module{{Name: "a", Channel: "regular", Version: "1"}}
	if err := w.plane.Client.Create(t.Context(), twice); !apierrors.IsInvalid(err) {
		t.Errorf("a module with channel and version: %v, want it refused", err)
	}
}

func (w *world) testCatalog(t *testing.T) {
	t.Helper()
	if have := w.catalog(); !slices.Equal(have, []string{moduleName + "-1"}) {
		t.Errorf("catalog %q", have)
	}
	entry := &v1beta2.ModuleTemplate{}
	w.must(w.skr.Client.Get(t.Context(), client.ObjectKey{Namespace: skr.Namespace, Name: moduleName + "-1"}, entry))
	if entry.Spec.Resources != nil || entry.Spec.Version != "1" || len(entry.Spec.Channels) != 1 {
		t.Errorf("catalog entry %+v, want it without objects", entry.Spec)
	}
	hidden := template(t, "1", "text")
	hidden.Name = "secret-1"
	hidden.Spec.Module = "secret"
	hidden.Labels = map[string]string{v1beta2.InternalLabel: "true"}
	w.must(w.plane.Client.Create(t.Context(), hidden))
	w.must(w.settle())
	if have := w.catalog(); len(have) != 1 {
		t.Errorf("catalog %q shows an internal module", have)
	}
	internal := w.kyma()
	internal.Labels = map[string]string{v1beta2.InternalLabel: "true"}
	w.must(w.plane.Client.Update(t.Context(), internal))
	w.must(w.settle())
	if have := w.catalog(); len(have) != 2 {
		t.Errorf("catalog %q hides a module from an internal runtime", have)
	}
	w.must(w.plane.Client.Delete(t.Context(), hidden))
	w.must(w.settle())
	if have := w.catalog(); len(have) != 1 {
		t.Errorf("catalog %q has a module that was deleted", have)
	}
}

func (w *world) catalog() (names []string) {
	w.t.Helper()
	list := &v1beta2.ModuleTemplateList{}
	w.must(w.skr.Client.List(w.t.Context(), list, client.InNamespace(skr.Namespace)))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// testResend wants a reconcile for an event, and none when it comes again after the reconcile.
func (w *world) testResend(t *testing.T) {
	t.Helper()
	queue := priorityqueue.New[ctrl.Request]("resend")
	defer queue.ShutDown()
	w.must(w.source.Start(t.Context(), queue))
	user := w.user()
	base, err := strconv.ParseInt(user.ResourceVersion, 10, 64)
	w.must(err)
	changed := core.Delivery{Runtime: "runtime-1", Event: core.WatchEvent{
		Watched: client.ObjectKeyFromObject(user), WatchedGVK: v1beta2.GroupVersion().WithKind("Kyma"), UID: user.UID, Base: base,
	}}
	user.Labels = nil
	w.must(w.skr.Client.Update(t.Context(), user))
	w.must(w.source.Handle(t.Context(), changed))
	if n := queue.Len(); n != 1 {
		t.Fatalf("%d requests for an event, want 1", n)
	}
	request, _ := queue.Get()
	queue.Done(request)
	w.must(w.settle())
	w.must(w.source.Handle(t.Context(), changed))
	if n := queue.Len(); n != 0 || w.user().Labels[kyma.WatchedByLabel] == "" {
		t.Errorf("%d requests for the resend of a write that was read, want none", n)
	}
}

// testTwoUsers applies one module each. Neither may lose the other's.
func (w *world) testTwoUsers(t *testing.T) {
	t.Helper()
	for _, user := range []string{moduleName, "missing"} {
		applied := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma",
			"metadata": map[string]any{"namespace": skr.Namespace, "name": kyma.RemoteName},
			"spec":     map[string]any{"modules": []any{map[string]any{"name": user}}},
		}}
		w.must(w.skr.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(user)))
	}
	w.want("text")
	if modules := w.kyma().Spec.Modules; len(modules) != 2 {
		t.Errorf("the control plane has the modules %v, want both", modules)
	}
}

// testStatus is in step in both clusters.
func (w *world) testStatus(t *testing.T) {
	t.Helper()
	want := []v1beta2.ModuleStatus{
		{Name: moduleName, Version: "1", State: v1beta2.Ready},
		{Name: "missing", State: v1beta2.Error, Message: "the catalog has no such module in channel regular"},
	}
	for _, k := range []*v1beta2.Kyma{w.kyma(), w.user()} {
		if k.Status.State != v1beta2.Error || !slices.Equal(k.Status.Modules, want) {
			t.Errorf("status %+v, want %+v", k.Status, want)
		}
	}
	w.setModules(v1beta2.Module{Name: moduleName})
	w.must(w.settle())
	if state := w.user().Status.State; state != v1beta2.Ready {
		t.Errorf("state %s, want %s", state, v1beta2.Ready)
	}
}

// testReady wants Ready to sum up modules and agent, as kstatus and kubectl wait read it.
func (w *world) testReady(t *testing.T) {
	t.Helper()
	for reason, want := range map[string]kstatus.Status{
		"CertificateFailed": kstatus.InProgressStatus, "Installed": kstatus.CurrentStatus,
	} {
		installed := metav1.ConditionFalse
		if want == kstatus.CurrentStatus {
			installed = metav1.ConditionTrue
		}
		w.setAgent(installed, reason)
		w.must(w.settle())
		for _, k := range []*v1beta2.Kyma{w.kyma(), w.user()} {
			w.wantStatus(t, k, want)
			if (k.Status.State == v1beta2.Ready) != (want == kstatus.CurrentStatus) {
				t.Errorf("state %s with the agent %s", k.Status.State, reason)
			}
		}
	}
	w.setAgent(metav1.ConditionTrue, "Installed")
	w.must(w.settle())
	for _, m := range w.listManifests() {
		w.wantStatus(t, &m, kstatus.CurrentStatus)
		m.Spec.Template.Generation++
		w.must(w.plane.Client.Update(t.Context(), &m))
		w.wantStatus(t, &m, kstatus.InProgressStatus)
	}
	w.must(w.settle())
	if conditions := w.kyma().Status.Conditions; len(conditions) != 2 || len(w.user().Status.Conditions) != 1 {
		t.Errorf("conditions %v, want those of both writers here, and Ready there", conditions)
	}
}

// wantStatus computes that of kstatus.
func (w *world) wantStatus(t *testing.T, object client.Object, want kstatus.Status) {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	w.must(err)
	gvk, err := apiutil.GVKForObject(object, w.scheme)
	w.must(err)
	computed := &unstructured.Unstructured{Object: content}
	computed.SetGroupVersionKind(gvk)
	have, err := kstatus.Compute(computed)
	w.must(err)
	if have.Status != want {
		t.Errorf("kstatus reads %s of %s, want %s", have.Status, gvk.Kind, want)
	}
	ready := ""
	conditions, _, _ := unstructured.NestedSlice(content, "status", "conditions")
	for _, c := range conditions {
		if condition, _ := c.(map[string]any); condition["type"] == v1beta2.ReadyCondition {
			ready, _ = condition["status"].(string)
		}
	}
	observed, _, _ := unstructured.NestedInt64(content, "status", "observedGeneration")
	if waited := ready == "True" && observed == object.GetGeneration(); waited != (want == kstatus.CurrentStatus) {
		t.Errorf("kubectl wait reads Ready %s, and kstatus %s", ready, want)
	}
}

// testEditUndone edits the Kyma of the control plane, which is not the place for it.
func (w *world) testEditUndone(t *testing.T) {
	t.Helper()
	w.setModules(v1beta2.Module{Name: moduleName, Version: "1"})
	w.must(w.settle())
	for len(w.edits.Events) > 0 {
		t.Errorf("Event %q of an edit in the runtime", <-w.edits.Events)
	}
	edited := w.kyma()
	edited.Spec.Channel = "fast"
	w.must(w.plane.Client.Update(t.Context(), edited))
	w.must(w.settle())
	select {
	case text := <-w.edits.Events:
		if !strings.Contains(text, "EditUndone") || !strings.Contains(text, "kyma-system/default") {
			t.Errorf("Event %q, want it to say where to edit", text)
		}
	default:
		t.Error("the edit was undone without an Event")
	}
	if channel := w.kyma().Spec.Channel; channel != "regular" {
		t.Errorf("channel %s, want that of the runtime", channel)
	}
}

// testSkip wants a Kyma with the label to stay as it is in both clusters, until the label is gone.
func (w *world) testSkip(t *testing.T) {
	t.Helper()
	for _, skip := range []string{"true", "false"} {
		labelled := w.kyma()
		labelled.Labels = map[string]string{v1beta2.SkipLabel: skip}
		w.must(w.plane.Client.Update(t.Context(), labelled))
		w.setModules()
		for range 5 { // With the label, Manifests are read again every minute: they do not settle.
			_, err := w.round()
			w.must(err)
		}
		if kept := len(w.kyma().Spec.Modules) == 1 && len(w.listManifests()) == 1; kept != (skip == "true") {
			t.Errorf("opt-out %s: the module is kept: %t", skip, kept)
		}
	}
}

// testVersions has two versions in the catalog, and a user pins one of them.
func (w *world) testVersions(t *testing.T) {
	t.Helper()
	w.setTemplate("1.10", "text")
	w.must(w.settle())
	w.must(w.plane.Client.Create(t.Context(), template(t, "1.11", "newer")))
	w.setModules(v1beta2.Module{Name: moduleName, Version: "1.10"})
	w.want("text")
	if have := w.catalog(); len(have) != 2 {
		t.Errorf("catalog %q, want both versions", have)
	}
	w.setModules(v1beta2.Module{Name: moduleName})
	w.want("newer")
	w.setModules(v1beta2.Module{Name: moduleName, Version: "1.10"})
	w.want("newer")
	if status := w.user().Status.Modules[0]; status.Version != "1.11" || !strings.Contains(status.Message, "older") {
		t.Errorf("status %+v of an older pin, want it refused", status)
	}
	w.setModules(v1beta2.Module{Name: moduleName})
	empty := template(t, "1.12")
	w.must(w.plane.Client.Create(t.Context(), empty))
	w.must(w.settle())
	if status := w.user().Status.Modules[0]; !strings.Contains(status.Message, "no resources") {
		t.Errorf("status %+v of a version without objects", status)
	}
	w.setTemplate("1.11", "newer")
	w.want("newer")
}

// testLongTexts lets the installer report a text of the runtime.
func (w *world) testLongTexts(t *testing.T) {
	t.Helper()
	stored := w.kyma()
	meta.SetStatusCondition(&stored.Status.Conditions, metav1.Condition{
		Type: v1beta2.WatcherInstalled, Status: metav1.ConditionFalse, Reason: "Failed", Message: strings.Repeat("x", 30_000),
	})
	w.must(w.plane.Client.Status().Update(t.Context(), stored))
	w.must(w.settle())
	if length := len(w.user().Status.Message); length == 0 || length > 1100 {
		t.Errorf("message of %d bytes, want it cut", length)
	}
}

// testDowngrade refuses an older version, and a channel without the module keeps the installed one.
func (w *world) testDowngrade(t *testing.T) {
	t.Helper()
	w.setTemplate("1.10", "text")
	w.must(w.settle())
	w.setTemplate("1.9", "other")
	w.must(w.settle())
	status := w.user().Status.Modules[0]
	if status.Version != "1.10" || status.State != v1beta2.Error || !strings.Contains(status.Message, "1.9") {
		t.Errorf("status %+v of a channel that went back to 1.9, want 1.10 kept and the refusal named", status)
	}
	w.want("text")
	w.setModules(v1beta2.Module{Name: moduleName, Channel: "fast"})
	w.must(w.settle())
	if status := w.user().Status.Modules[0]; status.Version != "1.10" || status.State != v1beta2.Error {
		t.Errorf("status %+v in a channel without the module, want the installed version", status)
	}
	w.want("text")
}

// testRepair deletes the Kyma of the user, and then a definition with all its objects.
func (w *world) testRepair(t *testing.T) {
	t.Helper()
	w.must(w.skr.Client.Delete(t.Context(), w.user()))
	w.must(w.settle())
	if modules := w.user().Spec.Modules; len(modules) != 1 {
		t.Errorf("the new Kyma has the modules %v, want those of the old", modules)
	}
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	definition.SetName("moduletemplates.operator.kyma-project.io")
	name := client.ObjectKeyFromObject(definition)
	w.must(w.skr.Client.Get(t.Context(), name, definition))
	former := definition.GetUID()
	w.must(w.skr.Client.Delete(t.Context(), definition))
	lab.Eventually(t, patience, "the catalog comes back", func() bool {
		w.must(w.settle())
		return w.skr.Client.Get(t.Context(), name, definition) == nil && definition.GetUID() != former && len(w.catalog()) == 1
	})
}

// testNamespaces has two modules with one Namespace, which the last of them deletes, and with that of the Kyma.
func (w *world) testNamespaces(t *testing.T) {
	t.Helper()
	alpha := v1beta2.Module{Name: "alpha"}
	beta := v1beta2.Module{Name: "beta"}
	for _, module := range []v1beta2.Module{alpha, beta} {
		made := template(t, "1")
		made.Name = string(module.Name) + "-1"
		made.Spec.Module = module.Name
		for _, name := range []string{"shared", skr.Namespace} {
			raw := fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": %q}}`, name)
			made.Spec.Resources = append(made.Spec.Resources, v1beta2.Resource{RawExtension: runtime.RawExtension{Raw: raw}})
		}
		w.must(w.plane.Client.Create(t.Context(), made))
	}
	own := w.namespace(skr.Namespace)
	if own == nil || own.Labels[skr.ManagedByLabel] != skr.FieldOwner {
		t.Fatalf("the Namespace of the Kyma is not that of the operator, so nothing would delete it: %v", own)
	}
	for _, left := range [][]v1beta2.Module{{alpha, beta}, {beta}, {}} {
		w.setModules(left...)
		w.must(w.settle())
		if shared := w.namespace("shared"); (shared != nil) != (len(left) > 0) {
			t.Errorf("with the modules %v, the shared Namespace is %v", left, shared)
		}
		if now := w.namespace(skr.Namespace); now == nil || now.UID != own.UID || now.DeletionTimestamp != nil {
			t.Fatalf("with the modules %v, the Namespace of the Kyma is %v", left, now)
		}
	}
}

// namespace returns a Namespace of the runtime, nil if there is none.
func (w *world) namespace(name string) *corev1.Namespace {
	w.t.Helper()
	found := &corev1.Namespace{}
	err := w.skr.Client.Get(w.t.Context(), client.ObjectKey{Name: name}, found)
	w.must(client.IgnoreNotFound(err))
	if err != nil {
		return nil
	}
	return found
}

// testDeadCluster deletes a Kyma with a kubeconfig, and no API server behind it.
func (w *world) testDeadCluster(t *testing.T) {
	t.Helper()
	secret := &corev1.Secret{}
	w.must(w.plane.Client.Get(t.Context(), key("runtime-1"), secret))
	secret.Data[skr.KubeconfigKey] = []byte(`{"users": [{"name": "u", "user": {"token": "t"}}],
		"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
		"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]}`)
	w.must(w.plane.Client.Update(t.Context(), secret))
	w.must(w.plane.Client.Delete(t.Context(), w.kyma()))
	w.kymas.GiveUp = time.Hour
	_, err := reconcileOne(t, w.kymas, "runtime-1")
	if status := w.kyma().Status; err == nil || status.State != v1beta2.Deleting || !strings.Contains(status.Message, "127.0.0.1:1") {
		t.Errorf("error %v, status %+v: want the cause", err, status)
	}
	w.kymas.GiveUp = time.Nanosecond
	_, err = reconcileOne(t, w.kymas, "runtime-1")
	w.must(err)
	if err := w.plane.Client.Get(t.Context(), key("runtime-1"), &v1beta2.Kyma{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Kyma of a dead cluster is held: %v", err)
	}
}

// testOneCluster has a second Kyma with the kubeconfig of the first. It changes nothing there, and
// nothing is removed with it.
func (w *world) testOneCluster(t *testing.T) {
	t.Helper()
	secret := &corev1.Secret{}
	w.must(w.plane.Client.Get(t.Context(), key("runtime-1"), secret))
	wrong := &v1beta2.Kyma{Spec: v1beta2.KymaSpec{Channel: "fast", Modules: []v1beta2.Module{{Name: "other"}}}}
	wrong.Namespace = "default"
	wrong.Name = "runtime-2"
	w.must(w.plane.Client.Create(t.Context(), wrong))
	w.must(w.plane.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-2"}, Data: secret.Data,
	}))
	before := w.user()
	_, err := reconcileOne(t, w.kymas, "runtime-2")
	w.must(w.plane.Client.Get(t.Context(), key("runtime-2"), wrong))
	if err == nil || wrong.Status.State != v1beta2.Error || !strings.Contains(wrong.Status.Message, "Kyma runtime-1 has") {
		t.Errorf("error %v, status %+v: want the Kyma that has the cluster", err, wrong.Status)
	}
	w.must(w.plane.Client.Delete(t.Context(), wrong))
	_, err = reconcileOne(t, w.kymas, "runtime-2")
	w.must(err)
	if err := w.plane.Client.Get(t.Context(), key("runtime-2"), wrong); !apierrors.IsNotFound(err) {
		t.Errorf("the wrong Kyma is held: %v", err)
	}
	if after := w.user(); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the Kyma of the runtime has changed: %+v", after)
	}
	w.want("text")

	// A Kyma that had its own cluster, and then gets the wrong kubeconfig, is not removed there.
	moved := &v1beta2.Kyma{Spec: v1beta2.KymaSpec{Channel: "regular"}}
	moved.Namespace = "default"
	moved.Name = "runtime-2"
	moved.Finalizers = []string{kyma.Finalizer}
	w.must(w.plane.Client.Create(t.Context(), moved))
	moved.Status.Cluster = "another"
	w.must(w.plane.Client.Status().Update(t.Context(), moved))
	w.must(w.plane.Client.Delete(t.Context(), moved))
	if _, err := reconcileOne(t, w.kymas, "runtime-2"); err == nil || !strings.Contains(err.Error(), "Kyma runtime-1 has") {
		t.Errorf("error %v, want the removal to name the wrong kubeconfig", err)
	}
	w.must(w.plane.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-2"}}))
	_, err = reconcileOne(t, w.kymas, "runtime-2")
	w.must(err)
	w.want("text")
}

// testMadeAnew wants the custom resource again in a cluster with another identity.
func (w *world) testMadeAnew(t *testing.T) {
	t.Helper()
	versioned := template(t, "2", "text")
	versioned.Spec.Data = &template(t, "2", "data").Spec.Resources[0]
	w.must(w.plane.Client.Create(t.Context(), versioned))
	w.want("text", "data")
	w.must(w.skr.Client.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace("default")))
	w.want("text") // A user's deletion of the custom resource counts.
	former := w.kyma()
	former.Status.Cluster = "former"
	w.must(w.plane.Client.Status().Update(t.Context(), former))
	for _, m := range w.listManifests() {
		m.Status.Cluster = "former"
		w.must(w.plane.Client.Status().Update(t.Context(), &m))
	}
	w.want("text", "data")
	if now := w.kyma().Status.Cluster; now == "former" || now != w.listManifests()[0].Status.Cluster {
		t.Errorf("cluster %q, want that of the runtime", now)
	}
}

// testEnabledAgain enables a module before its Manifest has ended.
func (w *world) testEnabledAgain(t *testing.T) {
	t.Helper()
	w.setModules()
	_, err := reconcileOne(t, w.kymas, "runtime-1")
	w.must(err)
	before := w.listManifests()
	if len(before) != 1 || before[0].Spec.DisabledSince == nil || before[0].DeletionTimestamp != nil {
		t.Fatalf("Manifests %+v, want one that is disabled", before)
	}
	if modules := w.kyma().Status.Modules; len(modules) != 1 || modules[0].State != v1beta2.Deleting {
		t.Errorf("modules %+v, want one that ends", modules)
	}
	w.setModules(v1beta2.Module{Name: moduleName})
	w.want("text")
	if after := w.listManifests(); len(after) != 1 || after[0].UID != before[0].UID || after[0].Status.State != v1beta2.Ready {
		t.Errorf("Manifests %+v, want the same one", after)
	}
}

// testSimilarNames pins a version whose ModuleTemplate has the name of another module.
func (w *world) testSimilarNames(t *testing.T) {
	t.Helper()
	similar := template(t, "1", "similar")
	similar.Name = moduleName + "-pro-1"
	similar.Spec.Module = moduleName + "-pro"
	w.must(w.plane.Client.Create(t.Context(), similar))
	w.setModules(v1beta2.Module{Name: moduleName, Version: "pro-1"})
	w.want()
	if status := w.user().Status.Modules[0]; !strings.Contains(status.Message, "no such module in version pro-1") {
		t.Errorf("status %+v", status)
	}
	w.setModules(v1beta2.Module{Name: moduleName + "-pro"})
	_, err := reconcileOne(t, w.kymas, "runtime-1")
	w.must(err)
	if made := w.listManifests(); len(made) != 1 || !slices.Contains(made[0].Finalizers, v1beta2.ManifestFinalizer) {
		t.Errorf("Manifests %+v, want one with its finalizer", made)
	}
	w.want("similar")
}

// testUsedTemplate deletes the ModuleTemplate of an installed module: the objects are still
// corrected, and the ModuleTemplate ends with its last use.
func (w *world) testUsedTemplate(t *testing.T) {
	t.Helper()
	w.must(w.plane.Client.Delete(t.Context(), template(t, "1")))
	w.must(w.settle())
	if status := w.user().Status.Modules[0]; status.State != v1beta2.Error || !strings.Contains(status.Message, "no such module") {
		t.Errorf("status %+v without the version in the catalog", status)
	}
	w.must(w.skr.Client.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace("default")))
	w.want("text")
	w.setModules()
	w.want()
	_, err := w.round()
	w.must(err)
	if err := w.plane.Client.Get(t.Context(), key(moduleName+"-1"), &v1beta2.ModuleTemplate{}); !apierrors.IsNotFound(err) {
		t.Errorf("the ModuleTemplate is held without a use: %v", err)
	}
}

// rounds reconciles everything several times. It is for states in which a reconcile is always requested soon.
func (w *world) rounds() {
	w.t.Helper()
	for range 5 {
		_, err := w.round()
		w.must(err)
	}
}

// testRenamedModule changes a ModuleTemplate so that it has the name of another module. The installed module stays,
// with an error, until its user disables it.
func (w *world) testRenamedModule(t *testing.T) {
	t.Helper()
	pro := template(t, "pro-2", "text")
	w.must(w.plane.Client.Create(t.Context(), pro))
	w.setModules(v1beta2.Module{Name: moduleName, Version: "pro-2"})
	w.want("text")
	before := w.listManifests()
	w.must(w.plane.Client.Get(t.Context(), client.ObjectKeyFromObject(pro), pro))
	pro.Spec.Module = moduleName + "-pro"
	pro.Spec.Version = "2"
	w.must(w.plane.Client.Update(t.Context(), pro))
	w.rounds()
	status := w.user().Status.Modules
	if len(status) != 1 || status[0].State != v1beta2.Error || !strings.Contains(status[0].Message, "no such module") {
		t.Errorf("status %+v, want the missing version", status)
	}
	if after := w.listManifests(); len(after) != 1 || after[0].UID != before[0].UID || after[0].Spec.Module != moduleName ||
		after[0].Spec.DisabledSince != nil {
		t.Errorf("Manifests %+v, want the one before", after)
	}
	w.setModules()
	w.want()
}

// testFormerName has a Manifest by a name that a former version of this operator gave it. It is still the one of its
// module: a second one would apply the same objects, in another version.
func (w *world) testFormerName(t *testing.T) {
	t.Helper()
	former := w.listManifests()[0]
	dropped := former.DeepCopy()
	dropped.Finalizers = nil
	w.must(w.plane.Client.Update(t.Context(), dropped))
	w.must(w.plane.Client.Delete(t.Context(), dropped))
	former.Name = "runtime-1-" + moduleName
	former.ResourceVersion = ""
	status := former.Status
	w.must(w.plane.Client.Create(t.Context(), &former))
	former.Status = status
	w.must(w.plane.Client.Status().Update(t.Context(), &former))

	w.setTemplate("2", "text", "new")
	w.rounds()
	all := w.listManifests()
	if len(all) != 1 || all[0].UID != former.UID || all[0].Spec.Version != "2" || all[0].Status.State != v1beta2.Ready {
		t.Errorf("Manifests %+v, want the former one in version 2", all)
	}
	w.setModules()
	w.rounds()
	w.want()
	if left := w.listManifests(); len(left) > 0 {
		t.Errorf("Manifests %+v are left", left)
	}
}

// testChangeWhileEnding changes the ModuleTemplate of a module that ends. What was installed is removed. A module that
// is enabled again gets the changed objects.
func (w *world) testChangeWhileEnding(t *testing.T) {
	t.Helper()
	for _, again := range []bool{true, false} {
		w.setModules()
		_, err := reconcileOne(t, w.kymas, "runtime-1")
		w.must(err)
		changed := &v1beta2.ModuleTemplate{}
		w.must(w.plane.Client.Get(t.Context(), key(moduleName+"-1"), changed))
		changed.Spec.Resources = template(t, "1", "changed").Spec.Resources
		if !again {
			changed.Spec.Resources = template(t, "1", "unseen").Spec.Resources
		}
		w.must(w.plane.Client.Update(t.Context(), changed))
		if again {
			w.setModules(v1beta2.Module{Name: moduleName})
			w.want("changed")
		} else {
			w.want()
		}
	}
}

// testNextKyma deletes the Kyma that has a cluster while another one waits for it.
func (w *world) testNextKyma(t *testing.T) {
	t.Helper()
	secret := &corev1.Secret{}
	w.must(w.plane.Client.Get(t.Context(), key("runtime-1"), secret))
	next := &v1beta2.Kyma{Spec: v1beta2.KymaSpec{Channel: "regular"}}
	next.Namespace = "default"
	next.Name = "runtime-2"
	w.must(w.plane.Client.Create(t.Context(), next))
	w.must(w.plane.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-2"}, Data: secret.Data,
	}))
	if _, err := reconcileOne(t, w.kymas, "runtime-2"); err == nil {
		t.Error("the second Kyma has the cluster")
	}
	w.must(w.plane.Client.Delete(t.Context(), w.kyma()))
	w.want()
	lab.Eventually(t, patience, "the second Kyma gets the cluster", func() bool {
		_, err := reconcileOne(t, w.kymas, "runtime-2")
		w.must(w.plane.Client.Get(t.Context(), key("runtime-2"), next))
		return err == nil && next.Status.Cluster != ""
	})
	w.must(w.plane.Client.Delete(t.Context(), next))
	lab.Eventually(t, patience, "the second Kyma ends", func() bool {
		_, err := reconcileOne(t, w.kymas, "runtime-2")
		w.must(w.manage())
		return err == nil && apierrors.IsNotFound(w.plane.Client.Get(t.Context(), key("runtime-2"), next))
	})
	w.must(w.plane.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-2"}}))
	w.register()
}

// testDeletedElsewhere deletes a Kyma while its kubeconfig leads to another cluster than before, with the Kyma and the
// modules of an operator in another control plane. Nothing is removed there.
func (w *world) testDeletedElsewhere(t *testing.T) {
	t.Helper()
	had := w.kyma()
	here := had.Status.Cluster
	setCluster := func(cluster types.UID) {
		k := w.kyma()
		k.Status.Cluster = cluster
		w.must(w.plane.Client.Status().Update(t.Context(), k))
		for _, m := range w.listManifests() {
			m.Status.Cluster = cluster
			w.must(w.plane.Client.Status().Update(t.Context(), &m))
		}
	}
	setCluster("former")
	w.must(w.plane.Client.Delete(t.Context(), had))
	w.want("text")
	if err := w.plane.Client.Get(t.Context(), key("runtime-1"), &v1beta2.Kyma{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Kyma is held: %v", err)
	}
	if modules := w.user().Spec.Modules; len(modules) != 1 {
		t.Errorf("modules %v of the Kyma in the other cluster", modules)
	}

	// The objects have the mark of this operator, so the next Kyma takes them over and removes them.
	w.register(v1beta2.Module{Name: moduleName})
	w.want("text")
	if now := w.kyma().Status.Cluster; now != here {
		t.Errorf("cluster %q, want %q", now, here)
	}
}
