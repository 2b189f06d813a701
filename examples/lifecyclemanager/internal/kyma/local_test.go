package kyma_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// TestLocal has the control plane as its own runtime. Its definitions and Namespaces, and the Kyma
// of another runtime, must stay as they are, also when the Kyma is deleted.
func TestLocal(t *testing.T) {
	w := newWorld(t)
	w.skr = w.plane
	w.must(w.plane.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-1"}}))
	w.connect()
	w.operator = w.newOperator(nil)
	definitions := w.definitions()
	other := &v1beta2.Kyma{Spec: v1beta2.KymaSpec{Channel: "regular"}}
	other.Namespace = "default"
	other.Name = "other"
	w.must(w.plane.Client.Create(t.Context(), other))
	t.Cleanup(func() { w.must(w.plane.Client.Delete(context.WithoutCancel(t.Context()), other)) })

	made := template(t, "1", "text")
	raw := []byte(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "of-module"}}`)
	made.Spec.Resources = append(made.Spec.Resources, v1beta2.Resource{RawExtension: runtime.RawExtension{Raw: raw}})
	w.must(w.plane.Client.Create(t.Context(), made))
	w.register(v1beta2.Module{Name: moduleName})
	w.want("text")
	if have := w.catalog(); !slices.Equal(have, []string{made.Name}) || w.user().Status.State != v1beta2.Ready {
		t.Errorf("catalog %q, status %+v", have, w.user().Status)
	}

	w.setModules()
	w.want()
	if kept := w.namespace("of-module"); kept == nil || kept.DeletionTimestamp != nil {
		t.Errorf("the Namespace %v, want it kept in the control plane", kept)
	}
	w.setModules(v1beta2.Module{Name: moduleName})
	w.want("text")

	w.must(w.plane.Client.Delete(t.Context(), w.kyma()))
	w.want()
	err := w.plane.Client.Get(t.Context(), key("runtime-1"), &v1beta2.Kyma{})
	if have := w.catalog(); !apierrors.IsNotFound(err) || len(have) > 0 {
		t.Errorf("error %v of the Kyma, catalog %q: want both gone", err, have)
	}
	if now := w.definitions(); !maps.Equal(now, definitions) {
		t.Errorf("definitions %v, there were %v", now, definitions)
	}
	w.must(w.plane.Client.Get(t.Context(), key("other"), other))
	if own := w.namespace(skr.Namespace); other.DeletionTimestamp != nil || own == nil || own.DeletionTimestamp != nil {
		t.Errorf("the other Kyma %+v, the Namespace %v: want both kept", other.ObjectMeta, own)
	}
	w.must(w.plane.Client.Get(t.Context(), key(made.Name), made))
}

// definitions returns the UIDs of those in the control plane, by name.
func (w *world) definitions() map[string]types.UID {
	w.t.Helper()
	list := &apiextensionsv1.CustomResourceDefinitionList{}
	all := make(map[string]types.UID)
	w.must(w.plane.Client.List(w.t.Context(), list))
	for i := range list.Items {
		all[list.Items[i].Name] = list.Items[i].UID
	}
	return all
}
