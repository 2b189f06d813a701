package loss

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
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
	leaf := lab.Must(s.pki.CA.Server("listener", testpki.Options{}))
	addr := lab.Address(lab.FreePort(s.t))
	settings := operator.Settings{Listen: addr}
	switch {
	case s.with.transport == transportNATS:
		addr = s.startBroker(&settings)
	case s.with.way != "":
		addr = s.startReplicas()
	default:
		settings.Keys = pathsOf(s.pki.Volume(leaf))
	}
	if s.with.way == "" {
		s.startOperator(settings)
	}
	path, err := NewPath(lab.Address(lab.FreePort(s.t)), lab.Address(lab.FreePort(s.t)), addr, leaf.TLS)
	s.must(err)
	s.path = path
	s.t.Cleanup(path.Close)
}

func (s *scene) startOperator(settings operator.Settings) {
	s.t.Helper()
	name := fmt.Sprintf("operator-%d", len(s.operators))
	settings.Kubeconfig, settings.Record = s.plane.Kubeconfig, filepath.Join(s.t.TempDir(), name+".jsonl")
	settings.Manager, settings.Runtime, settings.Namespace = manager, s.name, s.name
	one := &replica{
		lab.NewProcess(s.t, name, self(), append(settings.Environ(), program+"=operator")),
		settings.Listen, record.NewReader(settings.Record),
	}
	one.Launch()
	s.operators = append(s.operators, one)
}

func pathsOf(volume *testpki.Volume) keys.Paths {
	ca, cert, key := volume.Paths()
	return keys.Paths{CA: ca, Certificate: cert, Key: key}
}

// startBroker starts a NATS server, or a cluster, and returns the address of the first. The operator
// has a way of its own to it, which can be cut.
func (s *scene) startBroker(settings *operator.Settings) string {
	s.t.Helper()
	s.brokers = lab.StartBroker(s.t, lab.BrokerOptions{
		Program: lab.NATSServers(s.t)[s.with.server], Nodes: s.with.nodes, CA: s.pki.CA,
	}, lab.OperatorUser(manager), lab.RuntimeUser(core.RuntimeID(s.name), manager)).Nodes
	settings.StreamReplicas = s.with.nodes
	cable, err := lab.NewRelay(lab.Address(lab.FreePort(s.t)), 0, s.brokers[0].Addr)
	s.must(err)
	s.t.Cleanup(cable.Close)
	s.cable = cable
	leaf := lab.Must(s.pki.CA.Client("operator", testpki.Options{DNSNames: []string{lab.OperatorDomain(manager)}}))
	settings.Keys, settings.NATS = pathsOf(s.pki.Volume(leaf)), "tls://"+cable.Addr()
	return s.brokers[0].Addr
}

// startReplicas starts three replicas and a gateway, and returns the address of the gateway.
func (s *scene) startReplicas() string {
	s.t.Helper()
	files := pathsOf(s.pki.Volume(lab.Must(s.pki.CA.Client("operator", testpki.Options{
		DNSNames: []string{operator.Name, "localhost"}, Usages: lab.BothUsages(),
	}))))
	var upstreams []string
	for number := range 3 {
		settings := operator.Settings{
			Listen: lab.Address(lab.FreePort(s.t)), Keys: files, Gateway: gatewayName,
		}
		if s.with.way != active {
			settings.Replica = &operator.Replica{Service: s.serviceName(), Number: number + 1, Lease: *lease}
		}
		s.startOperator(settings)
		upstreams = append(upstreams, settings.Listen)
	}
	if s.with.way != active {
		lab.Eventually(s.t, time.Minute, "a replica leads", func() bool { return s.leader() != nil })
	}
	if s.with.way == route {
		service, err := lab.NewRelayTo(lab.Address(lab.FreePort(s.t)), s.leaderAddress)
		s.must(err)
		s.t.Cleanup(service.Close)
		upstreams = []string{service.Addr()}
	}
	front := s.pki.Volume(lab.Must(s.pki.CA.Server("gateway", testpki.Options{})))
	back := s.pki.Volume(lab.Must(s.pki.CA.Client("gateway", testpki.Options{DNSNames: []string{gatewayName}})))
	opts := lab.GatewayOptions{Upstream: upstreams[0], Others: upstreams[1:]}
	opts.ClientCA, opts.Certificate, opts.Key = front.Paths()
	opts.UpstreamCA, opts.UpstreamCertificate, opts.UpstreamKey = back.Paths()
	return lab.StartGateway(s.t, opts).Addr
}

// checkShared makes sure that each fleet found that others take a part of the numbers. From then on,
// a gap leads to no resync. Before, each process has those of its start and of a few gaps.
func (s *scene) checkShared(r *result) {
	s.t.Helper()
	const most = 40
	for n, one := range s.operators {
		if !strings.Contains(one.FullLog(), "reason=shared_by_replicas") {
			s.t.Errorf("replica %d did not find that others take events", n)
		}
	}
	s.t.Logf("%d events, %d resyncs", r.events, r.resyncs)
	if r.resyncs > most {
		s.t.Errorf("want at most %d resyncs", most)
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

// leader is the replica that the EndpointSlice leads to, if it runs.
func (s *scene) leader() *replica {
	address := s.leaderAddress()
	for _, one := range s.operators {
		if one.Running() && one.listen == address {
			return one
		}
	}
	return nil
}

// holder identifies the process that holds the Lease.
func (s *scene) holder() string {
	s.t.Helper()
	var held coordinationv1.Lease
	s.must(s.plane.Client.Get(s.t.Context(), client.ObjectKey{Namespace: lab.Namespace, Name: s.serviceName()}, &held))
	if held.Spec.HolderIdentity == nil {
		return ""
	}
	return *held.Spec.HolderIdentity
}

// killLeader kills the leader and starts it again. It returns when another process leads.
func (s *scene) killLeader() {
	s.t.Helper()
	old, holder, killed := s.leader(), s.holder(), record.Now()
	if old == nil {
		s.t.Fatal("no replica leads")
	}
	old.Kill()
	old.Launch()
	lab.Eventually(s.t, time.Minute+2**lease, "another process leads", func() bool { return s.holder() != holder })
	s.t.Logf("another process leads %v after the kill", (record.Now() - killed).Round(time.Millisecond))
}
