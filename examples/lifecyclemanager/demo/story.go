package main

import (
	"context"
	"errors"
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

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

// line is a line of the story: something happens, and has an effect.
type line struct {
	happens, effect string
	do              func(context.Context) error
	// holds reports whether the effect is there, and within is the time that it may take.
	holds  func(context.Context) bool
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

// play1 plays a line, and returns the time from the change to its effect.
func (d *demo) play1(ctx context.Context, l line) (time.Duration, error) {
	if err := l.do(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := d.crash(ctx); err != nil {
		return 0, err
	}
	limit := l.within * time.Duration(d.slack)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	err := machine.Poll(ctx, func() bool { return l.holds(ctx) })
	return time.Since(began), err
}

func nothing(context.Context) error { return nil }

func (d *demo) addModules(ctx context.Context) error {
	return errors.Join(
		d.ApplyFile(ctx, "samples/keda-1.0.0.yaml"), d.ApplyFile(ctx, "samples/logger-0.1.0.yaml"))
}

// hasCatalog waits for the Kyma, too. An operator that is killed may not have made it yet.
func (d *demo) hasCatalog(ctx context.Context) bool {
	_, err := d.userKyma(ctx, second)
	return err == nil && slices.Equal(d.catalog(ctx, first), []string{"keda-1.0.0"}) &&
		slices.Equal(d.catalog(ctx, second), []string{"keda-1.0.0", "logger-0.1.0"})
}

// catalog returns the names of the ModuleTemplates in a runtime.
func (d *demo) catalog(ctx context.Context, id string) (names []string) {
	list := &v1beta2.ModuleTemplateList{}
	_ = d.Runtimes[id].List(ctx, list, client.InNamespace("kyma-system")) // An error counts as an empty catalog.
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// userKyma returns the Kyma that users edit.
func (d *demo) userKyma(ctx context.Context, id string) (*v1beta2.Kyma, error) {
	kyma := &v1beta2.Kyma{}
	return kyma, d.Runtimes[id].Get(ctx, client.ObjectKey{Namespace: "kyma-system", Name: "default"}, kyma)
}

// modules returns a function that enables these modules in a runtime, and disables others.
func (d *demo) modules(id string, modules ...v1beta2.Module) func(context.Context) error {
	return func(ctx context.Context) error {
		kyma, err := d.userKyma(ctx, id)
		if err != nil {
			return err
		}
		before := kyma.DeepCopy()
		kyma.Spec.Modules = modules
		return d.Runtimes[id].Patch(ctx, kyma, client.MergeFrom(before))
	}
}

func (d *demo) isRefused(ctx context.Context) bool {
	kyma, err := d.userKyma(ctx, second)
	return err == nil && kyma.Status.State == v1beta2.Error && kyma.Status.Modules[0].Version == "2.0.0" &&
		strings.Contains(kyma.Status.Modules[0].Message, "older")
}

// userReads returns a function that reports whether a user reads that the version is ready.
func (d *demo) userReads(version v1beta2.Version) func(context.Context) bool {
	want := []v1beta2.ModuleStatus{{Name: "keda", Version: version, State: v1beta2.Ready}}
	return func(ctx context.Context) bool {
		kyma, err := d.userKyma(ctx, second)
		return err == nil && kyma.Status.State == v1beta2.Ready && slices.Equal(kyma.Status.Modules, want)
	}
}

func (d *demo) readsProcessing(ctx context.Context) bool {
	kyma, err := d.userKyma(ctx, second)
	return err == nil && kyma.Status.State == v1beta2.Processing &&
		strings.Contains(kyma.Status.Modules[0].Message, "keda-manager")
}

func (d *demo) breaks(broken bool) func(context.Context) error {
	return func(context.Context) error {
		d.Runtimes[second].Break(broken)
		return nil
	}
}

var keda = client.ObjectKey{Namespace: "keda", Name: "default"}

// setLevel edits the custom resource of the module.
func (d *demo) setLevel(ctx context.Context) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"logLevel": "debug"}}`))
	custom := &unstructured.Unstructured{}
	custom.SetAPIVersion("keda.example.com/v1")
	custom.SetKind("Keda")
	custom.SetNamespace(keda.Namespace)
	custom.SetName(keda.Name)
	return d.Runtimes[second].Patch(ctx, custom, patch)
}

// hasLevel reports whether the manager has applied the user's setting.
func (d *demo) hasLevel(ctx context.Context) bool {
	settings := &corev1.ConfigMap{}
	err := d.Runtimes[second].Get(ctx, keda, settings)
	return err == nil && settings.Data["logLevel"] == "debug"
}

var manager = client.ObjectKey{Namespace: "keda", Name: "keda-manager"}

// deployment returns that of the module in a runtime.
func (d *demo) deployment(ctx context.Context, id string) (*appsv1.Deployment, error) {
	deployment := &appsv1.Deployment{}
	return deployment, d.Runtimes[id].Get(ctx, manager, deployment)
}

const imageName = "keda.example.com/keda-manager:"

// runs returns a function that reports whether the Deployment is that of a version.
func (d *demo) runs(version string) func(context.Context) bool {
	return func(ctx context.Context) bool {
		deployment, err := d.deployment(ctx, second)
		return err == nil && deployment.Spec.Template.Spec.Containers[0].Image == imageName+version
	}
}

// edits returns a function that edits the Deployment of the module in a runtime.
func (d *demo) edits(id string) func(context.Context) error {
	return func(ctx context.Context) error {
		deployment, err := d.deployment(ctx, id)
		if err != nil {
			return err
		}
		before := deployment.DeepCopy()
		deployment.Spec.Template.Spec.Containers[0].Image = "elsewhere.example.com/edited"
		return d.Runtimes[id].Patch(ctx, deployment, client.MergeFrom(before))
	}
}

func (d *demo) deleteDeployment(ctx context.Context) error {
	deployment, err := d.deployment(ctx, second)
	if err != nil {
		return err
	}
	return d.Runtimes[second].Delete(ctx, deployment)
}

func (d *demo) upgrade(ctx context.Context) error {
	return d.ApplyFile(ctx, "samples/keda-2.0.0.yaml")
}

func (d *demo) isUpgraded(ctx context.Context) bool {
	err := d.Runtimes[second].Get(ctx, client.ObjectKey{Namespace: "keda", Name: "keda-defaults"}, &corev1.ConfigMap{})
	return apierrors.IsNotFound(err) && d.runs("2.0.0")(ctx)
}

func webhook() *admissionregistrationv1.ValidatingWebhookConfiguration {
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "runtime-watcher"},
	}
}

func (d *demo) deleteWebhook(ctx context.Context) error {
	return d.Runtimes[second].Delete(ctx, webhook())
}

// isRepaired reports whether the operator has made the webhook again, and the canary has proved it.
func (d *demo) isRepaired(ctx context.Context) bool {
	made := webhook()
	return d.Runtimes[second].Get(ctx, client.ObjectKeyFromObject(made), made) == nil && d.isFresh(ctx)
}

// optOut deletes the webhook of a runtime that the operator leaves as it is.
func (d *demo) optOut(ctx context.Context) error {
	return errors.Join(d.label("true")(ctx), d.deleteWebhook(ctx))
}

// label returns a function that sets the label that opts out.
func (d *demo) label(value string) func(context.Context) error {
	return func(ctx context.Context) error {
		return d.patchKyma(ctx, `{"metadata": {"labels": {%q: %q}}}`, v1beta2.SkipLabel, value)
	}
}

func (d *demo) isDegraded(ctx context.Context) bool {
	return d.is(ctx, second, "degraded", "canary_lost")
}

func (d *demo) isFresh(ctx context.Context) bool { return d.is(ctx, second, "fresh", "") }

// repair makes the operator look at the installation at once, instead of after 10 minutes.
func (d *demo) repair(ctx context.Context) error {
	return d.patchKyma(ctx, `{"metadata": {"annotations": {"repaired": %q}}}`, time.Now().Format(time.RFC3339))
}

// patchKyma patches the Kyma of the second runtime in the control plane.
func (d *demo) patchKyma(ctx context.Context, patch string, values ...any) error {
	return d.Plane.Patch(ctx, kymaOf(second), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, patch, values...)))
}

func (d *demo) isGone(ctx context.Context) bool {
	_, err := d.deployment(ctx, second)
	kyma, kymaErr := d.userKyma(ctx, second)
	return apierrors.IsNotFound(err) && kymaErr == nil && len(kyma.Status.Modules) == 0
}

// deletes returns a function that deletes the Kyma of a runtime.
func (d *demo) deletes(id string) func(context.Context) error {
	return func(ctx context.Context) error { return d.Plane.Delete(ctx, kymaOf(id)) }
}

func kymaOf(id string) *v1beta2.Kyma {
	return &v1beta2.Kyma{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: id}}
}

// planeKyma returns the Kyma of a runtime in the control plane.
func (d *demo) planeKyma(ctx context.Context, id string) (*v1beta2.Kyma, error) {
	kyma := kymaOf(id)
	return kyma, d.Plane.Get(ctx, client.ObjectKeyFromObject(kyma), kyma)
}

// hasNoKyma reports whether the control plane has no longer a Kyma of a runtime.
func (d *demo) hasNoKyma(ctx context.Context, id string) bool {
	_, err := d.planeKyma(ctx, id)
	return apierrors.IsNotFound(err)
}

func (d *demo) isClean(ctx context.Context) bool {
	return d.hasNoKyma(ctx, second) && len(d.left(ctx)) == 0
}

// left returns the objects of the second runtime that were not there before.
func (d *demo) left(ctx context.Context) []string {
	now, err := d.Runtimes[second].Inventory(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	return slices.DeleteFunc(now, func(object string) bool { return slices.Contains(d.before, object) })
}

// registerLocal registers the control plane as a runtime.
func (d *demo) registerLocal(ctx context.Context) error {
	return d.Register(ctx, lab.ControlPlane, nil)
}

func (d *demo) localHasCatalog(ctx context.Context) bool {
	_, err := d.userKyma(ctx, lab.ControlPlane)
	return err == nil && slices.Equal(d.catalog(ctx, lab.ControlPlane), []string{"keda-1.0.0", "keda-2.0.0"})
}

func (d *demo) localIsReady(ctx context.Context) bool {
	kyma, err := d.userKyma(ctx, lab.ControlPlane)
	return err == nil && kyma.Status.State == v1beta2.Ready && len(kyma.Status.Modules) == 1
}

// localIsGone reports whether module and Kyma of the control plane are gone, and the operator and
// the Kyma of another runtime are there.
func (d *demo) localIsGone(ctx context.Context) bool {
	operator := client.ObjectKey{Namespace: "kcp-system", Name: "lifecycle-manager"}
	return d.hasNoKyma(ctx, lab.ControlPlane) && !d.hasNoKyma(ctx, first) &&
		apierrors.IsNotFound(d.Plane.Get(ctx, manager, &appsv1.Deployment{})) &&
		d.Plane.Get(ctx, operator, &appsv1.Deployment{}) == nil
}

func (d *demo) killFirst(ctx context.Context) error {
	d.Runtimes[first].Cut()
	return d.Plane.Delete(ctx, kymaOf(first))
}

func (d *demo) firstNamesCause(ctx context.Context) bool {
	kyma, err := d.planeKyma(ctx, first)
	return err == nil && kyma.Status.State == v1beta2.Deleting && strings.Contains(kyma.Status.Message, "https://")
}

// forgetFirst is the way out of a deletion that a dead cluster holds up.
func (d *demo) forgetFirst(ctx context.Context) error {
	return d.Plane.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: first}})
}

func (d *demo) firstIsGone(ctx context.Context) bool { return d.hasNoKyma(ctx, first) }
