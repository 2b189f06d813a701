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
	keda, local := v1beta2.Module{Name: "keda"}, lab.ControlPlane
	enabled, pinned := d.modules(second, keda), d.modules(second, v1beta2.Module{Name: "keda", Version: "1.0.0"})
	return slices.Concat(d.installation(), []line{
		{"its manager cannot start", "the user reads: keda is Processing", d.breaks(true), d.readsProcessing, prompt},
		{"its manager is back", "the user reads: keda 2.0.0 Ready", d.breaks(false), d.userReads("2.0.0"), prompt},
		{"a user pins keda 1.0.0", "refused, and the user reads the reason", pinned, d.isRefused, soon},
		{"the user takes that back", "the user reads: keda 2.0.0 Ready", enabled, d.userReads("2.0.0"), soon},
		{"a user deletes the webhook", "there again, and runtime-2 is fresh", d.deleteWebhook, d.isRepaired, later},
		{"the same, after an opt-out of repairs", "runtime-2 is degraded (canary_lost)", d.optOut, d.isDegraded, later},
		{"the opt-out ends", "runtime-2 is fresh", d.label("false"), d.isFresh, later},
		{"a user edits the Deployment", "corrected", d.edits(second), d.runs("2.0.0"), soon},
		{"a user disables keda", "its objects are gone, the Keda first", d.modules(second), d.isGone, later},
		{"the Kyma of runtime-2 is deleted", "runtime-2 is as clean as before", d.deletes(second), d.isClean, later},
		{"the control plane is its own runtime", "it lists the modules", d.registerLocal, d.localHasCatalog, later},
		{"a user enables keda there", "keda is Ready there", d.modules(local, keda), d.localIsReady, later},
		{
			"the Kyma of that runtime is deleted", "keda is gone, other Kymas stay",
			d.deletes(local), d.localIsGone, later,
		},
		{"runtime-1 dies, its Kyma is deleted", "the Kyma names the cause", d.killFirst, d.firstNamesCause, later},
		{"its kubeconfig is deleted", "the Kyma is gone", d.forgetFirst, d.firstIsGone, later},
	})
}

// installation is the first part of the story.
func (d *demo) installation() []line {
	enabled := d.modules(second, v1beta2.Module{Name: "keda"})
	return []line{
		{"an administrator adds two modules", "each runtime lists those it may see", d.addModules, d.hasCatalog, soon},
		{"a user enables keda in runtime-2", "its objects are there", enabled, d.runs("1.0.0"), soon},
		{"", "the user reads: keda 1.0.0 Ready", nothing, d.userReads("1.0.0"), later},
		{"a user sets the log level in its Keda", "its manager applies it", d.setLevel, d.hasLevel, soon},
		{"a user edits its Deployment", "corrected", d.edits(second), d.runs("1.0.0"), soon},
		{"a user deletes its Deployment", "there again", d.deleteDeployment, d.runs("1.0.0"), soon},
		{"the channel gets keda 2.0.0", "rolled out, and a ConfigMap is pruned", d.upgrade, d.isUpgraded, prompt},
		{"", "the user's log level is kept", nothing, d.hasLevel, soon},
	}
}

func nothing() {}

func (d *demo) addModules() {
	d.ApplyFile("samples/keda-1.0.0.yaml")
	d.ApplyFile("samples/logger-0.1.0.yaml")
}

// hasCatalog waits for the Kyma, too. An operator that is killed may not have made it yet.
func (d *demo) hasCatalog() bool {
	_, err := d.userKyma(second)
	return err == nil && slices.Equal(d.catalog(first), []string{"keda-1.0.0"}) &&
		slices.Equal(d.catalog(second), []string{"keda-1.0.0", "logger-0.1.0"})
}

// catalog returns the names of the ModuleTemplates in a runtime.
func (d *demo) catalog(id string) (names []string) {
	list := &v1beta2.ModuleTemplateList{}
	// An error counts as an empty catalog.
	_ = d.Runtimes[id].List(d.Context(), list, client.InNamespace("kyma-system"))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// userKyma returns the Kyma that users edit.
func (d *demo) userKyma(id string) (*v1beta2.Kyma, error) {
	kyma := &v1beta2.Kyma{}
	return kyma, d.Runtimes[id].Get(d.Context(), client.ObjectKey{Namespace: "kyma-system", Name: "default"}, kyma)
}

// modules returns a function that enables these modules in a runtime, and disables others.
func (d *demo) modules(id string, modules ...v1beta2.Module) func() {
	return func() {
		kyma, err := d.userKyma(id)
		rig.NoError(d, err)
		before := kyma.DeepCopy()
		kyma.Spec.Modules = modules
		rig.NoError(d, d.Runtimes[id].Patch(d.Context(), kyma, client.MergeFrom(before)))
	}
}

func (d *demo) isRefused() bool {
	kyma, err := d.userKyma(second)
	return err == nil && kyma.Status.State == v1beta2.Error && kyma.Status.Modules[0].Version == "2.0.0" &&
		strings.Contains(kyma.Status.Modules[0].Message, "older")
}

// userReads returns a function that reports whether a user reads that the version is ready.
func (d *demo) userReads(version v1beta2.Version) func() bool {
	want := []v1beta2.ModuleStatus{{Name: "keda", Version: version, State: v1beta2.Ready}}
	return func() bool {
		kyma, err := d.userKyma(second)
		return err == nil && kyma.Status.State == v1beta2.Ready && slices.Equal(kyma.Status.Modules, want)
	}
}

func (d *demo) readsProcessing() bool {
	kyma, err := d.userKyma(second)
	return err == nil && kyma.Status.State == v1beta2.Processing &&
		strings.Contains(kyma.Status.Modules[0].Message, "keda-manager")
}

func (d *demo) breaks(broken bool) func() {
	return func() { d.Runtimes[second].Break(broken) }
}

var keda = client.ObjectKey{Namespace: "keda", Name: "default"}

// setLevel edits the custom resource of the module.
func (d *demo) setLevel() {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"logLevel": "debug"}}`))
	custom := &unstructured.Unstructured{}
	custom.SetAPIVersion("keda.example.com/v1")
	custom.SetKind("Keda")
	custom.SetNamespace(keda.Namespace)
	custom.SetName(keda.Name)
	rig.NoError(d, d.Runtimes[second].Patch(d.Context(), custom, patch))
}

// hasLevel reports whether the manager has applied the user's setting.
func (d *demo) hasLevel() bool {
	settings := &corev1.ConfigMap{}
	err := d.Runtimes[second].Get(d.Context(), keda, settings)
	return err == nil && settings.Data["logLevel"] == "debug"
}

var manager = client.ObjectKey{Namespace: "keda", Name: "keda-manager"}

// deployment returns that of the module in a runtime.
func (d *demo) deployment(id string) (*appsv1.Deployment, error) {
	deployment := &appsv1.Deployment{}
	return deployment, d.Runtimes[id].Get(d.Context(), manager, deployment)
}

const imageName = "keda.example.com/keda-manager:"

// runs returns a function that reports whether the Deployment is that of a version.
func (d *demo) runs(version string) func() bool {
	return func() bool {
		deployment, err := d.deployment(second)
		return err == nil && deployment.Spec.Template.Spec.Containers[0].Image == imageName+version
	}
}

// edits returns a function that edits the Deployment of the module in a runtime.
func (d *demo) edits(id string) func() {
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

func (d *demo) upgrade() { d.ApplyFile("samples/keda-2.0.0.yaml") }

func (d *demo) isUpgraded() bool {
	pruned := client.ObjectKey{Namespace: "keda", Name: "keda-defaults"}
	err := d.Runtimes[second].Get(d.Context(), pruned, &corev1.ConfigMap{})
	return apierrors.IsNotFound(err) && d.runs("2.0.0")()
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
	d.label("true")()
	d.deleteWebhook()
}

// label returns a function that sets the label that opts out.
func (d *demo) label(value string) func() {
	return func() {
		d.patchKyma(`{"metadata": {"labels": {%q: %q}}}`, v1beta2.SkipLabel, value)
	}
}

func (d *demo) isDegraded() bool { return d.is(second, fleet.Degraded, "canary_lost") }

func (d *demo) isFresh() bool { return d.is(second, fleet.Fresh, "") }

// repair makes the operator look at the installation at once, instead of after 10 minutes.
func (d *demo) repair() {
	d.patchKyma(`{"metadata": {"annotations": {"repaired": %q}}}`, time.Now().Format(time.RFC3339))
}

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

// deletes returns a function that deletes the Kyma of a runtime.
func (d *demo) deletes(id string) func() {
	return func() { rig.NoError(d, d.Plane.Delete(d.Context(), kymaOf(id))) }
}

func kymaOf(id string) *v1beta2.Kyma {
	return &v1beta2.Kyma{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: id}}
}

// planeKyma returns the Kyma of a runtime in the control plane.
func (d *demo) planeKyma(id string) (*v1beta2.Kyma, error) {
	kyma := kymaOf(id)
	return kyma, d.Plane.Get(d.Context(), client.ObjectKeyFromObject(kyma), kyma)
}

// hasNoKyma reports whether the control plane has no longer a Kyma of a runtime.
func (d *demo) hasNoKyma(id string) bool {
	_, err := d.planeKyma(id)
	return apierrors.IsNotFound(err)
}

func (d *demo) isClean() bool {
	return d.hasNoKyma(second) && len(d.left()) == 0
}

// left returns the objects of the second runtime that were not there before.
func (d *demo) left() []string {
	now, err := d.Runtimes[second].Inventory(d.Context())
	if err != nil {
		return []string{err.Error()}
	}
	return slices.DeleteFunc(now, func(object string) bool { return slices.Contains(d.before, object) })
}

// registerLocal registers the control plane as a runtime.
func (d *demo) registerLocal() { d.Register(lab.ControlPlane, nil) }

func (d *demo) localHasCatalog() bool {
	_, err := d.userKyma(lab.ControlPlane)
	return err == nil && slices.Equal(d.catalog(lab.ControlPlane), []string{"keda-1.0.0", "keda-2.0.0"})
}

func (d *demo) localIsReady() bool {
	kyma, err := d.userKyma(lab.ControlPlane)
	return err == nil && kyma.Status.State == v1beta2.Ready && len(kyma.Status.Modules) == 1
}

// localIsGone reports whether module and Kyma of the control plane are gone, and the operator and
// the Kyma of another runtime are there.
func (d *demo) localIsGone() bool {
	operator := client.ObjectKey{Namespace: "kcp-system", Name: "lifecycle-manager"}
	return d.hasNoKyma(lab.ControlPlane) && !d.hasNoKyma(first) &&
		apierrors.IsNotFound(d.Plane.Get(d.Context(), manager, &appsv1.Deployment{})) &&
		d.Plane.Get(d.Context(), operator, &appsv1.Deployment{}) == nil
}

func (d *demo) killFirst() {
	d.Runtimes[first].Refuse()
	d.deletes(first)()
}

func (d *demo) firstNamesCause() bool {
	kyma, err := d.planeKyma(first)
	return err == nil && kyma.Status.State == v1beta2.Deleting && strings.Contains(kyma.Status.Message, "https://")
}

// forgetFirst is the way out of a deletion that a dead cluster holds up.
func (d *demo) forgetFirst() {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: first}}
	rig.NoError(d, d.Plane.Delete(d.Context(), secret))
}

func (d *demo) firstIsGone() bool { return d.hasNoKyma(first) }
