package loss

import (
	"encoding/json"
	"maps"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// newKept returns the settings of agents that keep their webhook configuration, and grants them the right.
func (s *scene) newKept(env map[string]string) map[string]string {
	s.t.Helper()
	role := s.name + "-webhooks"
	subject := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: lab.Namespace, Name: s.name}
	for _, object := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role}, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{admissionregistrationv1.GroupName}, Resources: []string{"validatingwebhookconfigurations"},
			ResourceNames: []string{s.name}, Verbs: []string{"get", "watch", "create", "patch", "delete"},
		}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{subject},
		},
	} {
		lab.NoError(s.t, s.plane.Client.Create(s.t.Context(), object))
	}
	kept := maps.Clone(env)
	kept["WATCHERS"] = string(lab.Must(json.Marshal(watch.DocumentOf([]watch.Watch{s.watch()}))))
	kept["WEBHOOK_CONFIGURATION"] = s.name
	kept["WEBHOOK_ENDPOINT"] = "https://" + s.address.Addr().String()
	return kept
}

// changeWebhooks deletes, empties or narrows the webhook configuration of the agents.
func (s *scene) changeWebhooks(f Fault) {
	s.t.Helper()
	lab.Eventually(s.t, patience, "the webhooks are changed", func() bool {
		live, found := s.live()
		if !found {
			return false // An earlier change is not repaired yet.
		}
		switch f.Strength % 3 {
		case 0:
			return s.plane.Client.Delete(s.t.Context(), live) == nil
		case 1:
			live.Webhooks = nil
		default:
			for n := range live.Webhooks {
				live.Webhooks[n].ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "object"}}
			}
		}
		return s.plane.Client.Update(s.t.Context(), live) == nil
	})
}

// awaitWebhooks waits until the agents have put their webhooks back. Without an agent, they do so later.
func (s *scene) awaitWebhooks() {
	s.t.Helper()
	for _, one := range s.senders {
		if !one.Running() {
			return
		}
	}
	lab.Eventually(s.t, patience, "the webhooks are back", func() bool {
		live, found := s.live()
		return found && len(admission.Differences(live)) == 0
	})
}

func (s *scene) live() (live *admissionregistrationv1.ValidatingWebhookConfiguration, found bool) {
	s.t.Helper()
	live = &admissionregistrationv1.ValidatingWebhookConfiguration{}
	err := s.plane.Client.Get(s.t.Context(), client.ObjectKey{Name: s.name}, live)
	if apierrors.IsNotFound(err) {
		return nil, false
	}
	lab.NoError(s.t, err)
	return live, true
}
