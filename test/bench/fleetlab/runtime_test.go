package fleetlab

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// network is what all runtimes share.
type network struct {
	oracle *kit.Oracle
	// replicas stands for the Service of the operator: a new connection goes to one of these
	// addresses at random, as with kube-proxy.
	replicas atomic.Pointer[[]string]
	// acks are the durations of requests with events that were acknowledged.
	acks kit.Samples
	// dials counts attempts to connect, and failures the requests that failed.
	dials, failures atomic.Int64
}

func (n *network) lead(addresses ...string) { n.replicas.Store(&addresses) }

// runtime is one runtime with its agent. It has an address of its own.
type runtime struct {
	number  int
	name    string
	network *network
	dialer  net.Dialer

	leaf     *testpki.Leaf
	material atomic.Pointer[keys.Material]
	agent    atomic.Pointer[kit.Agent]
	// dead means that the agent is killed: it says no farewell.
	dead atomic.Bool
}

func newRuntime(n *network, number int) *runtime {
	const perByte, first = 250, 1
	from := net.IPv4(127, byte(first+number/perByte/perByte), byte(number/perByte%perByte), byte(first+number%perByte))
	return &runtime{
		number: number, name: kit.RuntimeName(number), network: n,
		dialer: net.Dialer{LocalAddr: &net.TCPAddr{IP: from}},
	}
}

// renew gives the runtime a certificate of ca, with its domain.
func (r *runtime) renew(ca *testpki.CA) {
	r.leaf = lab.Must(ca.Client(r.name, testpki.Options{DNSNames: []string{lab.RuntimeDomain(core.RuntimeID(r.name))}}))
}

// trust replaces the CA bundle.
func (r *runtime) trust(cas ...*testpki.CA) {
	r.material.Store(lab.Material(r.leaf, cas...))
}

// Material implements [keys.Source].
func (r *runtime) Material() (*keys.Material, error) { return r.material.Load(), nil }

// start starts the agent with a new epoch.
func (r *runtime) start() {
	r.dead.Store(false)
	r.agent.Store(lab.Must(kit.StartAgent(context.Background(), manager,
		agentlib.Parts{Tracing: r, ClientKeys: r, Dial: r.dial}, agentlib.Options{
			Instance: "runtime-watcher-agent-0", Version: "v0.0.0-lab", ConfigHash: "6b86b273ff34fce1",
			ControlPlane: agentlib.ControlPlane{Address: "localhost", Protocol: *protocol},
			Outbox:       outbox.Options{HeartbeatInterval: *heartbeat},
		})))
}

// stop ends the agent as SIGKILL does.
func (r *runtime) stop() {
	if agent := r.agent.Load(); agent != nil {
		r.dead.Store(true)
		agent.Kill()
	}
}

func (r *runtime) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	r.network.dials.Add(1)
	replicas := *r.network.replicas.Load()
	return r.dialer.DialContext(ctx, network, replicas[rand.IntN(len(replicas))])
}

// change is a change of one of the runtime's objects at this moment.
func (r *runtime) change(object int) {
	r.network.oracle.Changed(r.number)
	r.agent.Load().Change(core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "object-" + strconv.Itoa(object)},
		WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Operation:  core.OperationUpdate, Field: core.FieldSpec, Generation: 1, Time: time.Now(),
	})
}

// Webhook implements Tracing of [agentlib.Parts].
func (*runtime) Webhook(next http.Handler) http.Handler { return next }

// Acceptor implements Tracing of [agentlib.Parts].
func (*runtime) Acceptor(next core.Acceptor) core.Acceptor { return next }

// Forwarder measures each attempt. It implements Tracing of [agentlib.Parts].
func (r *runtime) Forwarder(next core.Forwarder) core.Forwarder {
	return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		if r.dead.Load() {
			return context.Canceled
		}
		began := time.Now()
		err := next.Forward(ctx, manager, batch)
		switch {
		case err != nil:
			r.network.failures.Add(1)
		case len(batch.Events) > 0:
			r.network.acks.Add(time.Since(began))
		}
		return err
	})
}
