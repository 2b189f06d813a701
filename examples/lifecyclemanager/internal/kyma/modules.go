package kyma

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
)

// syncManifests makes one Manifest for each module that the Kyma enables, and deletes the others.
// It returns the status of all, including those that end.
func (r *Reconciler) syncManifests(
	ctx context.Context, kyma *v1beta2.Kyma, templates map[string]*v1beta2.ModuleTemplate,
) (modules []v1beta2.ModuleStatus, err error) {
	for _, module := range kyma.Spec.Modules {
		status, err := r.syncManifest(ctx, kyma, module, templates)
		if err != nil {
			return nil, err
		}
		modules = append(modules, status)
	}
	disabled, err := r.deleteManifests(ctx, kyma, func(m *v1beta2.Manifest) bool { return !enabled(kyma, m) })
	return append(modules, disabled...), err
}

func enabled(kyma *v1beta2.Kyma, manifest *v1beta2.Manifest) bool {
	return slices.ContainsFunc(kyma.Spec.Modules, func(m v1beta2.Module) bool { return m.Name == manifest.Spec.Module })
}

// syncManifest makes or updates the Manifest of a module. A module that the catalog no longer has
// stays as it is, and so does one with an older version in its channel: modules cannot go back.
func (r *Reconciler) syncManifest(
	ctx context.Context, kyma *v1beta2.Kyma, module v1beta2.Module, templates map[string]*v1beta2.ModuleTemplate,
) (v1beta2.ModuleStatus, error) {
	module.Channel = cmp.Or(module.Channel, kyma.Spec.Channel)
	manifest := &v1beta2.Manifest{}
	manifest.Namespace, manifest.Name = kyma.Namespace, kyma.Name+"-"+string(module.Name)
	err := r.Direct.Get(ctx, client.ObjectKeyFromObject(manifest), manifest)
	if client.IgnoreNotFound(err) != nil {
		return v1beta2.ModuleStatus{}, err
	}
	installed, template := manifest.Spec.Version, find(templates, module)
	if problem := refuse(module, template, installed); problem != "" {
		return v1beta2.ModuleStatus{Name: module.Name, Version: installed, State: v1beta2.Error, Message: problem}, nil
	}
	_, err = controllerutil.CreateOrPatch(ctx, r.Client, manifest, func() error {
		manifest.Labels = map[string]string{v1beta2.KymaLabel: kyma.Name}
		manifest.Spec = specOf(template)
		return controllerutil.SetControllerReference(kyma, manifest, r.Client.Scheme())
	})
	return moduleStatus(manifest), err
}

// find returns the version that a module names, or the newest of its channel, nil if there is none.
func find(templates map[string]*v1beta2.ModuleTemplate, module v1beta2.Module) *v1beta2.ModuleTemplate {
	if module.Version != "" {
		return templates[string(module.Name)+"-"+string(module.Version)]
	}
	var newest *v1beta2.ModuleTemplate
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		template := templates[name]
		if template.Spec.Module != module.Name || !slices.Contains(template.Spec.Channels, module.Channel) {
			continue
		}
		if newest == nil || !older(template.Spec.Version, newest.Spec.Version) {
			newest = template
		}
	}
	return newest
}

// refuse returns why a version cannot be installed over another, empty if it can.
func refuse(module v1beta2.Module, template *v1beta2.ModuleTemplate, installed v1beta2.Version) string {
	switch {
	case template == nil && module.Version != "":
		return "the catalog has no such module in version " + string(module.Version)
	case template == nil:
		return "the catalog has no such module in channel " + string(module.Channel)
	case len(template.Spec.Resources) == 0:
		return "ModuleTemplate " + template.Name + " has no resources"
	case older(template.Spec.Version, installed):
		return fmt.Sprintf("version %s is older than the installed %s: disable the module first",
			template.Spec.Version, installed)
	default:
		return ""
	}
}

// older compares semantic versions, or dotted numbers. Other texts have no order.
func older(version, installed v1beta2.Version) bool {
	a, errA := parse(version)
	b, errB := parse(installed)
	return errA == nil && errB == nil && a.LessThan(b)
}

func parse(version v1beta2.Version) (*utilversion.Version, error) {
	if semantic, err := utilversion.ParseSemantic(string(version)); err == nil {
		return semantic, nil
	}
	return utilversion.ParseGeneric(string(version) + ".0")
}

func specOf(template *v1beta2.ModuleTemplate) v1beta2.ManifestSpec {
	return v1beta2.ManifestSpec{
		Module: template.Spec.Module, Version: template.Spec.Version, Template: v1beta2.TemplateRef{
			Name: template.Name, UID: template.UID, Generation: template.Generation,
		},
	}
}

// deleteManifests deletes the Manifests of a Kyma that meet a condition, and returns the status of
// those that are not gone. A cache might not show the newest Manifest, which would be orphaned.
func (r *Reconciler) deleteManifests(
	ctx context.Context, kyma *v1beta2.Kyma, condition func(*v1beta2.Manifest) bool,
) (ending []v1beta2.ModuleStatus, err error) {
	manifests, err := v1beta2.ManifestsOf(ctx, r.Direct, client.ObjectKeyFromObject(kyma))
	if err != nil {
		return nil, err
	}
	for i := range manifests {
		manifest := &manifests[i]
		if !condition(manifest) {
			continue
		}
		if err := client.IgnoreNotFound(r.Client.Delete(ctx, manifest)); err != nil {
			return nil, err
		}
		ending = append(ending, v1beta2.ModuleStatus{
			Name: manifest.Spec.Module, Version: manifest.Spec.Version,
			State: v1beta2.Deleting, Message: manifest.Status.Message,
		})
	}
	return ending, nil
}
