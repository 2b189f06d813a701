package installation

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// commandsBelow returns the commands below a heading of the runbooks.
func commandsBelow(t *testing.T, heading string) string {
	t.Helper()
	text := string(test.Read(t, "docs/operations/runbooks.md"))
	_, rest, found := strings.Cut(text, "\n"+heading+"\n")
	commands := regexp.MustCompile("(?s)^.*?```sh\n(.*?)```").FindStringSubmatch(rest)
	if !found || commands == nil {
		t.Fatalf("the runbooks have no commands below %q", heading)
	}
	return commands[1]
}

// runbook runs commands of the runbooks in an empty folder. The functions are in the place of their
// short commands.
func runbook(t *testing.T, functions, commands string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", functions+commands)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", commands, err, out)
	}
	return string(out)
}

// shortKubectl is the short command skr for a namespace of a runtime.
func shortKubectl(t *testing.T, runtime *apiserver.ControlPlane, namespace string) string {
	t.Helper()
	assets, err := apiserver.Assets(t.Context(), apiserver.AssetsOptions{Kubectl: true})
	if err != nil {
		rig.Missing(t, "needs kubectl, which test/lab/cmd/assets builds: %v", err)
	}
	return "skr() { " + filepath.Join(assets, "kubectl") + " --kubeconfig " + runtime.Kubeconfig + " -n " + namespace + ` "$@"; }` + "\n"
}

// The runbook gives one runtime a proxy. The installer keeps what it adds.
func TestAProxyByHandStays(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	w := newWorld(t, plane, "by-hand")
	w.installed()
	commands := commandsBelow(t, "#### A proxy for one runtime")
	commands, _, _ = strings.Cut(commands, "skr rollout status") // No controller of Deployments runs.
	runbook(t, shortKubectl(t, plane, w.namespace), commands)

	w.install()
	w.answer(1)
	w.runtime.Verify = true // All objects are applied.
	w.is(w.install(), installation.Ready)

	rig.Same(t, "proxy", "http://proxy.example:3128", w.environment()["CONTROL_PLANE_PROXY"])
	var policies networkingv1.NetworkPolicyList
	rig.NoError(t, plane.Client.List(t.Context(), &policies, client.InNamespace(w.namespace)))
	var names []string
	for _, policy := range policies.Items {
		names = append(names, policy.Name)
	}
	rig.Same(t, "network policies", []string{"egress-to-proxy", installation.Name}, names)
}

// The runbook applies the webhook configuration again, after it was emptied or changed by another
// program. Without its deletion, a change would be a conflict.
func TestAConfigurationByHandIsAppliedAgain(t *testing.T) {
	runtime := rig.SharedAPIServer(t, apiserver.Options{})
	folder := t.TempDir()
	ca, watchers := filepath.Join(folder, "ca.crt"), filepath.Join(folder, "watchers.json")
	rig.NoError(t, os.WriteFile(ca, rig.NewPKI(t).CA.PEM, 0o600))
	rig.NoError(t, os.WriteFile(watchers, []byte(`{"apiVersion": "v1", "kind": "List", "items": [{
		"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Watcher",
		"metadata": {"name": "deployments", "namespace": "kcp-system"},
		"spec": {
			"manager": "my-operator", "resourceToWatch": {"group": "apps", "version": "v1", "resource": "deployments"},
			"matchConditions": [{"name": "a", "expression": "true"}]
		}
	}]}`), 0o600))

	// The pod is this machine.
	functions := strings.Replace(shortKubectl(t, runtime, installation.Name), "skr()", "kubectl()", 1) + `
kcp() { cat ` + watchers + `; }
skr() {
	if [ "$1" != exec ]; then kubectl "$@"; return; fi
	[ "$2 $3 $4 $5" = "-i deploy/runtime-watcher -- /agent" ]
	shift 5
	` + rig.Build(t, "cmd/agent") + ` "${@//\/etc\/runtime-watcher\/tls\/ca.crt/` + strings.ReplaceAll(ca, "/", `\/`) + `}"
}
`
	commands := commandsBelow(t, "#### Webhook configuration by hand")
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	for _, fault := range []string{
		`[{"op": "remove", "path": "/webhooks"}]`,
		`[{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 1}]`,
	} {
		runbook(t, functions, commands)
		kubectl(t, runtime, "patch", "validatingwebhookconfiguration", "runtime-watcher", "--type=json", "-p", fault)
		runbook(t, functions, commands)

		rig.NoError(t, runtime.Client.Get(t.Context(), client.ObjectKey{Name: "runtime-watcher"}, configuration))
		if have := len(configuration.Webhooks); have < 2 || *configuration.Webhooks[0].TimeoutSeconds == 1 {
			t.Errorf("%s: the configuration has %d webhooks, want those of the Watcher as they were", fault, have)
		}
	}
	rig.NoError(t, runtime.Client.Delete(t.Context(), configuration))
}
