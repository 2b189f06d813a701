package chaos_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/chaos"
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
	env["CANARY_INTERVAL"] = canary.String()
	return env
}

// newInformer opens the way to the API server of the runtime, and grants the right to watch.
func (s *scene) newInformer() map[string]string {
	s.t.Helper()
	leaf, err := s.pki.CA.Server("api-server", testpki.Options{})
	s.must(err)

	s.gate, err = chaos.NewGate(s.plane.Config, leaf.TLS())
	s.must(err)
	s.t.Cleanup(s.gate.Close)

	dir := s.t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	s.must(os.WriteFile(token, []byte(s.newToken()), 0o600))
	s.must(os.WriteFile(ca, s.pki.CA.PEM(), 0o600))
	return map[string]string{
		"SOURCE": "informer", "WATCHERS": s.watcher(), "INFORMER_API_SERVER": s.gate.URL(),
		"INFORMER_TOKEN_FILE": token, "INFORMER_CA_CERT": ca,
	}
}

// watcher returns the Watcher of the agents, in YAML.
func (s *scene) watcher() string {
	widgets := chaos.Widgets()
	return fmt.Sprintf(`
kind: Watcher
metadata: {name: %s}
spec:
  manager: %s
  labelsToWatch: {%s: %s}
  resourceToWatch: {group: %s, version: %s, resource: %s}
`, s.name, manager, label, s.name, widgets.Group, widgets.Version, widgets.Resource)
}

// newToken returns the token of a service account that may list and watch widgets, and no more.
func (s *scene) newToken() string {
	s.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: s.name}}
	for _, object := range []client.Object{
		account,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{chaos.Widgets().Group}, Resources: []string{chaos.Widgets().Resource},
			Verbs: []string{"list", "watch"},
		}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: s.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: s.name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.name, Name: s.name}},
		},
	} {
		s.must(s.plane.Client.Create(s.t.Context(), object))
	}

	request := &authenticationv1.TokenRequest{}
	s.must(s.plane.Client.SubResource("token").Create(s.t.Context(), account, request))
	return request.Status.Token
}
