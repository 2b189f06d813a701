package installation

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// kubectl runs kubectl against a runtime, and returns its output.
func kubectl(t *testing.T, runtime *apiserver.ControlPlane, args ...string) string {
	t.Helper()
	return rig.Kubectl(t, append([]string{"--kubeconfig", runtime.Kubeconfig}, args...)...)
}

// copyManifests copies the manifests into an empty folder, as a user does who installs by hand.
func copyManifests(t *testing.T, settings ...string) (folder string) {
	t.Helper()
	test.NoticeDocuments(t)

	folder = filepath.Join(t.TempDir(), "my-runtime")
	cmd := exec.CommandContext(t.Context(), "make", append([]string{"manifests", "OUT=" + folder}, settings...)...)
	cmd.Dir = test.Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make manifests: %v\n%s", err, out)
	}
	return folder
}

// TestDeploy applies the manifests with kubectl alone, from a folder that needs nothing of the
// repository. They are those of Install, so what it tests of its agents holds for these.
func TestDeploy(t *testing.T) {
	runtime := rig.SharedAPIServer(t, apiserver.Options{})
	example := copyManifests(t)
	informer := copyManifests(t, "SOURCE=informer")
	accepted(t, runtime, "deploy/agent", "deploy/example", example, "deploy/example-informer", informer)
	rig.Same(t, "objects after a dry run", "", kubectl(t, runtime, "get", "all,networkpolicies,leases,roles", "-n", installation.Name,
		"-o", "name"))
	podsAreRestricted(t, runtime, example)
	webhookConfigurationIsPrinted(t, runtime)
	installAppliesTheSame(t, runtime, example, false, watchFor("my-operator"))
	removeAll(t, runtime)
	podsAreRestricted(t, runtime, informer)
	deployments := watchFor("my-operator")
	deployments.Resource.Group = "apps"
	deployments.Resource.Resource = "deployments"
	installAppliesTheSame(t, runtime, informer, true, deployments)
}

// removeAll removes all objects from the namespace, which stays.
func removeAll(t *testing.T, runtime *apiserver.ControlPlane) {
	t.Helper()
	for _, kind := range kinds() {
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": kind[0], "kind": kind[1]}}
		rig.NoError(t, runtime.Client.DeleteAllOf(t.Context(), object, client.InNamespace(installation.Name),
			client.MatchingLabels{"app.kubernetes.io/name": installation.Name}))
	}
}

// accepted applies folders as a dry run.
func accepted(t *testing.T, runtime *apiserver.ControlPlane, folders ...string) {
	t.Helper()
	// Without it, a dry run would find no namespace.
	kubectl(t, runtime, "apply", "--server-side", "-f", "controlplane/config/agent/namespace.yaml")
	for _, folder := range folders {
		out := kubectl(t, runtime, "apply", "--server-side", "--validate=strict", "--dry-run=server", "-k", folder)
		if strings.Contains(out, "Warning") {
			t.Errorf("the API server warns of %s:\n%s", folder, out)
		}
	}
}

// webhookConfigurationIsPrinted prints the configuration with the agent's own program, and applies it.
func webhookConfigurationIsPrinted(t *testing.T, runtime *apiserver.ControlPlane) {
	t.Helper()
	folder := t.TempDir()
	ca := filepath.Join(folder, "ca.crt")
	file := filepath.Join(folder, "webhook.yaml")
	rig.NoError(t, os.WriteFile(ca, rig.NewPKI(t).CA.PEM, 0o600))
	cmd := exec.CommandContext(t.Context(), rig.Build(t, "cmd/agent"), "webhook-configuration", "--ca-cert", ca,
		"--manager", "my-operator", "--resource", "apps/v1/deployments", "--canary", "runtime-watcher/runtime-watcher-canary")
	text, err := cmd.Output()
	rig.NoError(t, err)
	rig.NoError(t, os.WriteFile(file, text, 0o600))
	out := kubectl(t, runtime, "apply", "--server-side", "--validate=strict", "-f", file)
	rig.Same(t, "answer", "validatingwebhookconfiguration.admissionregistration.k8s.io/runtime-watcher serverside-applied\n", out)
	kubectl(t, runtime, "delete", "-f", file)
}

// podsAreRestricted applies the pods under the strictest pod security standard, which the label of
// the namespace requests.
func podsAreRestricted(t *testing.T, runtime *apiserver.ControlPlane, example string) {
	t.Helper()
	kubectl(t, runtime, "apply", "--server-side", "--validate=strict", "-k", example)
	deployment := rig.Stored(t, runtime.Client, key(installation.Name), &appsv1.Deployment{})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: installation.Name, Name: "judged"},
		Spec:       deployment.Spec.Template.Spec,
	}
	rig.NoError(t, runtime.Client.Create(t.Context(), pod.DeepCopy(), client.DryRunAll))
	pod.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = new(true)
	// Else the standard is not enforced, and the check above cannot fail.
	rig.Fails(t, "a pod that may escalate its privileges", runtime.Client.Create(t.Context(), pod, client.DryRunAll))
}

// installAppliesTheSame compares the objects from the manifests with those that Install makes from
// the same manifests.
func installAppliesTheSame(
	t *testing.T, runtime *apiserver.ControlPlane, example string, informer bool, watched watch.Watch,
) {
	t.Helper()
	kubectl(t, runtime, "apply", "--server-side", "--force-conflicts", "--field-manager="+"runtime-watcher-installation",
		"-k", example)
	byHand := objects(t, runtime)
	installer := rig.Must(installation.New(installation.Parts{Image: "agent.example.com/runtime-watcher-agent:v0.0.0", ControlPlane: "control-plane.example.com:443"}, installation.Options{Informer: informer, FormerOwners: []string{"manifests"}}))
	_, err := installer.Install(t.Context(), installation.Runtime{
		ID: "runtime-1", Client: runtime.Client, Watches: []watch.Watch{watched},
		Secret: newSecretOfOnePair(t, "runtime-1", installation.Name),
	})
	rig.NoError(t, err)
	installed := objects(t, runtime)
	if !informer { // The API server enforces these rights.
		rig.Same(t, "rights of the canary", []rbacv1.PolicyRule{{
			APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"},
			ResourceNames: []string{"runtime-watcher-canary"}, Verbs: []string{"patch"},
		}, {
			APIGroups: []string{""}, Resources: []string{"services/proxy"},
			ResourceNames: []string{"https:runtime-watcher:webhook"}, Verbs: []string{"get"},
		}}, rig.Stored(t, runtime.Client, key("runtime-watcher-canary"), &rbacv1.Role{}).Rules)
	}
	delete(installed, "Secret/"+secretName)
	delete(installed, "ConfigMap/runtime-watcher-managers")
	for _, all := range []map[string]map[string]any{byHand, installed} {
		if informer {
			withoutManagers(all["Deployment/"+installation.Name], "WATCHERS", "EXCLUDED_NAMESPACES")
		} else {
			withoutManagers(all["Deployment/"+installation.Name])
		}
	}
	rig.Same(t, example+" (want) and Install (have)", byHand, installed)
}

// objects are those of the namespace, without the fields that an API server sets.
func objects(t *testing.T, runtime *apiserver.ControlPlane) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, item := range listed(t, runtime.Client) {
		if item.GetNamespace() != installation.Name {
			continue
		}
		for _, counted := range []string{"managedFields", "resourceVersion", "generation"} {
			unstructured.RemoveNestedField(item.Object, "metadata", counted)
		}
		for _, own := range []string{"installed-by", "runtime-id"} {
			unstructured.RemoveNestedField(item.Object, "metadata", "annotations", "operator.kyma-project.io/"+own)
		}
		if len(item.GetAnnotations()) == 0 {
			unstructured.RemoveNestedField(item.Object, "metadata", "annotations")
		}
		rig.IndexVariables(item.Object, func(map[string]any) {})
		all[item.GetKind()+"/"+item.GetName()] = item.Object
	}
	var role rbacv1.ClusterRole
	if err := runtime.Client.Get(t.Context(), client.ObjectKey{Name: "runtime-watcher-informer"}, &role); err == nil {
		all["ClusterRole/"+role.Name] = map[string]any{"rules": role.Rules}
	}
	return all
}

// withoutManagers removes the file with the managers, and the setting, which deploy/example has in
// its place. It also removes other settings.
func withoutManagers(deployment map[string]any, others ...string) {
	pod := deployment["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	container := pod["containers"].([]any)[0].(map[string]any)
	pod["volumes"] = pod["volumes"].([]any)[:1]
	container["volumeMounts"] = container["volumeMounts"].([]any)[:1]
	maps.DeleteFunc(container["env"].(map[string]any), func(name string, _ any) bool {
		return strings.HasPrefix(name, "MANAGERS") || slices.Contains(others, name)
	})
}

func kinds() [][2]string {
	return [][2]string{
		{"v1", "ServiceAccount"},
		{"v1", "Secret"},
		{"v1", "ConfigMap"},
		{"v1", "Service"},
		{"apps/v1", "Deployment"},
		{"policy/v1", "PodDisruptionBudget"},
		{"networking.k8s.io/v1", "NetworkPolicy"},
		{"coordination.k8s.io/v1", "Lease"},
		{"rbac.authorization.k8s.io/v1", "Role"},
		{"rbac.authorization.k8s.io/v1", "RoleBinding"},
	}
}

func key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: installation.Name, Name: name}
}

func watchFor(manager core.Manager) watch.Watch {
	w := watch.Watch{Manager: manager}
	w.Name.Namespace, w.Name.Name = "default", string(manager)
	w.Resource.Version = "v1"
	w.Resource.Resource = "configmaps"
	return w
}
