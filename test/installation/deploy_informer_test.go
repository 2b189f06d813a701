package installation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// TestDeployInformer applies the manifests of an agent that watches with kubectl alone, from a folder
// that needs nothing of the repository. An agent runs with their settings, and with their rights.
func TestDeployInformer(t *testing.T) {
	runtime := startRuntime(t)
	example := copyManifests(t, "SOURCE=informer")
	kubectl(t, runtime, "apply", "--server-side", "-f", "controlplane/config/agent/namespace.yaml")
	for _, folder := range []string{"deploy/example-informer", example} {
		out := kubectl(t, runtime, "apply", "--server-side", "--validate=strict", "--dry-run=server", "-k", folder)
		if strings.Contains(out, "Warning") {
			t.Errorf("the API server warns of %s:\n%s", folder, out)
		}
	}
	podsAreRestricted(t, runtime, example)
	manifestsWatch(t, runtime)
	installWatchesTheSame(t, runtime, example)
}

// manifestsWatch runs an agent with the settings of the Deployment and the token of its account.
func manifestsWatch(t *testing.T, runtime *apiserver.ControlPlane) {
	t.Helper()
	settings := settingsOf(t, runtime)
	token := tokenOf(t, runtime)
	hasNoOtherRights(t, runtime, token)

	dir := t.TempDir()
	env := map[string]string{
		"INFORMER_API_SERVER": runtime.Config.Host, "INFORMER_TOKEN_FILE": filepath.Join(dir, "token"),
		"INFORMER_CA_CERT": filepath.Join(dir, "ca.crt"), "KCP_SERVER_NAME": "localhost",
	}
	for path, text := range map[string]string{
		env["INFORMER_TOKEN_FILE"]: token, env["INFORMER_CA_CERT"]: string(runtime.Config.CAData),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"SOURCE", "WATCHERS", "EXCLUDED_NAMESPACES"} {
		env[name] = settings[name]
	}
	pki := rig.NewPKI(t)
	control := rig.StartPlane(t, pki, rig.PlaneOptions{}, "my-operator")
	agent := rig.StartAgent(t, pki.RuntimeVolume("runtime-1", "runtime-1.example.com"), control.Addr, rig.AgentOptions{Env: env})
	defer agent.Kill()

	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "watched", Labels: map[string]string{"watched": "true"}},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}},
			},
		},
	}
	if err := runtime.Client.Create(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, patience, "a reconcile", func() bool {
		return len(control.Started(rig.Look{
			Runtime: "runtime-1", Object: types.NamespacedName{Namespace: "default", Name: "watched"},
		})) > 0
	})
}

// settingsOf returns the variables of the agent's container.
func settingsOf(t *testing.T, runtime *apiserver.ControlPlane) map[string]string {
	t.Helper()
	var deployment appsv1.Deployment
	if err := runtime.Client.Get(t.Context(), key(installation.Name), &deployment); err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, variable := range deployment.Spec.Template.Spec.Containers[0].Env {
		settings[variable.Name] = variable.Value
	}
	return settings
}

// tokenOf returns a token of the agent's account.
func tokenOf(t *testing.T, runtime *apiserver.ControlPlane) string {
	t.Helper()
	account := &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: installation.DefaultNamespace, Name: installation.Name},
	}
	request := &authenticationv1.TokenRequest{}
	if err := runtime.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// hasNoOtherRights fails if the account has a right beyond its watches.
func hasNoOtherRights(t *testing.T, runtime *apiserver.ControlPlane, token string) {
	t.Helper()
	config := rest.AnonymousClientConfig(runtime.Config)
	config.BearerToken = token
	as, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := as.List(t.Context(), &corev1.SecretList{}); !apierrors.IsForbidden(err) {
		t.Errorf("the agent lists Secrets: %v", err)
	}
	if err := as.List(t.Context(), &appsv1.DeploymentList{}); err != nil {
		t.Errorf("the agent does not list Deployments: %v", err)
	}
}

// installWatchesTheSame compares the manifests with the objects of an installer that watches.
func installWatchesTheSame(t *testing.T, runtime *apiserver.ControlPlane, example string) {
	t.Helper()
	kubectl(t, runtime, "apply", "--server-side", "--force-conflicts", "--field-manager="+"runtime-watcher-installation",
		"-k", example)
	byHand, role := objects(t, runtime), informerRole(t, runtime)

	installer, err := installation.New("agent.example.com/runtime-watcher-agent:v0.0.0", "control-plane.example.com:443",
		installation.Options{Source: installation.SourceInformer})
	if err != nil {
		t.Fatal(err)
	}
	watches := []admission.Watch{watch("my-operator")}
	watches[0].Resource.Group, watches[0].Resource.Resource = "apps", "deployments"
	if _, err := installer.Install(t.Context(), installation.Runtime{
		ID: "runtime-1", Client: runtime.Client, Watches: watches,
		Secret: newSecretOfOnePair(t, "runtime-1", installation.DefaultNamespace),
	}); err != nil {
		t.Fatal(err)
	}
	installed := objects(t, runtime)
	delete(installed, "Secret/"+secretName)
	delete(installed, "ConfigMap/runtime-watcher-managers")
	for _, all := range []map[string]map[string]any{byHand, installed} {
		withoutManagers(all["Deployment/"+installation.Name], "WATCHERS", "EXCLUDED_NAMESPACES")
	}
	if diff := cmp.Diff(byHand, installed); diff != "" {
		t.Errorf("deploy/example-informer and Install differ (-kubectl +Install):\n%s", diff)
	}
	if diff := cmp.Diff(role.Rules, informerRole(t, runtime).Rules); diff != "" {
		t.Errorf("rights differ (-kubectl +Install):\n%s", diff)
	}
}

func informerRole(t *testing.T, runtime *apiserver.ControlPlane) *rbacv1.ClusterRole {
	t.Helper()
	role := &rbacv1.ClusterRole{}
	if err := runtime.Client.Get(t.Context(), client.ObjectKey{Name: "runtime-watcher-informer"}, role); err != nil {
		t.Fatal(err)
	}
	return role
}
