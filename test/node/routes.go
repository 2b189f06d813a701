package node

import (
	"cmp"
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// target is a port of a pod that a Service leads to.
type target struct {
	pod  *pod
	port uint16
}

// ServeHTTP takes the API server into the network of the pods, as konnectivity does in clusters whose API server is elsewhere: it asks for the
// ClusterIP of a Service, and gets to one of the pods that are ready, as kube-proxy would choose.
func (n *Node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		w.WriteHeader(http.StatusMethodNotAllowed)

		return
	}

	if !n.begin() {
		return
	}
	defer n.carriers.Done()

	chosen, found := n.choose(r.Host)
	if !found { // As kube-proxy refuses.
		w.WriteHeader(http.StatusServiceUnavailable)

		return
	}

	inside, err := chosen.pod.net.dial(r.Context(), netip.AddrPortFrom(chosen.pod.ip, chosen.port))
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)

		return
	}

	outside, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		n.t.Errorf("node: %v", err)
		inside.Close()

		return
	}

	_, _ = io.WriteString(outside, "HTTP/1.1 200 OK\r\n\r\n") // Else carry ends at once.

	carry(inside, outside)
}

// begin reports whether the node goes on. Then whoever asked must tell carriers when it is done.
func (n *Node) begin() bool {
	n.mu.Lock()
	defer n.mu.Unlock()

	if n.ended {
		return false
	}

	n.carriers.Add(1)

	return true
}

func (n *Node) choose(address string) (target, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()

	targets := n.routes[address]
	if len(targets) == 0 {
		return target{}, false
	}

	return targets[rand.IntN(len(targets))], true
}

// carry ends both connections when one ends.
func carry(a, b net.Conn) {
	var once sync.WaitGroup

	copyOver := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // It ends somehow.
		_ = to.Close()
		_ = from.Close()
	}

	once.Go(func() { copyOver(a, b) })
	once.Go(func() { copyOver(b, a) })
	once.Wait()
}

// lead sets where the Services lead to.
func (n *Node) lead(services []corev1.Service, pods []*pod) {
	routes := map[string][]target{}

	for i := range services {
		service := &services[i]

		for _, port := range service.Spec.Ports {
			address := netip.AddrPortFrom(parse(service.Spec.ClusterIP), uint16(port.Port))

			for _, p := range selected(service, pods) {
				number, err := p.port(cmp.Or(port.TargetPort.String(), port.Name))
				if err == nil && p.isReady() && !p.isEnding() {
					routes[address.String()] = append(routes[address.String()], target{p, number})
				}
			}
		}
	}

	n.mu.Lock()
	defer n.mu.Unlock()

	n.routes = routes
}

func parse(address string) netip.Addr {
	parsed, _ := netip.ParseAddr(address) // A headless Service leads nowhere.

	return parsed
}

func selected(service *corev1.Service, pods []*pod) (found []*pod) {
	if len(service.Spec.Selector) == 0 {
		return nil
	}

	for _, p := range pods {
		matches := p.owner.Namespace == service.Namespace

		for key, value := range service.Spec.Selector {
			matches = matches && p.labels[key] == value
		}

		if matches {
			found = append(found, p)
		}
	}

	return found
}

// openWays lets the pod reach what a test offers outside, and the API server. It returns the addresses of names.
func (p *pod) openWays() (map[string]netip.Addr, error) {
	names := map[string]netip.Addr{}
	next := netip.AddrFrom4([4]byte{127, 1, 0, 0})

	for _, name := range slices.Sorted(maps.Keys(p.node.opts.Hosts)) {
		host, port, err := net.SplitHostPort(name)
		if err != nil {
			return nil, err
		}

		if !names[host].IsValid() {
			next = next.Next()
			names[host] = next
		}

		if err := p.openWay(net.JoinHostPort(names[host].String(), port), p.node.opts.Hosts[name]); err != nil {
			return nil, err
		}
	}

	return names, p.openWay(p.node.apiServer(), p.node.apiServer())
}

func (p *pod) openWay(inside, outside string) error {
	address, err := netip.ParseAddrPort(inside)
	if err != nil {
		return err
	}

	way, err := p.net.listen(address)
	if err != nil {
		return err
	}

	p.ways = append(p.ways, way)
	p.carriers.Go(func() {
		for {
			conn, err := way.Accept()
			if err != nil {
				return
			}

			p.carriers.Go(func() { carryOut(conn, outside) })
		}
	})

	return nil
}

func carryOut(inside net.Conn, address string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()

	outside, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		_ = inside.Close() // Who made it notices.

		return
	}

	carry(inside, outside)
}
