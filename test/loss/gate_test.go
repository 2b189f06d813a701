package loss

import (
	"fmt"
	"maps"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// loseWatch breaks the way from agents that watch to the API server of the runtime.
func (s *scene) loseWatch(f Fault) {
	switch f.Strength % 3 {
	case 0:
		s.gate.Refuse()
	case 1:
		s.gate.Hold(true)
		s.gate.Cut()
	default:
		s.gate.Freeze()
	}
}

// newSource prepares the runtime for its agents, and returns their settings.
func (s *scene) newSource() map[string]string {
	s.t.Helper()
	if s.with.source == sourceInformer {
		return s.newInformer()
	}
	s.canary = lab.NewCanary(s.t, s.plane, s.name)
	env := maps.Clone(s.canary.Env)
	env["CANARY_INTERVAL"] = canaryInterval.String()
	return env
}

// newInformer opens the way to the API server of the runtime, and grants the right to watch.
func (s *scene) newInformer() map[string]string {
	s.t.Helper()
	s.gate = lab.Must(lab.NewRelay(lab.Address(lab.FreePort(s.t)), 0, strings.Trim(strings.TrimPrefix(s.plane.Config.Host, "https:"), "/")))
	s.t.Cleanup(s.gate.Close)
	env := map[string]string{"WATCHERS": s.watcher()}
	lab.GrantWatch(s.t, s.plane, s.name, env, rbacv1.PolicyRule{
		APIGroups: []string{lab.Widgets().Group}, Resources: []string{lab.Widgets().Resource}, Verbs: []string{"list", "watch"},
	})
	env["INFORMER_API_SERVER"] = "https://" + s.gate.Addr()
	return env
}

// watcher returns the Watcher of the agents, in YAML.
func (s *scene) watcher() string {
	widgets := lab.Widgets()
	return fmt.Sprintf(`
kind: Watcher
metadata: {name: %s}
spec:
  manager: %s
  labelsToWatch: {%s: %s}
  resourceToWatch: {group: %s, version: %s, resource: %s}
`, s.name, manager, label, s.name, widgets.Group, widgets.Version, widgets.Resource)
}
