package lab

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
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
	c := &Canary{Lease: types.NamespacedName{Namespace: Namespace, Name: name}, Env: map[string]string{}}
	c.Env["CANARY_LEASE"] = c.Lease.String()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	grant(t, runtime, "CANARY", name, c.Env, []rbacv1.PolicyRule{{
		APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: []string{name},
		Verbs: []string{"patch"},
	}}, lease)
	return c
}

// Account creates a service account, and other objects such as its rights, unless they exist. It
// returns a token of the account.
func Account(
	ctx context.Context, cluster client.Client, name types.NamespacedName, others ...client.Object,
) (token []byte, err error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	for _, object := range append(others, account) {
		if err := client.IgnoreAlreadyExists(cluster.Create(ctx, object)); err != nil {
			return nil, err
		}
	}
	request := &authenticationv1.TokenRequest{}
	err = cluster.SubResource("token").Create(ctx, account, request)
	return []byte(request.Status.Token), err
}

// UseAccount adds the settings with a prefix by which an agent uses a service account.
func UseAccount(
	t testing.TB, runtime *apiserver.ControlPlane, name types.NamespacedName, prefix string, env map[string]string,
) {
	t.Helper()
	token, err := Account(t.Context(), runtime.Client, name)
	NoError(t, err)
	signIn(t, runtime, token, prefix, env)
}

func signIn(t testing.TB, runtime *apiserver.ControlPlane, token []byte, prefix string, env map[string]string) {
	t.Helper()
	env[prefix+"_API_SERVER"] = runtime.Config.Host
	env[prefix+"_TOKEN_FILE"] = write(t, "token", token)
	env[prefix+"_CA_CERT"] = write(t, "ca.crt", runtime.Config.CAData)
}

func write(t testing.TB, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// Inform creates a service account that may watch, and adds the settings of an agent that watches with it.
func Inform(t testing.TB, runtime *apiserver.ControlPlane, name string, env map[string]string, watches ...watch.Watch) {
	t.Helper()
	env["SOURCE"], env["WATCHERS"] = "informer", string(Must(json.Marshal(watch.DocumentOf(watches))))
	var rules []rbacv1.PolicyRule
	for _, w := range watches {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{w.Resource.Group}, Resources: []string{w.Resource.Resource}, Verbs: []string{"list", "watch"},
		})
	}
	grant(t, runtime, "INFORMER", name, env, rules)
}

// grant creates a service account with rules, and adds the settings with a prefix that use it.
func grant(t testing.TB, runtime *apiserver.ControlPlane, prefix, name string, env map[string]string, rules []rbacv1.PolicyRule,
	others ...client.Object,
) {
	t.Helper()
	token, err := Account(t.Context(), runtime.Client, types.NamespacedName{Namespace: Namespace, Name: name}, append(others,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: name}},
		})...)
	NoError(t, err)
	signIn(t, runtime, token, prefix, env)
}
