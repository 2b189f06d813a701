package loss

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/operator"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// gatewayName is in the certificate of the gateway.
const gatewayName = "gateway.default.svc"

// replica is a process of the operator.
type replica struct {
	*lab.Process

	listen  string
	records *record.Reader
}

// startOperators starts the operator, and the path that leads to it.
func (s *scene) startOperators() {
	s.t.Helper()
	addr := lab.Address(lab.FreePort(s.t))
	settings := operator.Settings{Listen: addr}
	switch {
	case s.with.transport == transportNATS:
		addr = s.startBroker(&settings)
	case s.with.way != "":
		addr = s.startReplicas()
	default:
		settings.Keys = kit.Paths(s.newSecret(false, addr, issueServer))
	}
	if s.with.way == "" {
		s.startOperator(settings)
	}
	s.path = NewPath(s.t, s.pki, addr)
}

func (s *scene) startOperator(settings operator.Settings) {
	s.t.Helper()
	name := fmt.Sprintf("operator-%d", len(s.operators))
	settings.Kubeconfig, settings.Record = s.plane.Kubeconfig, filepath.Join(s.t.TempDir(), name+".jsonl")
	settings.Manager = manager
	settings.Runtime = s.name
	settings.Namespace = s.name
	settings.Poll = 200 * time.Millisecond
	one := &replica{
		lab.NewProcess(s.t, name, lab.Must(os.Executable()), settings.Environ()),
		settings.Listen, record.NewReader(settings.Record),
	}
	one.Launch()
	s.operators = append(s.operators, one)
}

// startBroker starts a NATS server, or a cluster, and returns the address of the first. The operator
// has a way of its own to it, which can be cut.
func (s *scene) startBroker(settings *operator.Settings) string {
	s.t.Helper()
	s.brokers = lab.StartBroker(s.t, lab.BrokerOptions{
		Program: lab.NATSServers(s.t)[s.with.server], Nodes: s.with.nodes, CA: s.pki.CA,
	}, lab.OperatorUser(manager), lab.RuntimeUser(core.RuntimeID(s.name), manager)).Nodes
	settings.StreamReplicas = s.with.nodes
	s.cable = lab.Must(lab.NewRelay(lab.Address(lab.FreePort(s.t)), 0, s.brokers[0].Addr))
	s.t.Cleanup(s.cable.Close)
	leaf := lab.Must(s.pki.CA.Client("operator", testpki.Options{DNSNames: []string{lab.OperatorDomain(manager)}}))
	settings.Keys, settings.NATS = kit.Paths(s.pki.Volume(leaf)), "tls://"+s.cable.Addr()
	return s.brokers[0].Addr
}

// startReplicas starts three replicas and a gateway, and returns the address of the gateway.
func (s *scene) startReplicas() string {
	s.t.Helper()
	var upstreams []string
	for number := range 3 {
		settings := operator.Settings{Listen: lab.Address(lab.FreePort(s.t)), Gateway: gatewayName}
		settings.Keys = kit.Paths(s.newSecret(false, settings.Listen, func(ca *testpki.CA) (*testpki.Leaf, error) {
			return ca.Client("operator", testpki.Options{DNSNames: []string{operator.Name, "localhost"}, Usages: lab.BothUsages()})
		}))
		if s.with.way != active {
			settings.Replica = &operator.Replica{Service: s.serviceName(), Number: number + 1, Lease: *lease}
		}
		s.startOperator(settings)
		upstreams = append(upstreams, settings.Listen)
	}
	if s.with.way != active {
		s.awaitLeader(nil)
	}
	if s.with.way == route {
		service := lab.Must(lab.NewRelayTo(lab.Address(lab.FreePort(s.t)), s.leaderAddress))
		s.t.Cleanup(service.Close)
		upstreams = []string{service.Addr()}
	}
	address := lab.Address(lab.FreePort(s.t))
	opts := lab.GatewayOptions{Addr: address, Upstream: upstreams[0], Others: upstreams[1:]}
	opts.ClientCA, opts.Certificate, opts.Key = s.newSecret(false, address, issueServer).Paths()
	opts.UpstreamCA, opts.UpstreamCertificate, opts.UpstreamKey = s.newSecret(false, "", func(ca *testpki.CA) (*testpki.Leaf, error) {
		return ca.Client("gateway", testpki.Options{DNSNames: []string{gatewayName}})
	}).Paths()
	s.gateway = lab.StartGateway(s.t, opts)
	return s.gateway.Addr
}

// awaitShared waits until each fleet has found that others take a part of the numbers. From then on, a gap leads to no
// resync. Before, each process has those of its start and of a few gaps.
func (s *scene) awaitShared() {
	s.t.Helper()
	for n, one := range s.operators {
		lab.Eventually(s.t, patience, fmt.Sprintf("replica %d finds that others take events", n), func() bool {
			return strings.Contains(one.FullLog(), "reason=shared_by_replicas")
		})
	}
}

// serviceName is also that of the Lease. The canary has a Lease with the name of the scene.
func (s *scene) serviceName() string { return "operator-" + s.name }

// leaderAddress is that of the EndpointSlice, "" without a leader.
func (s *scene) leaderAddress() string {
	var slice discoveryv1.EndpointSlice
	key := client.ObjectKey{Namespace: lab.Namespace, Name: s.serviceName() + "-leader"}
	if err := s.plane.Client.Get(s.t.Context(), key, &slice); err != nil || len(slice.Endpoints) == 0 {
		return ""
	}
	for _, port := range slice.Ports {
		if *port.Name == operator.PortEvents {
			return lab.Address(int(*port.Port))
		}
	}
	return ""
}

// awaitLeader returns the replica that the EndpointSlice leads to and that runs. One that lost its Lease has ended, and
// is started again. One that was killed is not.
func (s *scene) awaitLeader(killed *replica) (leader *replica) {
	s.t.Helper()
	lab.Eventually(s.t, patience, "a replica leads", func() bool {
		address := s.leaderAddress()
		for _, one := range s.operators {
			if one != killed {
				one.Launch()
			}
			if one.Running() && one.listen == address {
				leader = one
			}
		}
		return leader != nil
	})
	return leader
}

// killLeader kills the leader, and starts it again when another replica leads.
func (s *scene) killLeader() {
	s.t.Helper()
	old := s.awaitLeader(nil)
	killed := record.Now()
	old.Kill()
	s.awaitLeader(old)
	s.t.Logf("another replica leads %v after the kill", (record.Now() - killed).Round(time.Millisecond))
	old.Launch()
}
