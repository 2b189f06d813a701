package loss

import (
	"fmt"
	"maps"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

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
	leaf := lab.Must(s.pki.CA.Server("api-server", testpki.Options{}))
	s.gate = lab.Must(NewGate(lab.Address(lab.FreePort(s.t)), s.plane.Config, leaf.TLS))
	s.t.Cleanup(s.gate.Close)
	ca, _, _ := s.pki.Volume(leaf).Paths()
	env := map[string]string{"WATCHERS": s.watcher()}
	lab.GrantWatch(s.t, s.plane, s.name, env, rbacv1.PolicyRule{
		APIGroups: []string{lab.Widgets().Group}, Resources: []string{lab.Widgets().Resource}, Verbs: []string{"list", "watch"},
	})
	env["INFORMER_API_SERVER"], env["INFORMER_CA_CERT"] = s.gate.URL(), ca
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
