package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	planeruntimes "github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
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
	// soon is for effects of events.
	soon  = time.Second
	later = 15 * time.Second
)

// story returns the lines in their order. Each needs those before it.
func (d *demo) story() []line {
	return slices.Concat(d.installation(), []line{
		{"a user deletes the webhook", "there again, and runtime-2 is fresh", d.deleteWebhook, d.isRepaired, later},
		{"the same, after an opt-out of repairs", "runtime-2 is degraded (canary_lost)", d.optOut, d.isDegraded, later},
		{"the opt-out ends", "runtime-2 is fresh", d.optIn, d.isFresh, later},
		{"a user edits the Deployment", "corrected", d.edit, d.runs("2.0.0"), soon},
		{"a user disables greeter", "its objects are gone", d.disable, d.isGone, 3 * time.Second},
		{"the Kyma of runtime-2 is deleted", "runtime-2 is as clean as before", d.deleteKyma, d.isClean, later},
	})
}

// installation is the first part of the story.
func (d *demo) installation() []line {
	return []line{
		{"an administrator adds two modules", "each runtime lists those it may see", d.addModules, d.hasCatalog, soon},
		{"a user enables greeter in runtime-2", "its objects are there", d.enable, d.runs("1.0.0"), soon},
		{"", "the user reads: greeter 1.0.0 Ready", nothing, d.userReads("1.0.0"), 3 * time.Second},
		{"a user edits its Deployment", "corrected", d.edit, d.runs("1.0.0"), soon},
		{"a user deletes its Deployment", "there again", d.deleteDeployment, d.runs("1.0.0"), soon},
		{"the channel gets greeter 2.0.0", "rolled out, and its ConfigMap is pruned", d.upgrade, d.isUpgraded, soon},
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
		d.ApplyFile(ctx, "samples/greeter-1.0.0.yaml"), d.ApplyFile(ctx, "samples/parrot-0.1.0.yaml"))
}

func (d *demo) hasCatalog(ctx context.Context) bool {
	return slices.Equal(d.catalog(ctx, first), []string{"greeter-1.0.0"}) &&
		slices.Equal(d.catalog(ctx, second), []string{"greeter-1.0.0", "parrot-0.1.0"})
}

// catalog returns the names of the ModuleTemplates in a runtime.
func (d *demo) catalog(ctx context.Context, id string) (names []string) {
	list := &v1beta2.ModuleTemplateList{}
	_ = d.Runtimes[id].List(ctx, list) // An error counts as an empty catalog.
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// userKyma returns the Kyma that users edit.
func (d *demo) userKyma(ctx context.Context) (*v1beta2.Kyma, error) {
	kyma := &v1beta2.Kyma{}
	return kyma, d.Runtimes[second].Get(ctx, client.ObjectKey{Namespace: "kyma-system", Name: "default"}, kyma)
}

func (d *demo) setModules(ctx context.Context, modules ...v1beta2.Module) error {
	kyma, err := d.userKyma(ctx)
	if err != nil {
		return err
	}
	before := kyma.DeepCopy()
	kyma.Spec.Modules = modules
	return d.Runtimes[second].Patch(ctx, kyma, client.MergeFrom(before))
}

func (d *demo) enable(ctx context.Context) error {
	return d.setModules(ctx, v1beta2.Module{Name: "greeter"})
}

func (d *demo) disable(ctx context.Context) error { return d.setModules(ctx) }

// userReads returns a function that reports whether a user reads that the version is ready.
func (d *demo) userReads(version v1beta2.Version) func(context.Context) bool {
	want := []v1beta2.ModuleStatus{{Name: "greeter", Version: version, State: v1beta2.Ready}}
	return func(ctx context.Context) bool {
		kyma, err := d.userKyma(ctx)
		return err == nil && kyma.Status.State == v1beta2.Ready && slices.Equal(kyma.Status.Modules, want)
	}
}

// deployment returns that of the module.
func (d *demo) deployment(ctx context.Context) (*appsv1.Deployment, error) {
	deployment := &appsv1.Deployment{}
	return deployment, d.Runtimes[second].Get(ctx, client.ObjectKey{Namespace: "greeter", Name: "greeter"}, deployment)
}

// runs returns a function that reports whether the Deployment is that of a version.
func (d *demo) runs(version string) func(context.Context) bool {
	return func(ctx context.Context) bool {
		deployment, err := d.deployment(ctx)
		return err == nil && deployment.Spec.Template.Spec.Containers[0].Image == "greeter.example/greeter:"+version
	}
}

func (d *demo) edit(ctx context.Context) error {
	deployment, err := d.deployment(ctx)
	if err != nil {
		return err
	}
	deployment.Spec.Template.Spec.Containers[0].Image = "elsewhere.example/greeter:edited"
	return d.Runtimes[second].Update(ctx, deployment)
}

func (d *demo) deleteDeployment(ctx context.Context) error {
	deployment, err := d.deployment(ctx)
	if err != nil {
		return err
	}
	return d.Runtimes[second].Delete(ctx, deployment)
}

func (d *demo) upgrade(ctx context.Context) error {
	return d.ApplyFile(ctx, "samples/greeter-2.0.0.yaml")
}

func (d *demo) isUpgraded(ctx context.Context) bool {
	err := d.Runtimes[second].Get(ctx, client.ObjectKey{Namespace: "greeter", Name: "greeting"}, &corev1.ConfigMap{})
	return apierrors.IsNotFound(err) && d.runs("2.0.0")(ctx)
}

func (d *demo) deleteWebhook(ctx context.Context) error {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	configuration.Name = "runtime-watcher"
	return d.Runtimes[second].Delete(ctx, configuration)
}

// isRepaired reports whether the operator has made the webhook again, and the canary has proved it.
func (d *demo) isRepaired(ctx context.Context) bool {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	err := d.Runtimes[second].Get(ctx, client.ObjectKey{Name: "runtime-watcher"}, configuration)
	return err == nil && d.isFresh(ctx)
}

// optOut deletes the webhook of a runtime that the operator leaves as it is.
func (d *demo) optOut(ctx context.Context) error {
	return errors.Join(d.label(ctx, "true"), d.deleteWebhook(ctx))
}

func (d *demo) optIn(ctx context.Context) error { return d.label(ctx, "false") }

// label sets the label that opts out.
func (d *demo) label(ctx context.Context, value string) error {
	return d.changeKyma(ctx, func(kyma *v1beta2.Kyma) {
		if kyma.Labels == nil {
			kyma.Labels = make(map[string]string)
		}
		kyma.Labels[planeruntimes.LabelSkip] = value
	})
}

func (d *demo) isDegraded(ctx context.Context) bool {
	return d.is(ctx, second, "degraded", "canary_lost")
}

func (d *demo) isFresh(ctx context.Context) bool { return d.is(ctx, second, "fresh", "") }

// repair makes the operator look at the installation at once, instead of after 10 minutes.
func (d *demo) repair(ctx context.Context) error {
	return d.changeKyma(ctx, func(kyma *v1beta2.Kyma) {
		kyma.Annotations["repaired"] = time.Now().Format(time.RFC3339)
	})
}

func (d *demo) changeKyma(ctx context.Context, change func(*v1beta2.Kyma)) error {
	kyma := &v1beta2.Kyma{}
	if err := d.Plane.Get(ctx, client.ObjectKey{Namespace: "kcp-system", Name: second}, kyma); err != nil {
		return err
	}
	before := kyma.DeepCopy()
	change(kyma)
	return d.Plane.Patch(ctx, kyma, client.MergeFrom(before))
}

func (d *demo) isGone(ctx context.Context) bool {
	_, err := d.deployment(ctx)
	kyma, kymaErr := d.userKyma(ctx)
	return apierrors.IsNotFound(err) && kymaErr == nil && len(kyma.Status.Modules) == 0
}

func (d *demo) deleteKyma(ctx context.Context) error {
	kyma := &v1beta2.Kyma{}
	kyma.Namespace, kyma.Name = "kcp-system", second
	return d.Plane.Delete(ctx, kyma)
}

func (d *demo) isClean(ctx context.Context) bool {
	kyma := &v1beta2.Kyma{}
	err := d.Plane.Get(ctx, client.ObjectKey{Namespace: "kcp-system", Name: second}, kyma)
	return apierrors.IsNotFound(err) && len(d.left(ctx)) == 0
}

// left returns the objects of the second runtime that were not there before.
func (d *demo) left(ctx context.Context) []string {
	now, err := d.Runtimes[second].Inventory(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	return slices.DeleteFunc(now, func(object string) bool { return slices.Contains(d.before, object) })
}
