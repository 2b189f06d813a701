package installation

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// theSourceChanges goes from the webhook to the informer and back. At each moment only one of them is
// there.
func theSourceChanges(w *world) {
	w.opts.NoCanary = false
	w.installed()
	withWebhook := names(w.versions())
	w.opts.Informer = true
	w.runtime.Watches = informerWatches()
	w.runtime.Secret = newSecretFor(w.t, w.namespace, "other", w.namespace)
	// No API server would trust its serving certificate.
	delete(w.runtime.Secret, "webhook.crt")
	delete(w.runtime.Secret, "webhook.key")
	status := w.is(w.install(), installation.Progressing)
	rig.Same(w.t, "webhooks", []string(nil), w.webhooks())
	rig.Same(w.t, "former managers", []core.Manager{"first"}, status.Former)
	w.answer(1)
	status = w.is(w.install(), installation.Ready)
	rig.Same(w.t, "replicas", 1, int(status.Replicas))
	rig.Same(w.t, "former managers", []core.Manager(nil), status.Former)
	if left := names(w.versions()); slices.ContainsFunc(left, func(name string) bool { return strings.Contains(name, "canary") }) {
		w.t.Errorf("the canary is still there: %v", left)
	}
	verbs := []string{"list", "watch"}
	rig.Same(w.t, "rules", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: verbs},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: verbs},
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: verbs},
	}, w.role().Rules)
	tenant := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: w.namespace + "-tenant", Labels: map[string]string{"tenant": "yes"},
	}}
	w.watchesWithItsSettings(tenant, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: tenant.Name, Name: "watched", Labels: map[string]string{"informer": "yes"},
	}})
	before := w.versions()
	w.install()
	rig.Same(w.t, "a second time changes something", before, w.versions())
	w.opts.Informer = false
	w.runtime.Watches = []watch.Watch{watchFor("first")}
	w.runtime.Secret = w.newSecret(w.namespace)
	w.opts.Replicas = 2
	w.install()
	w.rollout(stalled())
	w.is(w.install(), installation.Failed)
	rig.Same(w.t, "webhooks while only the informer answers", []string(nil), w.webhooks())
	w.installed()
	rig.Same(w.t, "after the return to the webhook", withWebhook, names(w.versions()))
	w.hasRights(false)
	w.opts.Informer = true
	w.install()
	w.hasRights(true)
	w.uninstall()
	w.hasRights(false)
	rig.Same(w.t, "webhooks", []string(nil), w.webhooks())
}

// hasRights wants the role of the informer to be there, or not.
func (w *world) hasRights(want bool) {
	w.t.Helper()
	rig.Same(w.t, "there are rights of the informer", want, w.role() != nil)
}

// anInformerThatIsUnchangedCostsTwoReads. A change that ends watching is corrected immediately.
func anInformerThatIsUnchangedCostsTwoReads(w *world) {
	w.opts.Informer = true
	w.keep()
	rig.Same(w.t, "available", 1, int(w.is(w.install(), installation.Ready).Available))
	rig.Same(w.t, "writes without a change", []string(nil), w.since())
	rig.Same(w.t, "reads", []string{"ClusterRole", "Deployment"}, w.readSince())
	role := w.role()
	want := slices.Clone(role.Rules)
	role.Rules[0].Verbs = []string{"list"}
	w.drifts(role)
	rig.Same(w.t, "rules", want, w.role().Rules)
	rig.NoError(w.t, w.client.Delete(w.t.Context(), w.role()))
	w.install()
	w.hasRights(true)
	w.install()
	w.since()
	w.install()
	rig.Same(w.t, "writes when all is corrected", []string(nil), w.since())
	generation := w.deployment().Generation
	w.runtime.Watches = []watch.Watch{watchFor("second")}
	w.formerly("first")
	if w.deployment().Generation == generation || w.managers() != "second\n" {
		w.t.Errorf("the agents do not watch for the second manager, and have %q", w.managers())
	}
}

func anInformerHasTheNamesOfTheOptions(w *world) {
	w.opts.Informer = true
	w.opts.Name = "seen"
	w.opts.Owner = "seen.example.com"
	w.keep()
	policy := get(w, "seen-informer", &networkingv1.NetworkPolicy{})
	rig.Same(w.t, "pods of the policy", "seen", policy.Spec.PodSelector.MatchLabels["app.kubernetes.io/name"])
	role := w.role()
	binding := rig.Stored(w.t, w.client, client.ObjectKeyFromObject(role), &rbacv1.ClusterRoleBinding{})
	rig.Same(w.t, "subjects", []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: w.namespace, Name: "seen"}}, binding.Subjects)
	rig.Same(w.t, "label", "seen", role.Labels["app.kubernetes.io/name"])
	rig.Same(w.t, "owner", "seen.example.com", role.Annotations[ownerLabel])
	w.uninstall()
	w.hasRights(false)
}

// oneRoleHasOneInstaller: two installers have one ConfigurationName, and different names. Both have
// read that there is no ClusterRole before the second one makes it.
func oneRoleHasOneInstaller(w *world) {
	w.opts.Informer = true
	w.opts.Name = "loser"
	w.opts.Owner = "loser.example.com"
	opts := w.opts
	opts.Name = "winner"
	opts.Owner = "winner.example.com"
	winner := rig.Must(installation.New(installation.Parts{Image: "agent", ControlPlane: "control-plane.example.com:443"}, opts))
	other := w.runtime

	w.runtime.Client = &interrupted{Client: w.runtime.Client, before: func() {
		_ = rig.Must(winner.Install(w.t.Context(), other))
	}}
	_, err := w.installer().Install(w.t.Context(), w.runtime)
	rig.Fails(w.t, "the installer that comes second", err, "claim ClusterRole")
	rig.Same(w.t, "owner", "winner.example.com", w.role().Annotations[ownerLabel])
	if len(w.role().Rules) == 0 {
		w.t.Error("the role of the first installer has lost its rules")
	}

	// The next call reads whose it is.
	refused(w.t, "the second installer", w.installer(), w.runtime, "owned", "winner.example.com")
}

// interrupted calls before, once, when the first object is created.
type interrupted struct {
	client.Client

	before func()
}

func (i *interrupted) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	if i.before != nil && kindOf(object) != "Namespace" {
		before := i.before
		i.before = nil
		before()
	}
	return i.Client.Create(ctx, object, opts...)
}

// informerWatches need rights for three resources. A subresource cannot be watched.
func informerWatches() []watch.Watch {
	selecting := watchFor("selecting")
	selecting.Resource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	selecting.Selector.Labels = map[string]string{"informer": "yes"}
	selecting.NamespaceSelector = watch.Selector{Labels: map[string]string{"tenant": "yes"}}
	status := watchFor("status")
	status.Resource = schema.GroupVersionResource{Group: "apps", Version: "*", Resource: "deployments"}
	status.Field = core.FieldStatus
	return []watch.Watch{status, selecting}
}

func (w *world) role() *rbacv1.ClusterRole {
	w.t.Helper()
	return found(w, "", w.namespace+"-informer", &rbacv1.ClusterRole{})
}

// checks runs "agent check" with a watch of another resource than ConfigMaps.
func (w *world) checks(env map[string]string, want, resource string) {
	w.t.Helper()
	env = maps.Clone(env)
	env["WATCHERS"] = strings.ReplaceAll(env["WATCHERS"], "configmaps", resource)
	if got, _ := rig.Check(w.t, env); !strings.Contains(got, want) || strings.Contains(got, "canary") {
		w.t.Errorf("agent check prints, without %q or with a canary:\n%s", want, got)
	}
}

// watchesWithItsSettings runs an agent with the settings of the Deployment and the token of its
// account. A change of the last object reconciles.
func (w *world) watchesWithItsSettings(objects ...client.Object) {
	w.t.Helper()
	pod, container := w.pod()
	if !*pod.AutomountServiceAccountToken {
		w.t.Error("the agent has no token")
	}
	managers := strings.Fields(w.managers())
	env := map[string]string{"CONTROL_PLANE_SERVER_NAME": "localhost", "MANAGERS": strings.Join(managers, ",")}
	rig.UseAccount(w.t, w.plane, client.ObjectKey{Namespace: w.namespace, Name: pod.ServiceAccountName}, "INFORMER", env)
	for _, variable := range container.Env {
		if slices.Contains([]string{"SOURCE", "WATCHERS", "EXCLUDED_NAMESPACES"}, variable.Name) {
			env[variable.Name] = strings.ReplaceAll(variable.Value, "$$", "$")
		}
	}
	pki := rig.NewPKI(w.t)
	control := rig.StartPlane(w.t, pki, rig.PlaneOptions{}, core.Manager(managers[0]), core.Manager(managers[1]))
	volume := pki.RuntimeVolume("runtime-1", "runtime-1.example.com")
	agent := rig.StartAgent(w.t, volume, control.Addr, rig.AgentOptions{Env: env})
	defer agent.Kill()
	maps.Copy(env, rig.VolumeEnv(volume))
	env["CONTROL_PLANE_ADDRESS"] = control.Addr
	w.checks(env, "all watches can be established", "configmaps")
	w.checks(env, "cannot list resource", "secrets")
	for _, object := range objects {
		rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), object))
	}
	watched := client.ObjectKeyFromObject(objects[len(objects)-1])
	rig.Eventually(w.t, rig.Patience, "a reconcile", func() bool {
		return len(control.Started(rig.Look{Runtime: "runtime-1", Object: watched})) > 0
	})
}
