// Inprocess runs the whole path in one process, without a cluster. README.md shows its output.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

func main() { run(context.Background(), os.Stdout) }

func run(ctx context.Context, out io.Writer) {
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	port := must(new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"))
	server := must(ca.Server("operator", testpki.Options{}))
	operator := newOperator(material(ca, server), port, out)

	client := must(ca.Client("runtime-1", testpki.Options{DNSNames: []string{"runtime-1.example.com"}}))
	address := port.Addr().String()
	forwarder := must(httpmtls.NewForwarder(material(ca, client), address, contract.V3, httpmtls.Options{}))
	agent := must(outbox.New(forwarder, outbox.Options{Epoch: "epoch-1"}))

	offer(agent, out, "new image        ", core.Change{Old: pod("v1"), New: pod("v2")})
	offer(agent, out, "same image       ", core.Change{Old: pod("v2"), New: pod("v2")})
	offer(agent, out, "new image dry-run", core.Change{Old: pod("v2"), New: pod("v3"), DryRun: true})

	listening, stop := context.WithCancel(ctx)
	sending, drain := context.WithCancel(ctx)
	drain() // The agent delivers all accepted events before it ends.
	go func() {
		defer stop()
		must(0, agent.Start(sending))
	}()
	must(0, operator.Start(listening))

	fmt.Fprintf(out, "runtime        counts             %+v\n", agent.Counts()["my-operator"])
}

// offer is a change source. It makes an event of a change that passes the filter.
func offer(agent core.Acceptor, out io.Writer, name string, change core.Change) {
	change.Operation = core.OperationUpdate
	outcome := core.Outcome("filtered")
	if core.Changed(&change) {
		outcome = agent.Accept("my-operator", must(change.Event(time.Now())))
	}
	fmt.Fprintf(out, "runtime        %s  %s\n", name, outcome)
}

// domains contains the domain of each runtime. A certificate of the runtime must contain the domain
// as a SAN.
type domains map[core.RuntimeID]string

func (d domains) Domain(_ context.Context, id core.RuntimeID, _ *core.WatchEvent) (string, error) {
	return d[id], nil
}

func newOperator(material *keys.Material, port net.Listener, out io.Writer) *listener.Listener {
	h := map[core.Manager]core.Handler{"my-operator": core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		_, err := fmt.Fprintf(out, "control plane  reconcile          %s, for %s\n", d.Runtime, d.Event.Watched)
		return err
	})}
	return must(listener.New(listener.FromTLS(keys.Roots(material), listener.PeerOptions{}),
		listener.SANPinning(domains{"runtime-1": "runtime-1.example.com"}), h,
		listener.Options{Listener: port, TLS: keys.ServerTLSConfig(material)}))
}

func pod(image string) *core.Object {
	return must(core.NewObject(map[string]any{
		"apiVersion": "v1",
		"kind":       "Pod",
		"metadata":   map[string]any{"namespace": "default", "name": "demo"},
		"spec":       map[string]any{"image": image},
	}))
}

func material(ca *testpki.CA, leaf *testpki.Leaf) *keys.Material {
	return must(keys.NewMaterial(ca.PEM, leaf.CertPEM, leaf.KeyPEM))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
