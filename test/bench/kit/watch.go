package kit

import (
	"fmt"
	"maps"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// WatchConfigMaps starts the agent of a runtime of that name, for its ConfigMaps with the label
// scene of that value. It returns when a webhook or, with SOURCE=informer, the agent watches them.
func WatchConfigMaps(
	t testing.TB, runtime *apiserver.ControlPlane, pki *lab.PKI, manager core.Manager, address, name string, env map[string]string,
) {
	t.Helper()
	env, informs := maps.Clone(env), env["SOURCE"] == "informer"
	if informs {
		env["WATCHERS"] = fmt.Sprintf("kind: Watcher\nmetadata: {name: scene}\nspec:\n  manager: %s\n"+
			"  labelsToWatch: {scene: %s}\n  resourceToWatch: {group: \"\", version: v1, resource: configmaps}\n", manager, name)
		lab.GrantWatch(t, runtime, name, env, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"},
		})
	}
	agent := lab.StartAgent(t, pki.RuntimeVolume(name, name+".example.com"), address, lab.AgentOptions{Env: env})
	if informs {
		return
	}
	// With the default timeout, a busy machine lets writes pass that were not reviewed.
	labels, opts := map[string]string{"scene": name}, admission.ConfigurationOptions{Timeout: 10 * time.Second}
	lab.Register(t, runtime, name, agent.WebhookPort, pki.CA.PEM, opts, watch.Watch{
		Name: types.NamespacedName{Namespace: "scene", Name: name}, Manager: manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Selector: watch.Selector{Labels: labels},
	})
	lab.AwaitReviews(t, runtime, agent, labels)
}
