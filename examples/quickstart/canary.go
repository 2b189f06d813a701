package main

import (
	"context"
	"errors"
	"os"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

const canaryName = "canary"

// createCanary creates the Lease of the canary for --serve, and a service account that may write
// it.
func (r *remote) createCanary(ctx context.Context) error {
	if !r.settings.serve || r.settings.contract != contract.V3 {
		return nil
	}
	r.canary = types.NamespacedName{Namespace: namespace, Name: canaryName}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: canaryName}
	account := &corev1.ServiceAccount{ObjectMeta: meta}
	for _, object := range []client.Object{
		account, &coordinationv1.Lease{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"},
			ResourceNames: []string{canaryName}, Verbs: []string{"patch"},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: canaryName},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: canaryName}},
		},
	} {
		if err := r.cluster.Client.Create(ctx, object); err != nil {
			return err
		}
	}
	request := &authenticationv1.TokenRequest{}
	if err := r.cluster.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(r.file("keys", "token"), []byte(request.Status.Token), 0o600),
		os.WriteFile(r.file("keys", "api-server.crt"), r.cluster.Config.CAData, 0o600))
}

// canarySettings make a failure visible six times as fast as by default.
func (r *remote) canarySettings() []string {
	if r.canary.Name == "" {
		return nil
	}
	return []string{
		"CANARY_LEASE=" + r.canary.String(), "CANARY_API_SERVER=" + r.cluster.Config.Host,
		"CANARY_TOKEN_FILE=" + r.file("keys", "token"), "CANARY_CA_CERT=" + r.file("keys", "api-server.crt"),
		"CANARY_INTERVAL=5s", "HEARTBEAT_INTERVAL=5s",
	}
}
