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
	account := &corev1.ServiceAccount{ObjectMeta: meta}
	create(t, runtime,
		&coordinationv1.Lease{ObjectMeta: meta},
		account,
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
	request := &authenticationv1.TokenRequest{}
	if err := runtime.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	c := &Canary{Lease: types.NamespacedName{Namespace: Namespace, Name: name}}
	c.Env = map[string]string{
		"CANARY_LEASE": c.Lease.String(), "CANARY_API_SERVER": runtime.Config.Host,
		"CANARY_TOKEN_FILE": write(t, "token", []byte(request.Status.Token)),
		"CANARY_CA_CERT":    write(t, "ca.crt", runtime.Config.CAData),
	}
	return c
}

func write(t testing.TB, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// GrantWatch creates a service account with rules, and adds the settings of an agent that watches with
// it.
func GrantWatch(t testing.TB, runtime *apiserver.ControlPlane, name string, env map[string]string,
	rules ...rbacv1.PolicyRule,
) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	create(t, runtime, account,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: name}},
		})
	request := &authenticationv1.TokenRequest{}
	if err := runtime.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	env["SOURCE"], env["INFORMER_API_SERVER"] = "informer", runtime.Config.Host
	env["INFORMER_TOKEN_FILE"] = write(t, "token", []byte(request.Status.Token))
	env["INFORMER_CA_CERT"] = write(t, "ca.crt", runtime.Config.CAData)
}
