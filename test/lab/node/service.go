package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

const sliceOwner = "node-stand-in"

// target is a port of a pod that a Service leads to.
type target struct {
	pod  *pod
	port uint16
}

// lead sets the targets of the Services, and publishes them.
func (n *Node) lead(ctx context.Context, services []corev1.Service) error {
	routes := map[string][]target{}
	for i := range services {
		service := &services[i]
		if len(service.Spec.Selector) == 0 {
			continue
		}

		pods := n.selected(service)
		for _, port := range service.Spec.Ports {
			address := net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(port.Port)))
			for _, p := range pods {
				number, err := p.port(cmp.Or(port.TargetPort.String(), port.Name))
				if err != nil || !p.serves() {
					continue
				}

				routes[address] = append(routes[address], target{p, number})
				if port.NodePort != 0 {
					routes[nodePort(port.NodePort)] = append(routes[nodePort(port.NodePort)], target{p, number})
				}
			}
		}

		if err := ignoreRaces(n.publish(ctx, service, pods)); err != nil {
			return err
		}
	}

	n.mu.Lock()
	n.routes = routes
	n.mu.Unlock()

	return n.prune(ctx, services)
}

func (n *Node) selected(service *corev1.Service) []*pod {
	selector := labels.SelectorFromSet(service.Spec.Selector)
	return slices.DeleteFunc(n.running(), func(p *pod) bool {
		return p.owner.Namespace != service.Namespace || !selector.Matches(labels.Set(p.labels))
	})
}

// publish writes the EndpointSlice of a Service.
func (n *Node) publish(ctx context.Context, service *corev1.Service, pods []*pod) error {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, n.plane.Client, slice, func() error {
		slice.Labels = map[string]string{
			discoveryv1.LabelServiceName: service.Name,
			discoveryv1.LabelManagedBy:   sliceOwner,
		}
		slice.AddressType = discoveryv1.AddressTypeIPv4
		if n.opts.Platform.IPv6 {
			slice.AddressType = discoveryv1.AddressTypeIPv6
		}
		slice.Endpoints = nil

		for _, p := range pods {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{p.ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(p.serves())},
			})
		}

		return nil
	})
	if err != nil || !n.opts.Objects {
		return err
	}

	return n.storeEndpoints(ctx, service, pods)
}

// prune removes the EndpointSlices of Services that are gone.
func (n *Node) prune(ctx context.Context, services []corev1.Service) error {
	var published discoveryv1.EndpointSliceList
	if err := n.plane.Client.List(ctx, &published,
		client.MatchingLabels{discoveryv1.LabelManagedBy: sliceOwner}); err != nil {
		return err
	}

	for i := range published.Items {
		slice := &published.Items[i]
		if slices.ContainsFunc(services,
			func(s corev1.Service) bool { return s.Namespace == slice.Namespace && s.Name == slice.Name }) {
			continue
		}

		if err := ignoreRaces(n.plane.Client.Delete(ctx, slice)); err != nil {
			return err
		}
	}

	return nil
}

// connect connects the API server to the network of the pods, as konnectivity does. The API server
// sends CONNECT with the ClusterIP of a Service, and gets one of the ready pods at random, as by
// kube-proxy.
func (n *Node) connect(w http.ResponseWriter, r *http.Request) {
	inside, err := n.dialFromAPIServer(r.Context(), r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}

	rig.Tunnel(r.Context(), w, inside)
}

// dial connects to a ready pod, at random, of the Service with that route.
func (n *Node) dial(ctx context.Context, route string) (net.Conn, error) {
	chosen, err := oneOf(n.targetsOf(route), route)
	if err != nil {
		return nil, err
	}
	return chosen.pod.dial(ctx, chosen.port)
}

// targetsOf returns the ready pods of the Service with that route.
func (n *Node) targetsOf(route string) []target {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.routes[route]
}

// oneOf returns a target at random.
func oneOf(targets []target, address string) (target, error) {
	if len(targets) == 0 {
		return target{}, errors.New("no ready pod for " + address)
	}
	return targets[rand.IntN(len(targets))], nil
}

// dialFromAPIServer connects to the pod of a Service, or to that with the address. A firewall of the
// platform drops the packets.
func (n *Node) dialFromAPIServer(ctx context.Context, address string) (net.Conn, error) {
	targets := n.targetsOf(address)
	if len(targets) == 0 {
		targets = n.targetsAt(address)
	}
	chosen, err := oneOf(targets, address)
	if err != nil {
		return nil, err
	}

	if n.opts.Platform.lets(chosen) {
		return chosen.pod.dial(ctx, chosen.port)
	}

	select {
	case <-ctx.Done():
	case <-time.After(dropped):
	}
	return nil, fmt.Errorf("dial tcp %s: i/o timeout", address)
}

// dropped is the time after which a connection without an answer is given up, as in Linux.
const dropped = 30 * time.Second

// targetsAt returns the pod with an address.
func (n *Node) targetsAt(address string) (targets []target) {
	wanted, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil
	}
	for _, p := range n.running() {
		if p.ip == wanted.Addr() && p.serves() {
			targets = append(targets, target{p, wanted.Port()})
		}
	}
	return targets
}

// nodePort is the route of a node port.
func nodePort(port int32) string { return "node:" + strconv.Itoa(int(port)) }

// openNodePort leads an address on this machine to the pods of the Service with that node port. A
// connection without a ready pod is closed.
func (n *Node) openNodePort(port int32, address string) {
	n.t.Helper()

	relay, err := rig.NewRelayInto(address, func() (net.Conn, error) { return n.dial(n.ctx, nodePort(port)) })
	rig.NoError(n.t, err)
	n.work.Go(func() {
		<-n.ctx.Done()
		relay.Close()
	})
}

// openWays lets the pod reach Options.Hosts and the API server. It returns the addresses of the
// names.
func (p *pod) openWays() (map[string]netip.Addr, error) {
	names := p.node.hosts()

	for name, outside := range p.node.opts.Hosts {
		host, port, err := net.SplitHostPort(name)
		if err != nil {
			return nil, err
		}
		if err := p.openWay(net.JoinHostPort(names[host].String(), port), outside); err != nil {
			return nil, err
		}
	}

	maps.DeleteFunc(names, func(host string, _ netip.Addr) bool { return isAddress(host) })
	return names, p.openWay(p.node.apiServer(), p.node.apiServer())
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// hosts returns the addresses of the hosts in Options.Hosts, as pods see them.
func (n *Node) hosts() map[string]netip.Addr {
	hosts := map[string]netip.Addr{}
	next := n.opts.Platform.firstHost()
	for _, name := range slices.Sorted(maps.Keys(n.opts.Hosts)) {
		host, _, _ := net.SplitHostPort(name)
		if address, err := netip.ParseAddr(host); err == nil {
			hosts[host] = address
			continue
		}
		if !hosts[host].IsValid() {
			hosts[host] = next
			next = next.Next()
		}
	}
	return hosts
}

// outside returns the addresses of hosts that the loopback interface of the pod does not have from
// the start.
func (p *pod) outside() (addresses []netip.Addr) {
	for _, address := range p.node.hosts() {
		if !address.IsLoopback() {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

func (p *pod) openWay(inside, outside string) error {
	way, err := rig.NewRelayFrom(p.net.listen, inside, func() string { return outside })
	if err == nil {
		p.ways = append(p.ways, way)
	}
	return err
}
