package installation

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// kept is one installer for several calls, as an operator has it, with a clock of its own.
type kept struct {
	*world

	installer *installation.Installer
	now       time.Time
}

// newKept is ready.
func newKept(t *testing.T, plane *apiserver.ControlPlane, name string, change func(*installation.Options)) *kept {
	t.Helper()
	k := &kept{world: newWorld(t, plane, name), now: time.Now()}
	k.opts.NoCanary, k.opts.Now = false, func() time.Time { return k.now }
	change(&k.opts)
	k.installer = k.world.installer()
	k.look()
	k.available(1)
	if !k.opts.Informer { // Nothing calls an informer.
		k.endpoint()
	}
	if status := k.look(); status.State != installation.Ready {
		t.Fatalf("got %+v, want it ready", status)
	}
	k.since()
	k.readSince()
	return k
}

func (k *kept) look() installation.Status {
	k.t.Helper()
	status, err := k.installer.Install(k.t.Context(), k.runtime)
	rig.NoError(k.t, err)
	return status
}

func whatIsUnchangedCostsThreeReads(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	k := newKept(t, plane, "unchanged", func(*installation.Options) {})
	if status := k.look(); status.State != installation.Ready || status.Available != 1 {
		t.Errorf("got %+v, want it ready", status)
	}
	if writes := k.since(); writes != nil {
		t.Errorf("writes without a change: %v", writes)
	}
	want := []string{"Deployment", "EndpointSliceList", "ValidatingWebhookConfiguration"}
	same(t, "reads", want, k.readSince())
	without := k.runtime
	without.Secret = nil
	status, unchanged, err := k.installer.Unchanged(t.Context(), without)
	if err != nil || !unchanged || status.Available != 1 {
		t.Errorf("without the Secret: got %+v, %t, %v, want it unchanged", status, unchanged, err)
	}
	same(t, "reads without the Secret", want, k.readSince())
	without.Watches = append(without.Watches, watchFor("second"))
	if _, unchanged, err := k.installer.Unchanged(t.Context(), without); err != nil || unchanged {
		t.Errorf("with another watch: unchanged %t, %v", unchanged, err)
	}
}

func aNewManagerRestartsNothing(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	k := newKept(t, plane, "managers", func(*installation.Options) {})
	before := k.deployment()
	k.runtime.Watches = append(k.runtime.Watches, watchFor("second"))
	if status := k.look(); status.State != installation.Ready {
		t.Errorf("got %+v, want it ready", status)
	}
	if after := k.deployment(); after.Generation != before.Generation {
		t.Errorf("the Deployment is changed: %s", cmp.Diff(before.Spec, after.Spec))
	}
	if managers := k.managers(); managers != "first\nsecond\n" {
		t.Errorf("managers: %q", managers)
	}
	same(t, "webhooks", []string{"canary", "default.first", "default.second"}, slices.Sorted(slices.Values(k.webhooks())))
	env, pod := k.environment(), before.Spec.Template.Spec
	if env["MANAGERS_FILE"] != pod.Containers[0].VolumeMounts[1].MountPath+"/managers" ||
		pod.Volumes[1].ConfigMap.Name != "runtime-watcher-managers" {
		t.Errorf("the agent reads %q of %+v", env["MANAGERS_FILE"], pod.Volumes)
	}
}

// A running agent would send heartbeats for a manager that is gone.
func aRemovedManagerRestarts(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	k := newKept(t, plane, "removed", func(*installation.Options) {})
	first := k.deployment().Generation
	k.runtime.Watches = []watch.Watch{watchFor("second")}
	k.look()
	second := k.deployment()
	if second.Generation == first || k.managers() != "second\n" {
		t.Errorf("the agents go on with a manager that is gone, and have %q", k.managers())
	}
	k.answer(1)
	for range 3 {
		k.look()
		k.now = k.now.Add(time.Hour)
	}
	k.installer = k.world.installer() // Another process, without memory.
	k.look()
	if again := k.deployment(); again.Generation != second.Generation {
		t.Errorf("they are restarted again: %s", cmp.Diff(second.Spec, again.Spec))
	}
	k.runtime.Watches = []watch.Watch{watchFor("third")}
	k.look()
	if again := k.deployment(); again.Generation == second.Generation {
		t.Error("they are not restarted a second time")
	}
}

// theSecondInstallerIsRefused, also in another namespace: webhook configuration and role have one
// name in a runtime. So is a webhook beside an informer.
func theSecondInstallerIsRefused(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	for name, test := range map[string]struct {
		first, second bool // whether they install informers
		namespace     string
	}{
		"same-names":              {false, false, "same-names"},
		"same-configuration":      {false, false, "default"},
		"two-informers":           {true, true, "default"},
		"webhook-beside-informer": {true, false, "default"},
	} {
		t.Run(name, func(t *testing.T) {
			first := newKept(t, plane, name, func(o *installation.Options) { o.Informer = test.first })
			before, role := first.versions(), first.role()
			opts := first.opts
			opts.Owner, opts.Informer, opts.Namespace = "second", test.second, test.namespace
			if opts.Namespace != name {
				opts.Name = "second"
			}
			second := rig.Must(installation.New("agent.example.com/agent:v2", "other.example.com:443", opts))
			r := first.runtime
			r.Secret = newSecretFor(t, name, opts.Name, opts.Namespace)
			r.Watches = []watch.Watch{watchFor("other")}
			for range 2 {
				if _, err := second.Install(t.Context(), r); core.Reason(err) != "owned" || core.IsPermanent(err) {
					t.Errorf("got %v, want it refused", err)
				}
				if status := first.look(); status.State != installation.Ready {
					t.Errorf("got %+v, want the first one ready", status)
				}
			}
			if status, err := second.Uninstall(t.Context(), r); err != nil || status.State != installation.Removed {
				t.Errorf("uninstall: got %+v, %v, want that nothing is left to remove", status, err)
			}
			if diff := cmp.Diff(before, first.versions()); diff != "" || (first.role() == nil) != (role == nil) {
				t.Errorf("the second one has changed (-before +after):\n%s", diff)
			}
		})
	}
}

// pullSecretIs wants the copy of the pull secret to be there after a call of Install, or not.
func (k *kept) pullSecretIs(installer *installation.Installer, r installation.Runtime, there bool) {
	k.t.Helper()
	if _, err := installer.Install(k.t.Context(), r); err != nil {
		k.t.Fatal(err)
	}
	err := k.client.Get(k.t.Context(), client.ObjectKey{Namespace: "names", Name: "my-agent-pull"}, &corev1.Secret{})
	if apierrors.IsNotFound(err) == there {
		k.t.Errorf("the copy of the pull secret: %v, want it to be there: %t", err, there)
	}
}

// allNamesAreSet installs twice into one namespace, with all names and settings of a pod.
func allNamesAreSet(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	k := newKept(t, plane, "names", func(*installation.Options) {})
	opts := k.opts
	opts.Name, opts.ConfigurationName = "my-agent", "my-webhooks"
	opts.Owner, opts.PriorityClassName = "me", "system-cluster-critical"
	opts.ImagePullSecrets = []string{"pull"}
	opts.Resources = &corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
	}
	installer := rig.Must(installation.New("agent.example.com/agent:v1", "", opts))
	r := k.runtime
	r.Secret, r.ControlPlane = newSecretFor(t, "names", "my-agent", "names"), "gateway.example.com:9443"
	for _, r.PullSecret = range [][]byte{[]byte(`{"auths":{}}`), []byte(`{"auths":{"registry.example.com":{}}}`)} {
		if _, err := installer.Install(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		pull := &corev1.Secret{}
		k.get("my-agent-pull", pull)
		same(t, "pull secret", map[string][]byte{".dockerconfigjson": r.PullSecret}, pull.Data)
	}
	for _, wrong := range []string{"no JSON", `"` + strings.Repeat("x", 64<<10) + `"`} {
		broken := r
		broken.PullSecret = []byte(wrong)
		if _, err := installer.Install(t.Context(), broken); core.Reason(err) != "invalid_runtime" {
			t.Errorf("a pull secret of %d bytes: %v, want the reason invalid_runtime", len(wrong), err)
		}
	}
	deployment := &appsv1.Deployment{}
	k.get("my-agent", deployment)
	k.get("my-agent-tls", &corev1.Secret{})
	k.get("my-agent-managers", &corev1.ConfigMap{})
	service := &corev1.Service{}
	k.get("my-agent", service)
	pod := deployment.Spec.Template
	want := corev1.PodSpec{
		PriorityClassName: "system-cluster-critical", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}, {Name: "my-agent-pull"}},
		ServiceAccountName: "my-agent",
	}
	have := corev1.PodSpec{
		PriorityClassName: pod.Spec.PriorityClassName, ImagePullSecrets: pod.Spec.ImagePullSecrets,
		ServiceAccountName: pod.Spec.ServiceAccountName,
	}
	same(t, "pod", want, have)
	if memory := pod.Spec.Containers[0].Resources.Limits.Memory().String(); memory != "128Mi" {
		t.Errorf("memory limit %s", memory)
	}
	if diff := cmp.Diff(service.Spec.Selector, pod.Labels, cmp.FilterPath(func(p cmp.Path) bool {
		return p.String() == "sidecar.istio.io/inject"
	}, cmp.Ignore())); service.Spec.Selector["app.kubernetes.io/name"] != "my-agent" ||
		pod.Labels["app.kubernetes.io/name"] != "my-agent" {
		t.Errorf("the Service selects other pods (-selector +labels):\n%s", diff)
	}
	for _, variable := range pod.Spec.Containers[0].Env {
		if variable.Name == "KCP_ADDR" && variable.Value != "gateway.example.com:9443" {
			t.Errorf("the agents send to %s", variable.Value)
		}
	}
	without := r
	without.PullSecret = nil
	k.pullSecretIs(installer, without, false)
	k.pullSecretIs(installer, r, true)
	if status, err := installer.Uninstall(t.Context(), r); err != nil ||
		status.State != installation.Progressing && status.State != installation.Removed {
		t.Errorf("uninstall: got %+v, %v", status, err)
	}
	left := k.client.Get(t.Context(), client.ObjectKey{Namespace: "names", Name: "my-agent-pull"}, &corev1.Secret{})
	if !apierrors.IsNotFound(left) {
		t.Errorf("the pull secret is left: %v", left)
	}
	if err := k.client.Get(t.Context(), client.ObjectKey{Namespace: "names", Name: installation.Name},
		&appsv1.Deployment{}); err != nil {
		t.Errorf("the other installation of the namespace: %v", err)
	}
}
