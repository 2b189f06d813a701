package installation

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// theSourceChanges goes from the webhook to the informer and back. At each moment only one of them is
// there.
func theSourceChanges(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "source")
	w.opts.NoCanary = false
	w.installed()
	withWebhook := names(w.versions())
	w.opts.Informer = true
	w.runtime.Watches = informerWatches()
	w.runtime.Secret = withoutServing(t, w.namespace)
	status := w.install()
	if w.webhooks() != nil || status.State != installation.Progressing {
		t.Errorf("%+v with webhooks %v, want that they are gone first", status, w.webhooks())
	}
	if !slices.Equal(status.Former, []core.Manager{"first"}) {
		t.Errorf("former managers %v, want the first", status.Former)
	}
	w.answer(1)
	if status := w.install(); status.State != installation.Ready || len(status.Former) > 0 || status.Replicas != 1 {
		t.Errorf("%+v, want it ready with one replica", status)
	}
	if left := names(w.versions()); slices.ContainsFunc(left, func(name string) bool { return strings.Contains(name, "canary") }) {
		t.Errorf("the canary is still there: %v", left)
	}
	w.hasLeastRights()
	tenant := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: w.namespace + "-tenant", Labels: map[string]string{"tenant": "yes"},
	}}
	w.watchesWithItsSettings(plane, tenant, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: tenant.Name, Name: "watched", Labels: map[string]string{"informer": "yes"},
	}})
	before := w.versions()
	w.install()
	same(t, "a second time changes something", before, w.versions())
	w.opts.Informer = false
	w.runtime.Watches = []watch.Watch{watchFor("first")}
	w.runtime.Secret = newSecret(t, w.namespace, w.namespace)
	w.opts.Replicas = 2
	w.install()
	w.rollout(stalled())
	if status := w.install(); status.State != installation.Failed || w.webhooks() != nil {
		t.Errorf("%+v with webhooks %v, want none while only the informer answers", status, w.webhooks())
	}
	w.installed()
	same(t, "after the return to the webhook", withWebhook, names(w.versions()))
	if w.role() != nil {
		t.Error("the rights of the informer are still there")
	}
	w.opts.Informer = true
	w.install()
	if w.role() == nil {
		t.Fatal("the informer has no rights")
	}
	w.uninstall()
	if w.role() != nil || w.webhooks() != nil {
		t.Error("rights or webhooks are left behind")
	}
}

func asInformer(o *installation.Options) { o.Informer = true }

// anInformerThatIsUnchangedCostsTwoReads. A change that ends watching is corrected at once.
func anInformerThatIsUnchangedCostsTwoReads(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	k := newKept(t, plane, "quiet", asInformer)
	if status := k.look(); status.State != installation.Ready || status.Available != 1 {
		t.Errorf("got %+v, want it ready", status)
	}
	if writes := k.since(); writes != nil {
		t.Errorf("writes without a change: %v", writes)
	}
	same(t, "reads", []string{"ClusterRole", "Deployment"}, k.readSince())
	role := k.role()
	want := slices.Clone(role.Rules)
	role.Rules[0].Verbs = []string{"list"}
	rig.NoError(t, k.client.Update(t.Context(), role))
	k.look()
	same(t, "rules", want, k.role().Rules)
	rig.NoError(t, k.client.Delete(t.Context(), k.role()))
	k.look()
	if k.role() == nil {
		t.Error("the informer has no rights")
	}
	k.look()
	k.since()
	k.look()
	if writes := k.since(); writes != nil {
		t.Errorf("all is corrected, and written is %v", writes)
	}
	generation := k.deployment().Generation
	k.runtime.Watches = []watch.Watch{watchFor("second")}
	if status := k.look(); !slices.Equal(status.Former, []core.Manager{"first"}) {
		t.Errorf("former managers %v, want the first", status.Former)
	}
	if k.deployment().Generation == generation || k.managers() != "second\n" {
		t.Errorf("the agents do not watch for the second manager, and have %q", k.managers())
	}
}

func anInformerHasTheNamesOfTheOptions(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	k := newKept(t, plane, "informer-names", func(o *installation.Options) {
		asInformer(o)
		o.Name, o.Owner = "seen", "seen.example.com"
	})
	var policy networkingv1.NetworkPolicy
	k.get("seen-informer", &policy)
	if app := policy.Spec.PodSelector.MatchLabels["app.kubernetes.io/name"]; app != "seen" {
		t.Errorf("the policy is for pods of %q", app)
	}
	role, binding := k.role(), &rbacv1.ClusterRoleBinding{}
	rig.NoError(t, k.client.Get(t.Context(), client.ObjectKeyFromObject(role), binding))
	want := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: k.namespace, Name: "seen"}}
	same(t, "subjects", want, binding.Subjects)
	if role.Labels["app.kubernetes.io/name"] != "seen" ||
		role.Annotations["operator.kyma-project.io/installed-by"] != "seen.example.com" {
		t.Errorf("got %+v, want the names of the options", role.ObjectMeta)
	}
	k.uninstall()
	if k.role() != nil {
		t.Error("the role is left behind")
	}
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

// withoutServing returns a Secret with a certificate that no API server would trust.
func withoutServing(t *testing.T, runtime string) map[string][]byte {
	t.Helper()
	secret := newSecret(t, runtime, "other")
	delete(secret, "webhook.crt")
	delete(secret, "webhook.key")
	return secret
}

func (w *world) role() *rbacv1.ClusterRole {
	w.t.Helper()
	role := &rbacv1.ClusterRole{}
	err := w.client.Get(w.t.Context(), client.ObjectKey{Name: w.namespace + "-informer"}, role)
	if apierrors.IsNotFound(err) {
		return nil
	}
	rig.NoError(w.t, err)
	return role
}

// hasLeastRights compares the rules, which the API server enforces.
func (w *world) hasLeastRights() {
	w.t.Helper()
	verbs := []string{"list", "watch"}
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: verbs},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: verbs},
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: verbs},
	}
	same(w.t, "rules", want, w.role().Rules)
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
func (w *world) watchesWithItsSettings(plane *apiserver.ControlPlane, objects ...client.Object) {
	w.t.Helper()
	pod := w.deployment().Spec.Template.Spec
	if !*pod.AutomountServiceAccountToken {
		w.t.Error("the agent has no token")
	}
	managers := strings.Fields(w.managers())
	env := map[string]string{"KCP_SERVER_NAME": "localhost", "MANAGERS": strings.Join(managers, ",")}
	rig.UseAccount(w.t, plane, client.ObjectKey{Namespace: w.namespace, Name: pod.ServiceAccountName}, "INFORMER", env)
	for _, variable := range pod.Containers[0].Env {
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
	env["KCP_ADDR"] = control.Addr
	w.checks(env, "all watches can be established", "configmaps")
	w.checks(env, "cannot list resource", "secrets")
	for _, object := range objects {
		rig.NoError(w.t, plane.Client.Create(w.t.Context(), object))
	}
	watched := client.ObjectKeyFromObject(objects[len(objects)-1])
	rig.Eventually(w.t, patience, "a reconcile", func() bool {
		return len(control.Started(rig.Look{Runtime: "runtime-1", Object: watched})) > 0
	})
}
