package informer

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// Each missing right is named while it is missing. Two verbs for one resource in one namespace are
// enough for a watch of one namespace.
func TestRights(t *testing.T) {
	plane := sharedPlane(t)
	c := plane.Client
	config, err := plane.AddUser("informer")
	if err != nil {
		t.Fatal(err)
	}
	s := newSceneWith(t, config, informer.Options{Namespace: metav1.NamespaceDefault}, watch.Watch{
		Name: named("rights"), Manager: "m", Selector: selector("rights"),
		Resource: schema.GroupVersionResource{Version: "*", Resource: "configmaps"},
	})
	names := func(part string) func() bool {
		return func() bool { return strings.Contains(s.source.Problem("m"), part) }
	}
	lab.Eventually(t, patience, "the missing right to list is named", names("cannot list resource"))
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "informer"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
	}
	create(t, c, role, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "informer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "informer"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "informer"}},
	})
	lab.Eventually(t, patience, "the missing right to watch is named", names("cannot watch resource"))
	if s.failed("forbidden") == 0 || s.source.Ready() == nil {
		t.Errorf("%d failures are counted as forbidden, ready: %v", s.failed("forbidden"), s.source.Ready())
	}
	role.Rules[0].Verbs = []string{"list", "watch"}
	if err := c.Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	s.awaitReady()
	create(t, c, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: "rights", Labels: selected("rights"),
	}})
	s.want("m CREATE ConfigMap rights")
	if n := s.log.count("watch is established"); n != 1 {
		t.Errorf("%d lines about the recovery, want one", n)
	}
}
