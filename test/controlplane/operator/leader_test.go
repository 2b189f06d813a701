package operator_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// leaderService is the Service that leads to the leader.
var leaderService = types.NamespacedName{Namespace: "kcp-system", Name: "my-operator-events"}

// leaderUser is an operator with the rights of leaderRole, and no others.
const leaderUser = "leader-operator"

// leaderRole has the least rights that a LeaderEndpoint needs.
func leaderRole() *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: leaderService.Namespace, Name: leaderUser},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices"},
			ResourceNames: []string{leaderService.Name + "-leader"},
			Verbs:         []string{"create", "patch"},
		}},
	}
}

// configFor returns the configuration of a user with the role. Without a role, the user has no
// rights.
func (l *lab) configFor(t *testing.T, role *rbacv1.Role) *rest.Config {
	t.Helper()
	config := rest.CopyConfig(l.Config)
	config.Impersonate.UserName = leaderUser
	if role == nil {
		config.Impersonate.UserName = "nobody"
		return config
	}
	l.create(t, role)
	l.create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: role.Namespace, Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: leaderUser}},
	})
	rig.Eventually(t, patience, "the role is in force", func() bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: leaderUser, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "patch", Group: discoveryv1.GroupName, Resource: "endpointslices", Namespace: role.Namespace,
				Name: role.Rules[0].ResourceNames[0],
			},
		}}
		return l.Client.Create(t.Context(), review) == nil && review.Status.Allowed
	})
	return config
}

// leads runs a leader endpoint until stop, or until the end of the test.
func leads(t *testing.T, config *rest.Config, address, pod string) (stop func()) {
	t.Helper()
	endpoint := rig.Must(controllerruntime.NewLeaderEndpoint(rig.Must(client.New(config, client.Options{})), leaderService,
		address, map[string]int32{"events": 8082, "metrics": 8083},
		controllerruntime.LeaderEndpointOptions{Pod: pod, RefreshInterval: 100 * time.Millisecond}))
	return rig.Run(t, "leader endpoint", endpoint.Start)
}

// leaderAddress is the endpoint of the Service, or "".
func (l *lab) leaderAddress(t *testing.T) string {
	t.Helper()
	var slice discoveryv1.EndpointSlice
	key := client.ObjectKey{Namespace: leaderService.Namespace, Name: leaderService.Name + "-leader"}
	rig.NoError(t, client.IgnoreNotFound(l.Client.Get(t.Context(), key, &slice)))
	if len(slice.Endpoints) == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d", slice.Endpoints[0].Addresses[0], *slice.Ports[0].Port)
}

// testLeaderEndpoint has a Service that leads to one leader after the other.
func (l *lab) testLeaderEndpoint(t *testing.T) {
	config := l.configFor(t, leaderRole())
	is := func(want string) {
		t.Helper()
		rig.Eventually(t, patience, "the leader is "+want, func() bool { return l.leaderAddress(t) == want })
	}
	is("")
	first := leads(t, config, "192.0.2.1", "first")
	is("192.0.2.1:8082")
	var slice discoveryv1.EndpointSlice
	key := client.ObjectKey{Namespace: leaderService.Namespace, Name: leaderService.Name + "-leader"}
	rig.NoError(t, l.Client.Get(t.Context(), key, &slice))
	yes, no := true, false
	want := []discoveryv1.Endpoint{{
		Addresses:  []string{"192.0.2.1"},
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "kcp-system", Name: "first"},
	}}
	if diff := cmp.Diff(want, slice.Endpoints); diff != "" {
		t.Errorf("endpoints (-want +have):\n%s", diff)
	}
	if name := slice.Labels["kubernetes.io/service-name"]; name != leaderService.Name || len(slice.Ports) != 2 {
		t.Errorf("the slice is for Service %q with ports %v", name, slice.Ports)
	}
	rig.NoError(t, l.Client.Delete(t.Context(), &slice))
	rig.Eventually(t, patience, "the slice is there again", func() bool {
		uid := slice.UID
		return l.Client.Get(t.Context(), key, &slice) == nil && slice.UID != uid
	})
	first()
	is("")
	// A leader that was replaced must not remove its successor.
	old := rig.Must(controllerruntime.NewLeaderEndpoint(rig.Must(client.New(config, client.Options{})), leaderService,
		"192.0.2.2", map[string]int32{"events": 1}, controllerruntime.LeaderEndpointOptions{RefreshInterval: time.Hour}))
	stopOld := rig.Run(t, "endpoint of the old leader", old.Start)
	is("192.0.2.2:1")
	last := leads(t, config, "192.0.2.3", "")
	is("192.0.2.3:8082")
	stopOld()
	if err := l.Client.Get(t.Context(), key, &slice); err != nil || len(slice.Endpoints) != 1 {
		t.Errorf("after the end of the old leader: endpoints %v, error %v", slice.Endpoints, err)
	}
	last()
	is("")
}

// testLeaderWithoutRights ends the operator instead of leaving it without an endpoint.
func (l *lab) testLeaderWithoutRights(t *testing.T) {
	endpoint := rig.Must(controllerruntime.NewLeaderEndpoint(rig.Must(client.New(l.configFor(t, nil), client.Options{})), leaderService,
		"192.0.2.1", map[string]int32{"": 8082}, controllerruntime.LeaderEndpointOptions{}))
	if err := endpoint.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("Start returns %v, want forbidden", err)
	}
}

// testReplicas runs the code in the guide.
func (l *lab) testReplicas(t *testing.T) {
	mgr := rig.Must(manager.New(l.Config, managerOptions()))
	rig.NoError(t, setUpReplicas(mgr, "192.0.2.9", "my-operator-0"))
	stop := rig.Run(t, "manager", mgr.Start)
	rig.Eventually(t, patience, "the replica leads", func() bool { return l.leaderAddress(t) == "192.0.2.9:8082" })
	stop()
}

func TestLeaderEndpointArguments(t *testing.T) {
	t.Parallel()
	writer := rig.Must(client.New(&rest.Config{Host: "https://127.0.0.1:1"}, client.Options{}))
	ports := map[string]int32{"": 8082}
	for name, arguments := range map[string]struct {
		writer  client.Writer
		service types.NamespacedName
		address string
		ports   map[string]int32
	}{
		"client":  {nil, leaderService, "192.0.2.1", ports},
		"Service": {writer, types.NamespacedName{}, "192.0.2.1", ports},
		"address": {writer, leaderService, "pod", ports},
		"ports":   {writer, leaderService, "192.0.2.1", nil},
	} {
		if _, err := controllerruntime.NewLeaderEndpoint(arguments.writer, arguments.service, arguments.address, arguments.ports,
			controllerruntime.LeaderEndpointOptions{}); err == nil {
			t.Errorf("without %s: no error", name)
		}
	}
}
