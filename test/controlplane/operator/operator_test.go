// Package operator_test runs operators with a listener on a real API server.
package operator_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

func TestMain(m *testing.M) {
	// client-go leaks this goroutine if a watch of metadata ends while an event arrives: it sends to a
	// channel without a reader. Neither this module nor the controller manager can end it.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

// TestManager runs controller managers on a real API server, with events over mTLS connections. The
// package of the adapter has tests of each part with a cache of its own.
func TestManager(t *testing.T) {
	t.Parallel()
	rig.SkipShort(t)
	crd := rig.Definition(clusterKind().Group, "kymas", clusterKind().Kind)
	crd.Spec.Versions[0].Name = clusterKind().Version
	l := &lab{apiserver.StartT(t, apiserver.Options{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}), rig.NewPKI(t)}
	rig.NoError(t, l.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kcp-system"}}))
	t.Run("leader endpoint", l.testLeaderEndpoint)
	t.Run("two operators", l.testTwoOperators)
	t.Run("leader endpoint without rights", l.testLeaderWithoutRights)
	t.Run("foreign slice", l.testForeignSlice)
	t.Run("replicas of the guide", l.testReplicas)
	t.Run("set-up of the guide", l.testEmbedding)
	t.Run("revoked senders", l.testRevocations)
}

type lab struct {
	*apiserver.ControlPlane
	*rig.PKI
}

// clusterKind represents runtimes. There is no Go type for it.
func clusterKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

func (l *lab) newManager(metrics metricsserver.Options) manager.Manager {
	skip := true
	return rig.Must(manager.New(l.Config, manager.Options{
		Metrics: metrics, HealthProbeBindAddress: "0", Logger: logr.Discard(),
		Controller: ctrlconfig.Controller{SkipNameValidation: &skip},
	}))
}

// leaderService is the Service that leads to the leader.
var leaderService = types.NamespacedName{Namespace: "kcp-system", Name: "my-operator-events"}

// leaderSlice has the address of the leader.
var leaderSlice = types.NamespacedName{Namespace: "kcp-system", Name: "my-operator-events-leader"}

// leaderOperator is the operator of leaderService.
const leaderOperator = "my-operator.example.com"

// leaderUser is an operator with the least rights that a LeaderEndpoint needs.
const leaderUser = "leader-operator"

const leaderRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: kcp-system, name: leader}
rules: [{apiGroups: [discovery.k8s.io], resources: [endpointslices], resourceNames: [my-operator-events-leader], verbs: [create, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: kcp-system, name: leader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: leader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: leader-operator}]`

// grant gives leaderUser its rights.
func (l *lab) grant(t *testing.T) {
	t.Helper()
	for document := range strings.SplitSeq(leaderRights, "\n---") {
		rig.NoError(t, l.Client.Create(t.Context(), manifests.Object(t, document)))
	}
	rig.Eventually(t, rig.Patience, "the role is in force", func() bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: leaderUser, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "patch", Group: discoveryv1.GroupName, Resource: "endpointslices",
				Namespace: leaderSlice.Namespace, Name: leaderSlice.Name,
			},
		}}
		return l.Client.Create(t.Context(), review) == nil && review.Status.Allowed
	})
}

// newEndpoint returns a leader endpoint of a user.
func (l *lab) newEndpoint(
	user string, replica controllerruntime.ReplicaEndpoint, opts controllerruntime.LeaderEndpointOptions,
) manager.Runnable {
	config := rest.CopyConfig(l.Config)
	config.Impersonate.UserName = user
	writer := rig.Must(client.New(config, client.Options{}))
	return rig.Must(controllerruntime.NewLeaderEndpoint(writer, leaderService, replica, opts))
}

// leads runs a leader endpoint until stop, or until the end of the test.
func (l *lab) leads(t *testing.T, address, pod string) (stop func()) {
	t.Helper()
	return rig.Run(t, "leader endpoint", l.newEndpoint(leaderUser, controllerruntime.ReplicaEndpoint{
		Operator: leaderOperator, Address: address, Ports: map[string]int32{"events": 8082, "metrics": 8083}, Pod: pod,
	}, controllerruntime.LeaderEndpointOptions{RefreshInterval: 100 * time.Millisecond}).Start)
}

// leaderAddress is the endpoint of the Service, or "".
func (l *lab) leaderAddress(t *testing.T) string {
	t.Helper()
	var slice discoveryv1.EndpointSlice
	rig.NoError(t, client.IgnoreNotFound(l.Client.Get(t.Context(), leaderSlice, &slice)))
	if len(slice.Endpoints) == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d", slice.Endpoints[0].Addresses[0], *slice.Ports[0].Port)
}

// testLeaderEndpoint has a Service that leads to one leader after the other.
func (l *lab) testLeaderEndpoint(t *testing.T) {
	l.grant(t)
	is := func(want string) {
		t.Helper()
		rig.Eventually(t, rig.Patience, "the leader is "+want, func() bool { return l.leaderAddress(t) == want })
	}
	is("")
	first := l.leads(t, "192.0.2.1", "first")
	is("192.0.2.1:8082")
	slice := rig.Stored(t, l.Client, leaderSlice, &discoveryv1.EndpointSlice{})
	yes := true
	no := false
	want := []discoveryv1.Endpoint{{
		Addresses:  []string{"192.0.2.1"},
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "kcp-system", Name: "first"},
	}}
	rig.Same(t, "endpoints", want, slice.Endpoints)
	if name := slice.Labels["kubernetes.io/service-name"]; name != leaderService.Name || len(slice.Ports) != 2 {
		t.Errorf("the slice is for Service %q with ports %v", name, slice.Ports)
	}
	rig.NoError(t, l.Client.Delete(t.Context(), slice))
	rig.Eventually(t, rig.Patience, "the slice is there again", func() bool {
		uid := slice.UID
		return l.Client.Get(t.Context(), leaderSlice, slice) == nil && slice.UID != uid
	})
	first()
	is("")
	// A leader that was replaced must not remove its successor.
	old := l.newEndpoint(leaderUser, controllerruntime.ReplicaEndpoint{Operator: leaderOperator, Address: "192.0.2.2", Ports: map[string]int32{"events": 1}},
		controllerruntime.LeaderEndpointOptions{RefreshInterval: time.Hour})
	stopOld := rig.Run(t, "endpoint of the old leader", old.Start)
	is("192.0.2.2:1")
	last := l.leads(t, "192.0.2.3", "")
	is("192.0.2.3:8082")
	stopOld()
	rig.Same(t, "endpoints after the end of the old leader", 1, len(rig.Stored(t, l.Client, leaderSlice, slice).Endpoints))
	last()
	is("")
}

// testForeignSlice has slices of others with the name of ours. The API server would merge the second one.
func (l *lab) testForeignSlice(t *testing.T) {
	for name, labels := range map[string]map[string]string{
		"managed by another controller": {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
		"managed by nobody":             {"kubernetes.io/service-name": leaderService.Name},
	} {
		t.Run(name, func(t *testing.T) {
			_ = l.Client.Delete(t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
				Namespace: leaderSlice.Namespace, Name: leaderSlice.Name,
			}})
			foreign := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: leaderSlice.Namespace, Name: leaderSlice.Name, Labels: labels},
				AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.77"}}},
				Ports: []discoveryv1.EndpointPort{{Name: new("events"), Port: new(int32(7))}},
			}
			rig.NoError(t, l.Client.Create(t.Context(), foreign))
			endpoint := l.newEndpoint(leaderUser, controllerruntime.ReplicaEndpoint{
				Operator: leaderOperator, Address: "192.0.2.1", Ports: map[string]int32{"events": 8082},
			}, controllerruntime.LeaderEndpointOptions{})
			rig.Fails(t, "Start", endpoint.Start(t.Context()), leaderSlice.String(), "managed-by")
			live := rig.Stored(t, l.Client, leaderSlice, &discoveryv1.EndpointSlice{})
			rig.Same(t, "version of the slice", foreign.ResourceVersion, live.ResourceVersion)

			// It is handed over on purpose.
			live.Labels["endpointslice.kubernetes.io/managed-by"] = "runtime-watcher-leader"
			rig.NoError(t, l.Client.Update(t.Context(), live))
			stop := l.leads(t, "192.0.2.1", "first")
			rig.Eventually(t, rig.Patience, "the replica leads", func() bool { return l.leaderAddress(t) == "192.0.2.1:8082" })
			stop()
		})
	}
}

// testTwoOperators have one Service, by mistake. The first one stays the endpoint, also if both create
// the slice in parallel, and while it is away.
func (l *lab) testTwoOperators(t *testing.T) {
	replica := func(operator, address string) controllerruntime.ReplicaEndpoint {
		return controllerruntime.ReplicaEndpoint{Operator: operator, Address: address, Ports: map[string]int32{"events": 8082}}
	}
	opts := controllerruntime.LeaderEndpointOptions{RefreshInterval: 10 * time.Millisecond}
	remove := func() {
		_ = l.Client.Delete(t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: leaderSlice.Namespace, Name: leaderSlice.Name,
		}})
	}
	remove()
	defer remove()

	first := l.leads(t, "192.0.2.1", "first")
	rig.Eventually(t, rig.Patience, "the first operator leads", func() bool { return l.leaderAddress(t) == "192.0.2.1:8082" })
	second := l.newEndpoint(leaderUser, replica("another.example.com", "192.0.2.2"), opts)
	rig.Fails(t, "Start beside a leader", second.Start(t.Context()), leaderSlice.String(), leaderOperator, "another.example.com")
	first()
	rig.Fails(t, "Start after its end", second.Start(t.Context()), leaderSlice.String(), leaderOperator)
	if address := l.leaderAddress(t); address != "" {
		t.Errorf("the endpoint is %s", address)
	}

	// The second operator creates the slice between the read of the first one and its write.
	remove()
	var once sync.Once
	config := rest.CopyConfig(l.Config)
	config.Impersonate.UserName = leaderUser
	ctx, cancel := context.WithCancel(t.Context())
	racing := interceptor.NewClient(rig.Must(client.NewWithWatch(config, client.Options{})), interceptor.Funcs{Apply: func(
		ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, opts ...client.ApplyOption,
	) error {
		if options := (&client.ApplyOptions{}).ApplyOptions(opts); len(options.DryRun) > 0 {
			return c.Apply(ctx, object, opts...)
		}
		once.Do(func() {
			rig.Run(t, "endpoint of the other operator", second.Start)
			rig.Eventually(t, rig.Patience, "the other operator leads", func() bool { return l.leaderAddress(t) == "192.0.2.2:8082" })
		})
		err := c.Apply(ctx, object, opts...)
		cancel() // After the first write.
		return err
	}})
	endpoint := rig.Must(controllerruntime.NewLeaderEndpoint(racing, leaderService, replica(leaderOperator, "192.0.2.1"), opts))
	rig.NoError(t, endpoint.Start(ctx))
	rig.Same(t, "endpoint after the race", "192.0.2.2:8082", l.leaderAddress(t))
}

// testLeaderWithoutRights ends the operator instead of leaving it without an endpoint.
func (l *lab) testLeaderWithoutRights(t *testing.T) {
	endpoint := l.newEndpoint("nobody", controllerruntime.ReplicaEndpoint{Operator: leaderOperator, Address: "192.0.2.1", Ports: map[string]int32{"": 8082}},
		controllerruntime.LeaderEndpointOptions{})
	rig.Fails(t, "Start", endpoint.Start(t.Context()), "forbidden")
}

// testReplicas runs the code in the guide.
func (l *lab) testReplicas(t *testing.T) {
	mgr := l.newManager(metricsserver.Options{BindAddress: "0"})
	rig.NoError(t, setUpReplicas(mgr, "192.0.2.9", "my-operator-0"))
	stop := rig.Run(t, "manager", mgr.Start)
	rig.Eventually(t, rig.Patience, "the replica leads", func() bool { return l.leaderAddress(t) == "192.0.2.9:8082" })
	stop()
}

func TestLeaderEndpointArguments(t *testing.T) {
	t.Parallel()
	writer := rig.Must(client.New(&rest.Config{Host: "https://127.0.0.1:1"}, client.Options{}))
	ports := map[string]int32{"": 8082}
	for name, arguments := range map[string]struct {
		writer   client.Writer
		service  types.NamespacedName
		operator string
		address  string
		ports    map[string]int32
	}{
		"client":   {nil, leaderService, leaderOperator, "192.0.2.1", ports},
		"Service":  {writer, types.NamespacedName{}, leaderOperator, "192.0.2.1", ports},
		"Operator": {writer, leaderService, "", "192.0.2.1", ports},
		"address":  {writer, leaderService, leaderOperator, "pod", ports},
		"ports":    {writer, leaderService, leaderOperator, "192.0.2.1", nil},
	} {
		_, err := controllerruntime.NewLeaderEndpoint(arguments.writer, arguments.service,
			controllerruntime.ReplicaEndpoint{Operator: arguments.operator, Address: arguments.address, Ports: arguments.ports},
			controllerruntime.LeaderEndpointOptions{})
		rig.Fails(t, "without "+name, err)
	}
}
