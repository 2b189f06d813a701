package installation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// The runbook gives one runtime a proxy. The installer keeps what it adds.
func TestAProxyByHandStays(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	w := newWorld(t, plane, "by-hand")
	w.installed()
	commands := rig.Runbook(t, "#### A proxy for one runtime")[0]
	commands, _, _ = strings.Cut(commands, "skr rollout status") // No controller of Deployments runs.
	rig.Shell(t, rig.ShortKubectl(t, "skr", plane.Kubeconfig, w.namespace), commands)

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
	ca := filepath.Join(folder, "ca.crt")
	watchers := filepath.Join(folder, "watchers.json")
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
	functions := rig.ShortKubectl(t, "kubectl", runtime.Kubeconfig, installation.Name) + `
kcp() { cat ` + watchers + `; }
skr() {
	if [ "$1" != exec ]; then kubectl "$@"; return; fi
	[ "$2 $3 $4 $5" = "-i deploy/runtime-watcher -- /agent" ]
	shift 5
	` + rig.Build(t, "cmd/agent") + ` "${@//\/etc\/runtime-watcher\/tls\/ca.crt/` + strings.ReplaceAll(ca, "/", `\/`) + `}"
}
`
	commands := rig.Runbook(t, "#### Webhook configuration by hand")[0]
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	for _, fault := range []string{
		`[{"op": "remove", "path": "/webhooks"}]`,
		`[{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 1}]`,
	} {
		rig.Shell(t, functions, commands)
		kubectl(t, runtime, "patch", "validatingwebhookconfiguration", "runtime-watcher", "--type=json", "-p", fault)
		rig.Shell(t, functions, commands)

		rig.NoError(t, runtime.Client.Get(t.Context(), client.ObjectKey{Name: "runtime-watcher"}, configuration))
		if have := len(configuration.Webhooks); have < 2 || *configuration.Webhooks[0].TimeoutSeconds == 1 {
			t.Errorf("%s: the configuration has %d webhooks, want those of the Watcher as they were", fault, have)
		}
	}
	rig.NoError(t, runtime.Client.Delete(t.Context(), configuration))
}
