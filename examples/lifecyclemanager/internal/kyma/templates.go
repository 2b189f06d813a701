package kyma

import (
	"context"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// Templates releases deleted ModuleTemplates that no Manifest uses. The objects of a used
// ModuleTemplate are still corrected, although the catalog no longer shows it.
type Templates struct {
	Client client.Client
	// Direct reads without a cache.
	Direct client.Reader
}

// Reconcile releases one ModuleTemplate.
func (t *Templates) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	template := &v1beta2.ModuleTemplate{}
	if err := t.Client.Get(ctx, request.NamespacedName, template); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if template.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(template, v1beta2.TemplateFinalizer) {
		return ctrl.Result{}, nil
	}

	manifests := &v1beta2.ManifestList{}
	if err := t.Direct.List(ctx, manifests, client.InNamespace(template.Namespace)); err != nil {
		return ctrl.Result{}, err
	}

	isUser := func(m v1beta2.Manifest) bool { return m.Spec.Template.UID == template.UID }
	if slices.ContainsFunc(manifests.Items, isUser) {
		return ctrl.Result{}, nil
	}

	return ctrl.Result{}, skr.Release(ctx, t.Client, template, v1beta2.TemplateFinalizer)
}
