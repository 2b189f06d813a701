package informer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// watcher returns a Watcher in YAML.
func watcher(name, group, plural, scene string) string {
	return fmt.Sprintf(`
---
kind: Watcher
metadata: {name: %s}
spec:
  manager: %s
  labelsToWatch: {scene: %s}
  resourceToWatch: {group: %q, version: "*", resource: %s}
`, name, manager, scene, group, plural)
}

// settings returns those of an agent with a service account that may list and watch the given
// resources, and nothing else.
func settings(t *testing.T, plane *apiserver.ControlPlane, name, watchers string, rules ...rbacv1.PolicyRule) map[string]string {
	t.Helper()
	env := map[string]string{"WATCHERS": watchers, "HEARTBEAT_INTERVAL": "1s", "KCP_SERVER_NAME": "localhost"}
	lab.GrantWatch(t, plane, name, env, rules...)
	return env
}

func listAndWatch(group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"list", "watch"}}
}

// A real agent with the informer as its source: a change leads to a reconcile, and the fleet knows
// whether the watch works. Nothing of a webhook is there.
func TestAgent(t *testing.T) {
	plane := sharedPlane(t)
	c := plane.Client
	gadgets := lab.Definition(group, "gadgets", "Gadget")
	define(t, c, gadgets)
	pki := lab.NewPKI(t)
	watched := lab.Must(fleet.New(fleet.Options{}))
	control := lab.StartPlane(t, pki, lab.PlaneOptions{Listener: listener.Options{Fleet: watched}}, manager)
	volume := pki.RuntimeVolume("runtime-1", "runtime-1.example.com")
	env := settings(t, plane, "informer-agent",
		watcher("gadgets", group, "gadgets", "agent")+watcher("configmaps", "", "configmaps", "agent"),
		listAndWatch("", "configmaps"), listAndWatch(group, "gadgets"))
	env["CA_CERT"], env["TLS_CERT"], env["TLS_KEY"] = volume.Paths()
	env["KCP_ADDR"] = control.Addr
	agent := lab.StartAgent(t, volume, control.Addr, lab.AgentOptions{Env: env})
	checked := map[string]string{
		env["WATCHERS"]: "all watches can be established",
		watcher("secrets", "", "secrets", "agent"): "cannot list resource",
		watcher("execs", "", "pods/exec", "agent"): "without subresource",
	}
	for watchers, want := range checked {
		env["WATCHERS"] = watchers
		if got, _ := lab.Check(t, env); !strings.Contains(got, want) || strings.Contains(got, "canary") {
			t.Errorf("agent check prints, without %q or with a canary:\n%s", want, got)
		}
	}
	is := func(state fleet.State, reason string) func() bool {
		return func() bool {
			s := watched.Get("runtime-1", manager)
			return s.State == state && s.Reason == reason
		}
	}
	lab.Eventually(t, patience, "the runtime is fresh", is(fleet.Fresh, ""))
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: "of-the-agent", Labels: selected("agent"),
	}}
	create(t, c, object, widget("Gadget", "of-the-agent", selected("agent"), 1))
	looked := func(namespaced string) func() bool {
		return func() bool {
			look := lab.Look{Runtime: "runtime-1"}
			look.Object.Namespace, look.Object.Name = metav1.NamespaceDefault, namespaced
			return len(control.Started(look)) > 0
		}
	}
	lab.Eventually(t, patience, "a reconcile", looked("of-the-agent"))
	lab.Eventually(t, patience, "both changes are counted", func() bool {
		return agent.Metric("runtime_watcher_agent_informer_changes_total", `decision="accepted"`) == 2
	})
	if agent.Metric("runtime_watcher_agent_informer_last_proof_timestamp_seconds") == 0 {
		t.Error("no proof is measured")
	}
	removed := time.Now()
	remove(t, c, gadgets)
	lab.Eventually(t, patience, "the runtime is degraded", is(fleet.Degraded, reasons.Configuration))
	t.Logf("degraded %v after the end of the definition", time.Since(removed).Round(time.Millisecond))
	for _, replica := range watched.Get("runtime-1", manager).Replicas {
		if text := replica.Heartbeat.ConfigError; !strings.Contains(text, "watch default/gadgets of gadgets."+group) {
			t.Errorf("the heartbeat says %q, want the watch", text)
		}
	}
	if text, err := lab.Get(t.Context(), "http://"+lab.Address(agent.MetricsPort)+"/readyz"); err == nil {
		t.Errorf("the agent is ready: %s", text)
	}
	if agent.Metric("runtime_watcher_agent_informer_failures_total", `reason="not_found"`) == 0 {
		t.Error("no failure is counted")
	}
	if !strings.Contains(agent.Log(), "watch is not established, changes are missed until it is") {
		t.Errorf("the log does not name the fault:\n%s", agent.Log())
	}
	define(t, c, lab.Definition(group, "gadgets", "Gadget"))
	defined := time.Now()
	lab.Eventually(t, patience, "the runtime is fresh again", is(fleet.Fresh, ""))
	t.Logf("fresh %v after the definition came back", time.Since(defined).Round(time.Millisecond))
	agent.AwaitReady()
}
