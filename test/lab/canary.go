package lab

import (
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Canary is a Lease, and a service account that may patch it and do nothing else.
type Canary struct {
	Lease types.NamespacedName
	// Env are the settings of an agent with this canary, its interval left out.
	Env map[string]string
}

// NewCanary creates the Lease and the service account in a runtime, both of that name.
func NewCanary(t testing.TB, runtime *apiserver.ControlPlane, name string) *Canary {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: Namespace, Name: name}
	create(t, runtime,
		&coordinationv1.Lease{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: []string{name},
			Verbs: []string{"patch"},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: name}},
		},
	)
	c := &Canary{Lease: types.NamespacedName{Namespace: Namespace, Name: name}, Env: map[string]string{}}
	c.Env["CANARY_LEASE"] = c.Lease.String()
	signIn(t, runtime, name, "CANARY", c.Env)
	return c
}

// signIn creates a service account, and adds the settings of an agent that uses it.
func signIn(t testing.TB, runtime *apiserver.ControlPlane, name, prefix string, env map[string]string) {
	t.Helper()
	create(t, runtime, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}})
	UseAccount(t, runtime, types.NamespacedName{Namespace: Namespace, Name: name}, prefix, env)
}

// UseAccount adds the settings with a prefix by which an agent uses a service account.
func UseAccount(
	t testing.TB, runtime *apiserver.ControlPlane, name types.NamespacedName, prefix string, env map[string]string,
) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	request := &authenticationv1.TokenRequest{}
	NoError(t, runtime.Client.SubResource("token").Create(t.Context(), account, request))
	env[prefix+"_API_SERVER"] = runtime.Config.Host
	env[prefix+"_TOKEN_FILE"] = write(t, "token", []byte(request.Status.Token))
	env[prefix+"_CA_CERT"] = write(t, "ca.crt", runtime.Config.CAData)
}

func write(t testing.TB, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// GrantWatch creates a service account with rules, and adds the settings of an agent that watches with
// it.
func GrantWatch(t testing.TB, runtime *apiserver.ControlPlane, name string, env map[string]string,
	rules ...rbacv1.PolicyRule,
) {
	t.Helper()
	create(t, runtime,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: name}},
		})
	env["SOURCE"] = "informer"
	signIn(t, runtime, name, "INFORMER", env)
}
