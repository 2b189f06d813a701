package kyma_test

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/kyma"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

func TestKyma(t *testing.T) {
	w := newWorld(t)
	t.Run("validation", func(t *testing.T) { w.validation(t) })
	w.must(w.plane.Client.Create(t.Context(), template(t, "1", "text")))
	w.register()
	w.must(w.settle())
	t.Run("catalog", func(t *testing.T) { w.testCatalog(t) })
	t.Run("two users", func(t *testing.T) { w.testTwoUsers(t) })
	t.Run("status", func(t *testing.T) { w.testStatus(t) })
	t.Run("downgrade", func(t *testing.T) { w.testDowngrade(t) })
	t.Run("user deletes what the operator needs", func(t *testing.T) { w.testRepair(t) })
}

// validation is that of the API server, by the definitions.
func (w *world) validation(t *testing.T) {
	t.Helper()
	for name, change := range map[string]func(*v1beta2.ModuleTemplate){
		"must be <module>-<channel>":   func(m *v1beta2.ModuleTemplate) { m.Name = "other" },
		"spec.version":                 func(m *v1beta2.ModuleTemplate) { m.Spec.Version = "" },
		"spec.resources":               func(m *v1beta2.ModuleTemplate) { m.Spec.Resources = nil },
		"spec.resources[0].apiVersion": func(m *v1beta2.ModuleTemplate) { m.Spec.Resources[0].Raw = []byte(`{"kind": "ConfigMap"}`) },
	} {
		made := template(t, "1", "text")
		change(made)
		if err := w.plane.Client.Create(t.Context(), made); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one about %s", err, name)
		}
	}
	twice := &v1beta2.Kyma{Spec: v1beta2.KymaSpec{Channel: "regular", Modules: []v1beta2.Module{{Name: "a"}, {Name: "a"}}}}
	twice.Namespace, twice.Name = "default", "twice"
	if err := w.plane.Client.Create(t.Context(), twice); !apierrors.IsInvalid(err) {
		t.Errorf("a module twice: %v, want it refused", err)
	}
}

func (w *world) testCatalog(t *testing.T) {
	t.Helper()
	if have := w.catalog(); !slices.Equal(have, []string{"greeter-regular"}) {
		t.Errorf("catalog %q", have)
	}
	hidden := template(t, "1", "text")
	hidden.Name, hidden.Spec.Module, hidden.Labels = "secret-regular", "secret", map[string]string{v1beta2.InternalLabel: "true"}
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

// testTwoUsers applies one module each. Neither may lose the other's.
func (w *world) testTwoUsers(t *testing.T) {
	t.Helper()
	for _, user := range []string{"greeter", "missing"} {
		applied := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma",
			"metadata": map[string]any{"namespace": skr.Namespace, "name": kyma.RemoteName},
			"spec":     map[string]any{"modules": []any{map[string]any{"name": user}}},
		}}
		w.must(w.skr.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(user)))
	}
	w.must(w.settle())
	w.want("text")
	if modules := w.kyma().Spec.Modules; len(modules) != 2 {
		t.Errorf("the control plane has the modules %v, want both", modules)
	}
}

// testStatus is in step in both clusters.
func (w *world) testStatus(t *testing.T) {
	t.Helper()
	want := []v1beta2.ModuleStatus{
		{Name: "greeter", Version: "1", State: v1beta2.Ready},
		{Name: "missing", State: v1beta2.Error, Message: "the catalog has no such module in channel regular"},
	}
	for _, k := range []*v1beta2.Kyma{w.kyma(), w.user()} {
		if k.Status.State != v1beta2.Error || !slices.Equal(k.Status.Modules, want) {
			t.Errorf("status %+v, want %+v", k.Status, want)
		}
	}
	w.setModules(v1beta2.Module{Name: "greeter"})
	w.must(w.settle())
	if state := w.user().Status.State; state != v1beta2.Ready {
		t.Errorf("state %s, want %s", state, v1beta2.Ready)
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
	w.setModules(v1beta2.Module{Name: "greeter", Channel: "fast"})
	w.must(w.settle())
	if status := w.user().Status.Modules[0]; status.Version != "1.10" || status.State != v1beta2.Error {
		t.Errorf("status %+v in a channel without the module, want the installed version", status)
	}
	w.want("text")
	w.setModules(v1beta2.Module{Name: "greeter"})
	w.setTemplate("1.10", "text")
	w.must(w.settle())
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
	w.must(w.skr.Client.Delete(t.Context(), definition))
	for range 20 {
		if w.settle() == nil && len(w.catalog()) == 1 {
			return
		}
	}
	t.Error("the catalog does not come back")
}
