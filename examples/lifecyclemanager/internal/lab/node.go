package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Neither is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"   //nolint:depguard // Not released.
)

// interval is the time between two looks of a node at its cluster.
const interval = 100 * time.Millisecond

// node stands in for the machines of a runtime. It runs the agents and the managers of modules, and
// reports all other Deployments as available.
type node struct {
	name, dir string
	log       func(name string) string
	cluster   *apiserver.ControlPlane
	programs  programs
	work      sync.WaitGroup
	// broken ends the managers of modules.
	broken atomic.Bool
	// volumes are those of all agents, by name, and started is the number of pods so far.
	volumes map[string]*mounted
	started int

	mu   sync.Mutex
	pods []*pod
}

func newNode(dir string, log func(string) string, name string) *node {
	return &node{name: name, dir: dir, log: log, volumes: make(map[string]*mounted)}
}

// apiServerArgs returns the flags by which an API server reaches the agents.
func (n *node) apiServerArgs() (map[string][]string, error) {
	selector, err := json.Marshal(map[string]any{
		"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
		"egressSelections": []any{map[string]any{"name": "cluster", "connection": map[string]any{
			"proxyProtocol": "HTTPConnect", "transport": map[string]any{"uds": map[string]any{"udsName": n.socket()}},
		}}},
	})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(n.dir, "egress.json")
	err = errors.Join(os.Mkdir(n.dir, 0o700), os.WriteFile(path, selector, 0o600))
	return map[string][]string{"egress-selector-config-file": {path}}, err
}

func (n *node) socket() string { return filepath.Join(n.dir, "egress.sock") }

// start starts the node. stop ends it with its pods.
func (n *node) start(cluster *apiserver.ControlPlane, programs programs) (stop func() error, err error) {
	n.cluster, n.programs = cluster, programs
	ctx, cancel := context.WithCancel(context.Background())
	socket, err := new(net.ListenConfig).Listen(ctx, "unix", n.socket())
	if err != nil {
		cancel()
		return nil, err
	}
	server := machine.Tunnel(ctx, n.dial)
	n.work.Go(func() { _ = server.Serve(socket) })
	n.work.Go(func() { n.loop(ctx) })
	return func() error {
		cancel()
		err := server.Close()
		n.work.Wait()
		n.drop(func(*pod) bool { return true })
		return err
	}, nil
}

// dial connects to an agent at random. There is no other Service that an API server calls.
func (n *node) dial(ctx context.Context, _ string) (net.Conn, error) {
	ready := n.ready(agentKey)
	if len(ready) == 0 {
		return nil, errors.New("no agent is ready")
	}
	chosen := ready[rand.IntN(len(ready))] //nolint:gosec // It is no secret.
	return (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", chosen.webhook)
}

func (n *node) loop(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := n.sync(ctx); err != nil && ctx.Err() == nil {
			n.note(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (n *node) note(err error) {
	file, openErr := os.OpenFile(n.log(n.name+"-node.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if openErr != nil {
		return
	}
	defer file.Close()
	fmt.Fprintln(file, time.Now().Format(time.TimeOnly), err)
}

// sync does the work of a kubelet and of the controllers of a cluster, as far as it is needed here.
func (n *node) sync(ctx context.Context) error {
	list := &appsv1.DeploymentList{}
	if err := n.cluster.Client.List(ctx, list); err != nil {
		return err
	}
	there := make(map[client.ObjectKey]bool)
	for i := range list.Items {
		there[client.ObjectKeyFromObject(&list.Items[i])] = true
	}
	n.drop(func(p *pod) bool { return !there[p.owner] })
	errs := []error{n.release(ctx)}
	for i := range list.Items {
		available, err := n.keep(ctx, &list.Items[i])
		errs = append(errs, err, n.report(ctx, &list.Items[i], available))
	}
	return errors.Join(append(errs, n.publish(ctx, there[agentKey]))...)
}

// report writes the status of a Deployment.
func (n *node) report(ctx context.Context, deployment *appsv1.Deployment, available int32) error {
	status := appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation,
		Replicas:           *deployment.Spec.Replicas, UpdatedReplicas: *deployment.Spec.Replicas,
		ReadyReplicas: available, AvailableReplicas: available,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
		},
	}
	if available > 0 {
		status.Conditions = append(status.Conditions,
			appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue})
	}
	if equality.Semantic.DeepEqual(deployment.Status, status) {
		return nil
	}
	deployment.Status = status
	return ignoreRaces(n.cluster.Client.Status().Update(ctx, deployment))
}

// publish writes the endpoints of the agent's Service, if there is an agent. An API server does not
// take an address of this machine there, so it gets others.
func (n *node) publish(ctx context.Context, there bool) error {
	slice := &discoveryv1.EndpointSlice{}
	slice.Namespace, slice.Name = agentKey.Namespace, agentKey.Name
	if !there {
		return ignoreRaces(n.cluster.Client.Delete(ctx, slice))
	}
	_, err := controllerutil.CreateOrPatch(ctx, n.cluster.Client, slice, func() error {
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: agentKey.Name}
		slice.AddressType, slice.Endpoints = discoveryv1.AddressTypeIPv4, nil
		for i := range n.ready(agentKey) {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{fmt.Sprintf("10.1.0.%d", i+1)},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
		return nil
	})
	return ignoreRaces(err)
}

// release lets namespaces end. Their objects stay, except Leases, so that a test finds them.
func (n *node) release(ctx context.Context) error {
	list := &corev1.NamespaceList{}
	if err := n.cluster.Client.List(ctx, list); err != nil {
		return err
	}
	for i := range list.Items {
		namespace := &list.Items[i]
		if namespace.DeletionTimestamp == nil {
			continue
		}
		inside := client.InNamespace(namespace.Name) // The Lease of a manager belongs to no module.
		if err := n.cluster.Client.DeleteAllOf(ctx, &coordinationv1.Lease{}, inside); err != nil {
			return err
		}
		namespace.Spec.Finalizers = nil
		err := n.cluster.Client.SubResource("finalize").Update(ctx, namespace) //nolint:misspell // Its name in the API.
		if ignoreRaces(err) != nil {
			return err
		}
	}
	return nil
}

// ignoreRaces returns nil for the errors of an object that has changed meanwhile.
func ignoreRaces(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return client.IgnoreNotFound(err)
}
