package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// Platform says how the clusters of a provider differ from a plain cluster.
type Platform struct {
	// Ports are the ports of pods that the API server reaches, as with the firewall of a private
	// cluster of GKE. The firewall drops packets to other ports. Default: all ports.
	Ports []uint16
	// NodesOnly means that the API server reaches no pod in the network of pods, as on EKS with
	// another network plugin. The packets are dropped.
	NodesOnly bool
	// Machines is the number of nodes, each with one address for pods with hostNetwork. Two pods with
	// the same ports need two machines. Default: such pods are refused.
	Machines int
	// FirstUser is the first of the 10,000 users of each namespace. The platform assigns this user
	// to pods, and admits only the pods that OpenShift's restricted-v2 admits. Default: no
	// platform.
	FirstUser int64
	// IPv6 means that pods have only IPv6 addresses. [Node.APIServerArgs] contains the addresses of
	// Services.
	IPv6 bool
}

const usersOfNamespace = 10_000

func (p Platform) loopback() netip.Addr {
	if p.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// firstHost is the first address for names of hosts outside.
func (p Platform) firstHost() netip.Addr {
	if p.IPv6 {
		return netip.MustParseAddr("fd00:1::1")
	}
	return netip.AddrFrom4([4]byte{127, 1, 0, 1})
}

// lets reports whether the API server reaches a port of a pod.
func (p Platform) lets(to target) bool {
	isReached := len(p.Ports) == 0 || slices.Contains(p.Ports, to.port)
	return isReached && (!p.NodesOnly || to.pod.spec.HostNetwork)
}

// address returns the n-th address of a network, 10.<second>.0.0/16 or fd00:10:<second>::/48.
func (p Platform) address(second byte, n int) netip.Addr {
	low := [2]byte{byte(n >> 8), byte(n)}
	if p.IPv6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 5: second, 14: low[0], 15: low[1]})
	}
	return netip.AddrFrom4([4]byte{10, second, low[0], low[1]})
}

const (
	networkOfPods  = 244
	networkOfNodes = 0
)

// addressFor returns the address of a machine without a pod that has hostNetwork, or a new one of
// the network of pods.
func (n *Node) addressFor(spec *corev1.PodSpec) netip.Addr {
	if !spec.HostNetwork {
		return n.opts.Platform.address(networkOfPods, n.made)
	}
	for machine := range n.opts.Platform.Machines {
		address := n.opts.Platform.address(networkOfNodes, machine+1)
		if !slices.ContainsFunc(n.running(), func(p *pod) bool { return p.ip == address }) {
			return address
		}
	}
	return netip.Addr{}
}

// hasRoom reports whether a pod can be scheduled.
func (n *Node) hasRoom(spec *corev1.PodSpec) bool {
	return !spec.HostNetwork || n.opts.Platform.Machines == 0 || n.addressFor(spec).IsValid()
}

var errNotAdmitted = errors.New("the platform does not admit the pod")

// admit completes the security context of a pod as the platform does.
func (n *Node) admit(p *pod) error {
	if p.spec.HostNetwork && n.opts.Platform.Machines == 0 {
		return fmt.Errorf("pod %s: the node does not know hostNetwork", p.state.Name)
	}
	if n.opts.Platform.FirstUser == 0 {
		return nil
	}
	return assignUser(&p.spec, n.opts.Platform.FirstUser)
}

// assignUser plays the SecurityContextConstraints restricted-v2 of OpenShift: MustRunAsRange for the
// user, MustRunAs for fsGroup, and RuntimeDefault for seccomp. The group is 0.
func assignUser(spec *corev1.PodSpec, first int64) error {
	var problems []error
	refuse := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%w: %s", errNotAdmitted, fmt.Sprintf(format, args...)))
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	pod := spec.SecurityContext
	container := spec.Containers[0].SecurityContext
	isForeign := func(id *int64) bool { return id != nil && (*id < first || *id >= first+usersOfNamespace) }
	if isForeign(pod.RunAsUser) || isForeign(container.RunAsUser) {
		refuse("runAsUser: want it in the ranges [%d, %d]", first, first+usersOfNamespace-1)
	}
	if isForeign(pod.FSGroup) {
		refuse("fsGroup: %d is not an allowed group", *pod.FSGroup)
	}
	if spec.HostNetwork || slices.ContainsFunc(spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 }) {
		refuse("hostNetwork, hostPort: not allowed")
	}
	if container.Privileged != nil && *container.Privileged {
		refuse("privileged: not allowed")
	}
	if container.AllowPrivilegeEscalation != nil && *container.AllowPrivilegeEscalation {
		refuse("allowPrivilegeEscalation: not allowed")
	}
	if container.Capabilities != nil && len(container.Capabilities.Add) > 0 {
		refuse("capabilities: want none but NET_BIND_SERVICE")
	}
	if profile := pod.SeccompProfile; profile != nil && profile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		refuse("seccomp: want runtime/default")
	}

	assign := func(id **int64, to int64) {
		if *id == nil {
			*id = new(to)
		}
	}
	assign(&pod.RunAsUser, first)
	assign(&pod.FSGroup, first)
	assign(&pod.RunAsGroup, 0)
	return errors.Join(problems...)
}

// noteRefusal keeps the error of a pod that the platform does not admit.
func (n *Node) noteRefusal(err error) (refused bool) {
	if !errors.Is(err, errNotAdmitted) {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refusals = append(n.refusals, err)
	return true
}

// Refusals returns the errors of pods that the platform did not admit, as events of a ReplicaSet
// name them.
func (n *Node) Refusals() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.refusals)
}

// object is the pod as an object of the API server.
func (p *pod) object() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.owner.Namespace, Name: p.state.Name, Labels: p.labels}, Spec: *p.spec.DeepCopy(),
	}
}

// store makes the object of the pod.
func (p *pod) store() error {
	if !p.node.opts.Objects {
		return nil
	}
	object := p.object()
	if err := p.node.plane.Client.Create(p.ctx, object); err != nil {
		return err
	}
	object.Status.Phase = corev1.PodRunning
	object.Status.PodIP = p.ip.String()
	object.Status.PodIPs = []corev1.PodIP{{IP: p.ip.String()}}
	return p.node.plane.Client.Status().Update(p.ctx, object)
}

// unstore deletes the object of the pod. It may be gone, and so may the API server.
func (p *pod) unstore() {
	if p.node.opts.Objects {
		_ = p.node.plane.Client.Delete(context.Background(), p.object(), client.GracePeriodSeconds(0))
	}
}

// storeEndpoints writes the Endpoints of a Service, which the API server uses for its proxy.
func (n *Node) storeEndpoints(ctx context.Context, service *corev1.Service, pods []*pod) error {
	//nolint:staticcheck // The API server reads no other kind.
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, n.plane.Client, endpoints, func() error {
		endpoints.Subsets = nil
		for _, p := range pods {
			if !p.serves() {
				continue
			}
			//nolint:staticcheck // As above.
			subset := corev1.EndpointSubset{Addresses: []corev1.EndpointAddress{{
				IP:        p.ip.String(),
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: service.Namespace, Name: p.state.Name},
			}}}
			for _, port := range service.Spec.Ports {
				number, err := p.port(port.TargetPort.String())
				if err != nil {
					return err
				}
				subset.Ports = append(subset.Ports, corev1.EndpointPort{Name: port.Name, Port: int32(number)})
			}
			endpoints.Subsets = append(endpoints.Subsets, subset)
		}
		return nil
	})
	return err
}

// AwaitCheck runs "agent check" in a pod of a Deployment until it prints each part. If the test
// fails, it logs the last output.
func (n *Node) AwaitCheck(t testing.TB, deployment types.NamespacedName, parts ...string) {
	t.Helper()

	var out string
	defer func() {
		if t.Failed() {
			t.Logf("agent check:\n%s", out)
		}
	}()

	rig.Eventually(t, rig.Patience, fmt.Sprintf("agent check prints %q", parts), func() bool {
		out, _ = n.Exec(t.Context(), deployment, "check") // The code follows from the lines.
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(out, part) })
	})
}

// Exec runs the program of a ready pod of a Deployment once more in it, as "kubectl exec" does, and
// returns its output.
func (n *Node) Exec(ctx context.Context, deployment types.NamespacedName, args ...string) (output string, err error) {
	for _, p := range n.running() {
		if p.owner != deployment || !p.serves() {
			continue
		}
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = p.env
		cmd.Dir = "/"
		cmd.Stdout = &out
		cmd.Stderr = &out
		cmd.SysProcAttr = p.attributes()
		if err := p.net.inside(cmd.Start); err != nil {
			return "", err
		}
		err := cmd.Wait()
		return out.String(), err
	}
	return "", fmt.Errorf("no ready pod of Deployment %s", deployment)
}
