package simulation

import (
	"context"
	"net"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// malformedBodies are not batches. The first three look like acknowledgements of a server, as any
// message does that has no headers and is not a list.
var malformedBodies = []string{
	`{}`, ``, `no JSON at all`, `[`, `[{"specversion":"1.0"}]`, `[{"specversion":"1.0","type":"unknown","source":"/runtimes/other","id":"1"}]`,
}

// publishMalformed publishes messages as a runtime, spread over the fault. The last kind is a mixture.
func (w *world) publishMalformed(f Fault) {
	name := w.plan.Runtimes[f.Runtime].Name
	dialer := natsDialer{w.network, name + " itself", name + " itself", w.over}
	conn := connectNATS(name, dialer, natsjetstream.ConnectOptions(core.RuntimeID(name), noCertificate))
	defer conn.Close()

	for i := range f.Value {
		if !w.sleepUntil(f.At + f.For*time.Duration(i)/time.Duration(f.Value)) {
			return
		}
		kind := f.Index
		if kind == len(malformedBodies) {
			kind = i % kind
		}
		_ = conn.Publish(natsjetstream.Subject(w.plan.Managers[0], core.RuntimeID(name)), []byte(malformedBodies[kind]))
	}
	_ = conn.FlushTimeout(time.Second)
}

// lieInterval is the interval of the heartbeats of a liar.
const lieInterval = 29 * time.Second

// lie sends heartbeats with invented numbers as a runtime that has a valid certificate.
func (w *world) lie(r *RuntimePlan) {
	forwarder := lab.Must(httpmtls.NewForwarder(w.pki.clientKeys(r.Name), serverName, contract.V3, httpmtls.Options{
		Identity: core.RuntimeID(r.Name),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return w.network.dial(ctx, r.Name, serverName)
		},
	}))
	defer func() { _ = forwarder.Close() }()

	history := w.history.Agent(r.Name, r.Name, true)
	defer func() { history.Ended(false, 0) }()
	history.Connected()

	for number := uint64(1); !w.over(); number++ {
		for _, manager := range w.plan.Managers {
			batch := core.Batch{Epoch: r.Name, Heartbeat: &core.Heartbeat{
				ID: r.Name, Time: time.Now(), Number: number, Interval: lieInterval, Pending: r.Lies, OldestPending: time.Duration(r.Lies),
			}}
			started := time.Now()
			err := forwarder.Forward(context.Background(), manager, batch)
			history.Attempted(manager, batch, started, err)
			w.logf("%s claims %d pending events to %s: %v", r.Name, r.Lies, manager, err)
		}
		sleep(lieInterval)
	}
}
