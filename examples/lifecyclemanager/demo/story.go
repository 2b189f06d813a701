package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/lab"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

// line is a line of the story: something happens, and has an effect.
type line struct {
	happens, effect string
	do              func()
	// holds reports whether the effect is there, and within is the time that it may take.
	holds  func() bool
	within time.Duration
}

const (
	// soon is for effects of events, and prompt for those that need several reconciles.
	soon   = time.Second
	prompt = 2 * time.Second
	later  = 15 * time.Second
)

// story returns the lines in their order. Each needs those before it.
func (d *demo) story() []line {
	const local = lab.ControlPlane

	keda := v1beta2.Module{Name: "keda"}
	enabled := d.enablesModules(second, keda)
	pinned := d.enablesModules(second, v1beta2.Module{Name: "keda", Version: "1.0.0"})
	ready := d.userReads(second, v1beta2.Ready, "2.0.0", "")
	processing := d.userReads(second, v1beta2.Processing, "2.0.0", "keda-manager")
	broken := d.breaksImage(lab.ManagerImage)
	refused := d.userReads(second, v1beta2.Error, "2.0.0", "older")

	return slices.Concat(d.installation(), []line{
		{"its manager cannot start", "the user reads: keda is Processing", broken, processing, prompt},
		{"its manager is back", "the user reads: keda 2.0.0 Ready", d.breaksImage(""), ready, prompt},
		{"a user pins keda 1.0.0", "refused, and the user reads the reason", pinned, refused, soon},
		{"the user takes that back", "the user reads: keda 2.0.0 Ready", enabled, ready, soon},
		{"a user deletes the webhook", "there again, and runtime-2 is fresh", d.deleteWebhook, d.isRepaired, later},
		{"the same, after an opt-out of repairs", "runtime-2 is degraded (canary_lost)", d.optOut, d.isDegraded, later},
		{"the opt-out ends", "runtime-2 is fresh", d.setLabel("false"), d.isFresh, later},
		{"a user edits the Deployment", "corrected", d.editsDeployment(second), d.runsVersion(second, "2.0.0"), soon},
	}, d.ownership(), []line{
		{"a user disables keda", "its objects are gone, the Keda first", d.enablesModules(second), d.isGone, later},
		{
			"the Kyma of runtime-2 is deleted", "runtime-2 is as clean as before",
			d.deletesKyma(second), d.isClean, later,
		},
		{
			"the control plane is its own runtime", "it lists the modules",
			func() { d.Register(local, nil) }, d.listsTemplates(local, "keda-1.0.0", "keda-2.0.0"), later,
		},
		{
			"a user enables keda there", "keda is Ready there",
			d.enablesModules(local, keda), d.userReads(local, v1beta2.Ready, "2.0.0", ""), later,
		},
		{
			"the Kyma of that runtime is deleted", "keda is gone, other Kymas stay",
			d.deletesKyma(local), d.localIsGone, later,
		},
		{
			"runtime-1 dies, its Kyma is deleted", "the Kyma names the cause",
			d.cutAndDelete(first), d.planeReads(first, v1beta2.Deleting, "https://"), later,
		},
		{"its kubeconfig is deleted", "the Kyma is gone", d.forgetFirst, d.hasNoKyma(first), later},
	})
}

// installation is the first part of the story.
func (d *demo) installation() []line {
	enabled := d.enablesModules(second, v1beta2.Module{Name: "keda"})
	added := d.addsModules("keda-1.0.0", "logger-0.1.0")
	upgraded := d.addsModules("keda-2.0.0")

	return []line{
		{"an administrator adds two modules", "each runtime lists those it may see", added, d.hasCatalog, soon},
		{"a user enables keda in runtime-2", "its objects are there", enabled, d.runsVersion(second, "1.0.0"), soon},
		{"", "the user reads: keda 1.0.0 Ready", nothing, d.userReads(second, v1beta2.Ready, "1.0.0", ""), later},
		{"a user sets the log level in its Keda", "its manager applies it", d.setLevel, d.hasLevel, soon},
		{"a user edits its Deployment", "corrected", d.editsDeployment(second), d.runsVersion(second, "1.0.0"), soon},
		{"a user deletes its Deployment", "there again", d.deleteDeployment, d.runsVersion(second, "1.0.0"), soon},
		{"the channel gets keda 2.0.0", "rolled out, and a ConfigMap is pruned", upgraded, d.isUpgraded, prompt},
		{"", "the user's log level is kept", nothing, d.hasLevel, soon},
	}
}

// ownership is the part of the story about objects that belong to a user, or to another module.
func (d *demo) ownership() []line {
	keda := v1beta2.Module{Name: "keda"}
	logger := v1beta2.Module{Name: "logger", Channel: "fast"}
	collector := v1beta2.Module{Name: "collector", Channel: "fast"}
	ready := d.userReads(second, v1beta2.Ready, "2.0.0", "")

	return []line{
		{
			"a user's ConfigMap has a name of logger", "logger is refused, by kind and name",
			func() {
				d.makeObject(logSettings())
				d.enablesModules(second, keda, logger)()
			},
			d.moduleReads("logger", v1beta2.Error, "ConfigMap default/log-settings"), later,
		},
		{
			"the user gives it to logger", "logger is Ready",
			d.adoptSettings, d.moduleReads("logger", v1beta2.Ready, ""), later,
		},
		{
			"collector has a Deployment of logger", "collector is refused, and logger is named",
			func() {
				d.addsModules("collector-0.1.0")()
				d.enablesModules(second, keda, logger, collector)()
			},
			d.moduleReads("collector", v1beta2.Error, "Deployment logger/logger belongs to module logger"), later,
		},
		{"the user disables both", "their objects are gone", d.enablesModules(second, keda), d.loggerIsGone, later},
		{
			"a user with a second Keda disables keda", "keda waits, and names that Keda",
			func() {
				d.makeObject(secondKeda())
				d.enablesModules(second)()
			},
			d.userReads(second, v1beta2.Deleting, "2.0.0", "Keda default/mine"), later,
		},
		{"the user takes that back", "keda is Ready, with its own Keda", d.enablesModules(second, keda), ready, later},
		{"the user deletes the second Keda", "its settings are gone", d.deleteSecondKeda, d.secondKedaIsGone, later},
	}
}

func nothing() {}

// addsModules returns a function that adds versions of modules to the catalog.
func (d *demo) addsModules(versions ...string) func() {
	return func() {
		for _, version := range versions {
			d.ApplyFile("samples/" + version + ".yaml")
		}
	}
}

func (d *demo) hasCatalog() bool {
	return d.listsTemplates(first, "keda-1.0.0")() && d.listsTemplates(second, "keda-1.0.0", "logger-0.1.0")()
}

// listsTemplates returns a function that reports whether a runtime has these ModuleTemplates, and
// the Kyma of its users. An operator that is killed may not have made that Kyma yet.
func (d *demo) listsTemplates(id string, names ...string) func() bool {
	return func() bool {
		list := &v1beta2.ModuleTemplateList{}
		err := d.Runtimes[id].List(d.Context(), list, client.InNamespace("kyma-system"))
		_, kymaErr := d.userKyma(id)
		return err == nil && kymaErr == nil && slices.EqualFunc(list.Items, names,
			func(template v1beta2.ModuleTemplate, name string) bool { return template.Name == name })
	}
}

// userKyma returns the Kyma that users edit.
func (d *demo) userKyma(id string) (*v1beta2.Kyma, error) {
	kyma := &v1beta2.Kyma{}
	return kyma, d.Runtimes[id].Get(d.Context(), client.ObjectKey{Namespace: "kyma-system", Name: "default"}, kyma)
}

// enablesModules returns a function that enables these modules in a runtime, and disables others.
func (d *demo) enablesModules(id string, modules ...v1beta2.Module) func() {
	return func() {
		kyma, err := d.userKyma(id)
		rig.NoError(d, err)
		before := kyma.DeepCopy()
		kyma.Spec.Modules = modules
		rig.NoError(d, d.Runtimes[id].Patch(d.Context(), kyma, client.MergeFrom(before)))
	}
}

// userReads returns a function that reports whether a user reads that the only module of a runtime
// has a state and a version, with a text in the message.
func (d *demo) userReads(id string, state v1beta2.State, version v1beta2.Version, text string) func() bool {
	return func() bool {
		kyma, err := d.userKyma(id)
		if err != nil || kyma.Status.State != state || len(kyma.Status.Modules) != 1 {
			return false
		}

		module := kyma.Status.Modules[0]
		return module.State == state && module.Version == version && strings.Contains(module.Message, text)
	}
}

// moduleReads returns a function that reports whether a user of the second runtime reads that a
// module has a state, with a text in the message.
func (d *demo) moduleReads(name v1beta2.ModuleName, state v1beta2.State, text string) func() bool {
	return func() bool {
		kyma, err := d.userKyma(second)
		return err == nil && slices.ContainsFunc(kyma.Status.Modules, func(m v1beta2.ModuleStatus) bool {
			return m.Name == name && m.State == state && strings.Contains(m.Message, text)
		})
	}
}

// makeObject creates an object of a user in the second runtime.
func (d *demo) makeObject(object client.Object) {
	rig.NoError(d, d.Runtimes[second].Create(d.Context(), object))
}

// logSettings is a ConfigMap with the name of one of the module logger.
func logSettings() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "log-settings"}}
}

// adoptSettings gives the ConfigMap of the user to the module.
func (d *demo) adoptSettings() {
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: "logger"}}}`, skr.AdoptBy)
	rig.NoError(d, d.Runtimes[second].Patch(d.Context(), logSettings(), client.RawPatch(types.MergePatchType, patch)))
}

// loggerIsGone reports whether keda is the only module, and the objects of the others are gone.
func (d *demo) loggerIsGone() bool {
	settings := logSettings()
	err := d.Runtimes[second].Get(d.Context(), client.ObjectKeyFromObject(settings), settings)
	return apierrors.IsNotFound(err) && d.userReads(second, v1beta2.Ready, "2.0.0", "")()
}

// secondKeda is a custom resource of a user.
func secondKeda() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "keda.example.com/v1",
		"kind":       "Keda",
		"metadata":   map[string]any{"namespace": "default", "name": "mine"},
	}}
}

func (d *demo) deleteSecondKeda() {
	rig.NoError(d, d.Runtimes[second].Delete(d.Context(), secondKeda()))
}

// secondKedaIsGone reports whether the manager of the module has released it.
func (d *demo) secondKedaIsGone() bool {
	custom := secondKeda()
	return apierrors.IsNotFound(d.Runtimes[second].Get(d.Context(), client.ObjectKeyFromObject(custom), custom))
}

// breaksImage returns a function that ends the programs of an image in the second runtime, and
// starts none until the next call.
func (d *demo) breaksImage(image string) func() {
	return func() { d.Runtimes[second].Node.Break(image) }
}

var keda = client.ObjectKey{Namespace: "keda", Name: "default"}

// setLevel edits the custom resource of the module.
func (d *demo) setLevel() {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"logLevel": "debug"}}`))
	custom := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "keda.example.com/v1", "kind": "Keda",
		"metadata": map[string]any{"namespace": keda.Namespace, "name": keda.Name},
	}}
	rig.NoError(d, d.Runtimes[second].Patch(d.Context(), custom, patch))
}

// hasLevel reports whether the manager has applied the user's setting.
func (d *demo) hasLevel() bool {
	settings := &corev1.ConfigMap{}
	err := d.Runtimes[second].Get(d.Context(), keda, settings)
	return err == nil && settings.Data["logLevel"] == "debug"
}

var manager = client.ObjectKey{Namespace: "keda", Name: "keda-manager"}

// deployment returns the Deployment of the module in a runtime.
func (d *demo) deployment(id string) (*appsv1.Deployment, error) {
	deployment := &appsv1.Deployment{}
	return deployment, d.Runtimes[id].Get(d.Context(), manager, deployment)
}

// runsVersion returns a function that reports whether the Deployment in a runtime belongs to a
// version.
func (d *demo) runsVersion(id, version string) func() bool {
	return func() bool {
		deployment, err := d.deployment(id)
		return err == nil && deployment.Spec.Template.Spec.Containers[0].Image == lab.ManagerImage+version
	}
}

// editsDeployment returns a function that edits the Deployment of the module in a runtime.
func (d *demo) editsDeployment(id string) func() {
	return func() {
		deployment, err := d.deployment(id)
		rig.NoError(d, err)
		before := deployment.DeepCopy()
		deployment.Spec.Template.Spec.Containers[0].Image = "elsewhere.example.com/edited"
		rig.NoError(d, d.Runtimes[id].Patch(d.Context(), deployment, client.MergeFrom(before)))
	}
}

func (d *demo) deleteDeployment() {
	deployment, err := d.deployment(second)
	rig.NoError(d, err)
	rig.NoError(d, d.Runtimes[second].Delete(d.Context(), deployment))
}

func (d *demo) isUpgraded() bool {
	pruned := client.ObjectKey{Namespace: "keda", Name: "keda-defaults"}
	err := d.Runtimes[second].Get(d.Context(), pruned, &corev1.ConfigMap{})
	return apierrors.IsNotFound(err) && d.runsVersion(second, "2.0.0")()
}

func webhook() *admissionregistrationv1.ValidatingWebhookConfiguration {
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "runtime-watcher"},
	}
}

func (d *demo) deleteWebhook() { rig.NoError(d, d.Runtimes[second].Delete(d.Context(), webhook())) }

// isRepaired reports whether the operator has made the webhook again, and the canary has proved it.
func (d *demo) isRepaired() bool {
	made := webhook()
	return d.Runtimes[second].Get(d.Context(), client.ObjectKeyFromObject(made), made) == nil && d.isFresh()
}

// optOut deletes the webhook of a runtime that the operator leaves as it is.
func (d *demo) optOut() {
	d.setLabel("true")()
	d.deleteWebhook()
}

// setLabel returns a function that sets the label that opts out.
func (d *demo) setLabel(value string) func() {
	return func() {
		d.patchKyma(`{"metadata": {"labels": {%q: %q}}}`, v1beta2.SkipLabel, value)
	}
}

func (d *demo) isDegraded() bool { return d.hasState(second, fleet.Degraded, "canary_lost") }

func (d *demo) isFresh() bool { return d.hasState(second, fleet.Fresh, "") }

// patchKyma patches the Kyma of the second runtime in the control plane.
func (d *demo) patchKyma(patch string, values ...any) {
	raw := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, patch, values...))
	rig.NoError(d, d.Plane.Patch(d.Context(), kymaOf(second), raw))
}

func (d *demo) isGone() bool {
	_, err := d.deployment(second)
	kyma, kymaErr := d.userKyma(second)
	return apierrors.IsNotFound(err) && kymaErr == nil && len(kyma.Status.Modules) == 0
}

// deletesKyma returns a function that deletes the Kyma of a runtime.
func (d *demo) deletesKyma(id string) func() {
	return func() { rig.NoError(d, d.Plane.Delete(d.Context(), kymaOf(id))) }
}

func kymaOf(id string) *v1beta2.Kyma {
	return &v1beta2.Kyma{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: id}}
}

// planeReads returns a function that reports whether the Kyma of a runtime in the control plane has
// a state, with a text in the message.
func (d *demo) planeReads(id string, state v1beta2.State, text string) func() bool {
	return func() bool {
		kyma := kymaOf(id)
		err := d.Plane.Get(d.Context(), client.ObjectKeyFromObject(kyma), kyma)
		return err == nil && kyma.Status.State == state && strings.Contains(kyma.Status.Message, text)
	}
}

// hasNoKyma returns a function that reports whether the control plane has no Kyma of a runtime.
func (d *demo) hasNoKyma(id string) func() bool {
	return func() bool {
		kyma := kymaOf(id)
		return apierrors.IsNotFound(d.Plane.Get(d.Context(), client.ObjectKeyFromObject(kyma), kyma))
	}
}

// isClean reports whether the second runtime has no Kyma, and no object that was not there before.
func (d *demo) isClean() bool {
	now, err := d.Runtimes[second].Inventory(d.Context())
	isNew := func(object string) bool { return !slices.Contains(d.before, object) }
	return err == nil && d.hasNoKyma(second)() && !slices.ContainsFunc(now, isNew)
}

// localIsGone reports whether module and Kyma of the control plane are gone, and the operator and
// the Kyma of another runtime are there.
func (d *demo) localIsGone() bool {
	operator := client.ObjectKey{Namespace: "kcp-system", Name: "lifecycle-manager"}
	return d.hasNoKyma(lab.ControlPlane)() && !d.hasNoKyma(first)() &&
		apierrors.IsNotFound(d.Plane.Get(d.Context(), manager, &appsv1.Deployment{})) &&
		d.Plane.Get(d.Context(), operator, &appsv1.Deployment{}) == nil
}

// cutAndDelete returns a function that cuts a runtime off, and then deletes its Kyma.
func (d *demo) cutAndDelete(id string) func() {
	return func() {
		d.Runtimes[id].Refuse()
		d.deletesKyma(id)()
	}
}

// forgetFirst is the way out of a deletion that a dead cluster holds up.
func (d *demo) forgetFirst() {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: first}}
	rig.NoError(d, d.Plane.Delete(d.Context(), secret))
}
