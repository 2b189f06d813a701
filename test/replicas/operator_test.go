package replicas_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/gateway"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
	"github.com/runtime-watcher/runtime-watcher/test/replicas/replica"
)

// patience bounds every wait, on a busy machine, too.
const patience = 60 * time.Second

// way is how a request finds the leader.
type way string

const (
	// turns means that the gateway asks the replicas in turn, and nothing else.
	turns way = "turns"
	// route means that a Service leads the gateway to the leader.
	route way = "route"
	// relay means that the gateway asks the replicas in turn, and they relay.
	relay way = "relay"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// operator is the replicas of an operator behind a gateway.
type operator struct {
	t        *testing.T
	way      way
	name     string
	plane    *apiserver.ControlPlane
	pki      *lab.PKI
	replicas []*process
	gateway  *gateway.Nginx

	// enqueued has the time at which an object was enqueued first.
	enqueued map[string]time.Duration
}

// process is one replica.
type process struct {
	*lab.Process

	settings replica.Settings
	records  *record.Reader
}

// operators counts the operators of this process, which share an API server.
var operators atomic.Int32

// startOperator returns when one replica leads.
func startOperator(t *testing.T, w way, count int, lease time.Duration) *operator {
	t.Helper()
	gateway.Require(t)
	o := &operator{
		t: t, way: w, name: fmt.Sprintf("operator-%d", operators.Add(1)),
		plane: lab.SharedAPIServer(t, apiserver.Options{}), pki: lab.NewPKI(t), enqueued: map[string]time.Duration{},
	}
	leaf := must(o.pki.CA.Client("operator", testpki.Options{
		DNSNames: []string{replica.Name, "localhost"}, Usages: lab.BothUsages(),
	}))
	volume := o.pki.Volume(leaf)
	for number := range count {
		o.add(number+1, volume, lease)
	}
	lab.Eventually(t, patience, "a replica leads", func() bool { return o.leader() != nil })
	o.startGateway()
	return o
}

func (o *operator) add(number int, volume *testpki.Volume, lease time.Duration) {
	s := replica.Settings{
		Kubeconfig: o.plane.Kubeconfig, Record: filepath.Join(o.t.TempDir(), fmt.Sprint("replica-", number)),
		Operator: o.name, Number: number, Listen: lab.FreePort(o.t), Relay: lab.FreePort(o.t),
		Relays: o.way == relay, Lease: lease,
	}
	s.CA, s.Certificate, s.Key = volume.Paths()
	p := &process{
		lab.NewProcess(o.t, fmt.Sprint("replica ", number), must(os.Executable()), append(s.Env(), program+"=replica")),
		s, record.NewReader(s.Record),
	}
	p.Launch()
	o.replicas = append(o.replicas, p)
}

func (o *operator) startGateway() {
	upstreams := []string{startServiceOf(o)}
	if o.way != route {
		upstreams = nil
		for _, p := range o.replicas {
			upstreams = append(upstreams, lab.Address(p.settings.Listen))
		}
	}
	opts := gateway.Options{Upstream: upstreams[0], Others: upstreams[1:]}
	front := o.pki.Volume(must(o.pki.CA.Server("gateway", testpki.Options{})))
	back := o.pki.Volume(must(o.pki.CA.Client("gateway", testpki.Options{DNSNames: []string{replica.GatewayName}})))
	opts.ClientCA, opts.Certificate, opts.Key = front.Paths()
	opts.UpstreamCA, opts.UpstreamCertificate, opts.UpstreamKey = back.Paths()
	o.gateway = gateway.Start(o.t, opts)
}

func startServiceOf(o *operator) string { return startService(o.t, o.leaderAddress).addr() }

// leaderAddress is that of the EndpointSlice.
func (o *operator) leaderAddress() string {
	var slice discoveryv1.EndpointSlice
	key := client.ObjectKey{Namespace: replica.Namespace, Name: o.name + "-leader"}
	if err := o.plane.Client.Get(o.t.Context(), key, &slice); err != nil || len(slice.Endpoints) == 0 {
		return ""
	}
	for _, port := range slice.Ports {
		if *port.Name == replica.PortEvents {
			return lab.Address(int(*port.Port))
		}
	}
	return ""
}

// leader is the replica that the EndpointSlice leads to, if it runs.
func (o *operator) leader() *process {
	address := o.leaderAddress()
	for _, p := range o.replicas {
		if p.Running() && lab.Address(p.settings.Listen) == address {
			return p
		}
	}
	return nil
}

// holder identifies the process that holds the Lease.
func (o *operator) holder() string {
	o.t.Helper()
	var held coordinationv1.Lease
	key := client.ObjectKey{Namespace: replica.Namespace, Name: o.name}
	if err := o.plane.Client.Get(o.t.Context(), key, &held); err != nil {
		o.t.Fatal(err)
	}
	if held.Spec.HolderIdentity == nil {
		return ""
	}
	return *held.Spec.HolderIdentity
}

// read reads the new records of all replicas.
func (o *operator) read() {
	o.t.Helper()
	for _, p := range o.replicas {
		for _, entry := range must(p.records.Next()) {
			d := entry.Delivery
			if _, known := o.enqueued[d.Object]; d.Refused == "" && !known {
				o.enqueued[d.Object] = d.At
			}
		}
	}
}
