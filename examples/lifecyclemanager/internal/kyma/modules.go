package kyma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
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

	disabled, err := r.disableManifests(ctx, kyma)
	return append(modules, disabled...), err
}

func enabled(kyma *v1beta2.Kyma, manifest *v1beta2.Manifest) bool {
	return slices.ContainsFunc(kyma.Spec.Modules, func(m v1beta2.Module) bool { return m.Name == manifest.Spec.Module })
}

// syncManifest makes or updates the Manifest of a module. A module that the catalog no longer has
// stays as it is, and so does one with an older version in its channel: modules cannot go back.
//
// A module that was disabled and is enabled again continues, unless its Manifest is already being
// deleted. A deleted Manifest is created again when it is gone.
func (r *Reconciler) syncManifest(
	ctx context.Context, kyma *v1beta2.Kyma, module v1beta2.Module, templates map[string]*v1beta2.ModuleTemplate,
) (v1beta2.ModuleStatus, error) {
	module.Channel = cmp.Or(module.Channel, kyma.Spec.Channel)
	manifest, err := r.manifestOf(ctx, kyma, module.Name)
	if err != nil {
		return v1beta2.ModuleStatus{}, err
	}

	installed := manifest.Spec.Version
	template := find(templates, module)
	problem := refuse(module, template, installed)

	refused := v1beta2.ModuleStatus{Name: module.Name, Version: installed, State: v1beta2.Error, Message: problem}
	if problem != "" {
		template, err = r.installedTemplate(ctx, manifest)
		if err != nil || template == nil {
			return refused, err
		}
	}
	if err := r.holdTemplate(ctx, template); err != nil {
		return v1beta2.ModuleStatus{}, err
	}

	_, err = controllerutil.CreateOrPatch(ctx, r.Client, manifest, func() error {
		if manifest.ResourceVersion == "" {
			controllerutil.AddFinalizer(manifest, v1beta2.ManifestFinalizer)
		}

		manifest.Labels = map[string]string{v1beta2.KymaLabel: kyma.Name}
		manifest.Spec = specOf(template)
		return controllerutil.SetControllerReference(kyma, manifest, r.Client.Scheme())
	})
	if problem != "" {
		return refused, err
	}

	return moduleStatus(manifest), err
}

// manifestOf returns the Manifest of a module, or a new one that is not stored yet.
//
// In early builds of this operator, the name of a Manifest had a hyphen between Kyma and module. A
// Manifest with such a name stays the one of its module. A second one would apply the same objects,
// perhaps in another version, and nothing would end the first.
func (r *Reconciler) manifestOf(
	ctx context.Context, kyma *v1beta2.Kyma, module v1beta2.ModuleName,
) (*v1beta2.Manifest, error) {
	manifest := &v1beta2.Manifest{}
	manifest.Namespace = kyma.Namespace
	manifest.Name = v1beta2.ManifestName(kyma.Name, module)

	err := r.Direct.Get(ctx, client.ObjectKeyFromObject(manifest), manifest)
	if !apierrors.IsNotFound(err) {
		return manifest, err
	}

	stored, err := v1beta2.ManifestsOf(ctx, r.Direct, client.ObjectKeyFromObject(kyma))
	if err != nil {
		return nil, err
	}

	for i := range stored {
		if stored[i].Spec.Module == module {
			return &stored[i], nil
		}
	}
	return manifest, nil
}

// installedTemplate returns the ModuleTemplate of a Manifest in its present generation, nil if
// there is none with objects. A module that cannot get another version is still corrected by its
// own.
//
// A changed ModuleTemplate may have become one of another module: version pro-1.0.0 of keda and
// version 1.0.0 of keda-pro have templates of one name.
func (r *Reconciler) installedTemplate(
	ctx context.Context, manifest *v1beta2.Manifest,
) (*v1beta2.ModuleTemplate, error) {
	ref := manifest.Spec.Template
	if ref.Name == "" {
		return nil, nil
	}

	template := &v1beta2.ModuleTemplate{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: manifest.Namespace, Name: ref.Name}, template)
	isOther := template.UID != ref.UID || template.Spec.Module != manifest.Spec.Module
	if err != nil || isOther || len(template.Spec.Resources) == 0 {
		return nil, client.IgnoreNotFound(err)
	}
	return template, nil
}

// holdTemplate keeps a ModuleTemplate for as long as a Manifest uses it. A ModuleTemplate that is
// being deleted accepts no new finalizer, but already has this one.
func (r *Reconciler) holdTemplate(ctx context.Context, template *v1beta2.ModuleTemplate) error {
	if !template.DeletionTimestamp.IsZero() {
		return nil
	}

	err := skr.Hold(ctx, r.Client, template.DeepCopy(), v1beta2.TemplateFinalizer)
	if errors.Is(err, skr.ErrEnded) {
		return nil // Its deletion starts the next reconcile.
	}
	return err
}

// find returns the version that a module names, or the newest of its channel, nil if there is none.
func find(templates map[string]*v1beta2.ModuleTemplate, module v1beta2.Module) *v1beta2.ModuleTemplate {
	if module.Version != "" {
		// Version pro-1 of keda and version 1 of keda-pro have templates of one name.
		template := templates[string(module.Name)+"-"+string(module.Version)]
		if template == nil || template.Spec.Module != module.Name {
			return nil
		}
		return template
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
	semantic, err := utilversion.ParseSemantic(string(version))
	if err != nil {
		return utilversion.ParseGeneric(string(version) + ".0")
	}
	return semantic, nil
}

func specOf(template *v1beta2.ModuleTemplate) v1beta2.ManifestSpec {
	return v1beta2.ManifestSpec{
		Module: template.Spec.Module, Version: template.Spec.Version, Template: v1beta2.TemplateRef{
			Name: template.Name, UID: template.UID, Generation: template.Generation,
		},
	}
}

// disableManifests notes in the Manifests of modules that are not enabled that they end, and
// returns their status. A cache might not show the newest Manifest, which would be orphaned.
func (r *Reconciler) disableManifests(
	ctx context.Context, kyma *v1beta2.Kyma,
) (ending []v1beta2.ModuleStatus, err error) {
	manifests, err := v1beta2.ManifestsOf(ctx, r.Direct, client.ObjectKeyFromObject(kyma))
	if err != nil {
		return nil, err
	}

	for i := range manifests {
		manifest := &manifests[i]
		if enabled(kyma, manifest) {
			continue
		}

		if manifest.Spec.DisabledSince == nil && manifest.DeletionTimestamp.IsZero() {
			before := manifest.DeepCopy()
			manifest.Spec.DisabledSince = new(metav1.Now())

			err := r.Client.Patch(ctx, manifest, skr.After(before))
			if client.IgnoreNotFound(err) != nil {
				return nil, err
			}
		}

		ending = append(ending, endingStatus(manifest))
	}
	return ending, nil
}

// deleteManifests deletes all Manifests of a Kyma, and returns the status of those that are not
// gone.
func (r *Reconciler) deleteManifests(
	ctx context.Context, kyma *v1beta2.Kyma,
) (ending []v1beta2.ModuleStatus, err error) {
	manifests, err := v1beta2.ManifestsOf(ctx, r.Direct, client.ObjectKeyFromObject(kyma))
	if err != nil {
		return nil, err
	}

	for i := range manifests {
		if err := client.IgnoreNotFound(r.Client.Delete(ctx, &manifests[i])); err != nil {
			return nil, err
		}
		ending = append(ending, endingStatus(&manifests[i]))
	}
	return ending, nil
}

func endingStatus(manifest *v1beta2.Manifest) v1beta2.ModuleStatus {
	return v1beta2.ModuleStatus{
		Name: manifest.Spec.Module, Version: manifest.Spec.Version,
		State: v1beta2.Deleting, Message: manifest.Status.Message,
	}
}

// moduleStatus reports a Manifest. Its status counts if it is about its spec.
func moduleStatus(manifest *v1beta2.Manifest) v1beta2.ModuleStatus {
	status := v1beta2.ModuleStatus{
		Name: manifest.Spec.Module, Version: manifest.Spec.Version,
		State: manifest.Status.State, Message: manifest.Status.Message,
	}
	switch {
	case !manifest.DeletionTimestamp.IsZero():
		status.State = v1beta2.Deleting
	case status.State == v1beta2.Ready && manifest.Status.ObservedGeneration != manifest.Generation, status.State == "":
		status.State = v1beta2.Processing
	}
	return status
}

// statusOf sums up the modules and the agent. The conditions stay.
func statusOf(kyma *v1beta2.Kyma, modules []v1beta2.ModuleStatus) v1beta2.KymaStatus {
	status := v1beta2.KymaStatus{
		State: v1beta2.Ready, Modules: modules, Conditions: kyma.Status.Conditions, Cluster: kyma.Status.Cluster,
	}
	watcher := meta.FindStatusCondition(kyma.Status.Conditions, v1beta2.WatcherInstalled)
	if watcher == nil || watcher.Status != metav1.ConditionTrue {
		status.State = v1beta2.Processing
		status.Message = "the agent is not installed"
	}

	if watcher != nil && watcher.Status != metav1.ConditionTrue {
		status.Message += ": " + watcher.Reason + ": " + watcher.Message
	}

	for _, worse := range []v1beta2.State{v1beta2.Deleting, v1beta2.Processing, v1beta2.Error} {
		if slices.ContainsFunc(modules, func(m v1beta2.ModuleStatus) bool { return m.State == worse }) {
			status.State = worse
		}
	}
	return status
}

// reportStatus writes the status if it has changed. The patch replaces all conditions, and
// conflicts if the installer of the agent has written its own meanwhile.
func (r *Reconciler) reportStatus(ctx context.Context, kyma *v1beta2.Kyma, status v1beta2.KymaStatus) error {
	return client.IgnoreNotFound(write(ctx, r.Client, kyma, status))
}

// reportThere writes the status in the runtime if it has changed, with the condition Ready alone.
func reportThere(ctx context.Context, there *skr.Runtime, remote *v1beta2.Kyma, status v1beta2.KymaStatus) error {
	status.Conditions = remote.Status.Conditions
	return write(ctx, there, remote, status)
}

func write(ctx context.Context, c client.Client, kyma *v1beta2.Kyma, status v1beta2.KymaStatus) error {
	status.Message = skr.Short(status.Message)
	status.ObservedGeneration = kyma.Generation
	status.Conditions = v1beta2.SetReady(status.Conditions, status.State, status.Message, kyma.Generation)

	if equality.Semantic.DeepEqual(kyma.Status, status) {
		return nil
	}

	before := kyma.DeepCopy()
	kyma.Status = status
	return c.Status().Patch(ctx, kyma, skr.After(before))
}
