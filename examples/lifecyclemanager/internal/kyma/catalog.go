package kyma

import (
	"context"
	"errors"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// visibleTemplates returns the ModuleTemplates of the control plane that a runtime may see, by
// name.
func (r *Reconciler) visibleTemplates(
	ctx context.Context, kyma *v1beta2.Kyma,
) (map[string]*v1beta2.ModuleTemplate, error) {
	list := &v1beta2.ModuleTemplateList{}
	if err := r.Client.List(ctx, list, client.InNamespace(kyma.Namespace)); err != nil {
		return nil, err
	}

	templates := make(map[string]*v1beta2.ModuleTemplate)
	for i := range list.Items {
		if mayShow(&list.Items[i], kyma) {
			templates[list.Items[i].Name] = &list.Items[i]
		}
	}
	return templates, nil
}

// mayShow reports whether a Kyma has every label that hides a ModuleTemplate.
func mayShow(template *v1beta2.ModuleTemplate, kyma *v1beta2.Kyma) bool {
	return template.DeletionTimestamp.IsZero() &&
		!slices.ContainsFunc([]string{v1beta2.InternalLabel, v1beta2.BetaLabel}, func(label string) bool {
			return template.Labels[label] == "true" && kyma.Labels[label] != "true"
		})
}

// syncCatalog makes the catalog of a runtime equal to templates, without their objects.
func syncCatalog(ctx context.Context, there *skr.Runtime, templates map[string]*v1beta2.ModuleTemplate) error {
	list := &v1beta2.ModuleTemplateList{}
	if err := there.List(ctx, list, client.InNamespace(skr.Namespace)); err != nil {
		return err
	}

	missing := maps.Clone(templates)
	var errs []error
	for i := range list.Items {
		stored := &list.Items[i]
		template := templates[stored.Name]
		delete(missing, stored.Name)

		switch {
		case template == nil:
			errs = append(errs, client.IgnoreNotFound(there.Delete(ctx, stored)))
		case !equality.Semantic.DeepEqual(stored.Spec, entry(template)):
			stored.Spec = entry(template)
			errs = append(errs, there.Update(ctx, stored))
		}
	}

	for name, template := range missing {
		copied := &v1beta2.ModuleTemplate{Spec: entry(template)}
		copied.Namespace = skr.Namespace
		copied.Name = name
		errs = append(errs, there.Create(ctx, copied))
	}

	return errors.Join(errs...)
}

// entry returns module, version and channels.
func entry(template *v1beta2.ModuleTemplate) v1beta2.ModuleTemplateSpec {
	return v1beta2.ModuleTemplateSpec{
		Module: template.Spec.Module, Version: template.Spec.Version, Channels: template.Spec.Channels,
	}
}
