// Inprocess runs the whole path in one process, without a cluster: from a write in a runtime to the
// request for a reconcile. Between them are the filter, the outbox, mutual TLS and the listener.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const domain = "runtime-1.example.com"

func main() { run(context.Background(), os.Stdout) }

func run(ctx context.Context, out io.Writer) {
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	port := must(new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"))
	operator := newOperator(keys(ca, must(ca.Server("operator", testpki.Options{}))), port, out)
	client := must(ca.Client("runtime-1", testpki.Options{DNSNames: []string{domain}}))
	agent := newAgent(keys(ca, client), port.Addr().String())

	offer(agent, "new image        ", core.Change{Old: deployment("v1"), New: deployment("v2")}, out)
	offer(agent, "same image       ", core.Change{Old: deployment("v2"), New: deployment("v2")}, out)
	offer(agent, "new image dry-run", core.Change{Old: deployment("v2"), New: deployment("v3"), DryRun: true}, out)

	listening, stopListening := context.WithCancel(ctx)
	stopped := make(chan error)
	go func() { stopped <- operator.Start(listening) }()

	sending, stopSending := context.WithCancel(ctx)
	stopSending() // Start delivers everything that was accepted before it returns.
	must(0, agent.Start(sending))
	stopListening()
	must(0, <-stopped)
	fmt.Fprintf(out, "runtime        counts             %+v\n", agent.Counts()["my-operator"])
}

// offer is a change source: it makes an event of a write that the filter passes.
func offer(agent core.Acceptor, name string, write core.Change, out io.Writer) {
	write.Operation = core.OperationUpdate
	if !core.Changed(&write) {
		fmt.Fprintf(out, "runtime        %s  filtered\n", name)
		return
	}
	fmt.Fprintf(out, "runtime        %s  %s\n", name, agent.Accept("my-operator", must(write.Event(time.Now()))))
}

// newOperator is the control plane: a listener that pins runtimes to their domains, and a handler.
func newOperator(keys httpmtls.Source, port net.Listener, out io.Writer) *listener.Listener {
	domains := listener.DomainsFunc(func(context.Context, core.RuntimeID, *core.WatchEvent) (string, error) {
		return domain, nil
	})
	enqueue := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		fmt.Fprintf(out, "control plane  reconcile          %s, for %s\n", d.Runtime, d.Event.Watched)
		return nil
	})
	return must(listener.New(
		listener.FromTLSWithRoots(httpmtls.Roots(keys), listener.PeerOptions{}), listener.SANPinning(domains),
		map[core.Manager]core.Handler{"my-operator": enqueue},
		listener.Options{Listener: port, TLS: httpmtls.ServerTLSConfig(keys)}))
}

// newAgent is the runtime: an outbox that sends by HTTPS.
func newAgent(keys httpmtls.Source, address string) *outbox.Outbox {
	forwarder := must(httpmtls.NewForwarder(keys, address, contract.V3, httpmtls.Options{}))
	return must(outbox.New(forwarder, outbox.Options{Epoch: "epoch-1", MaxBatch: contract.V3.MaxEvents()}))
}

func deployment(image string) *core.Object {
	return must(core.NewObject(map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"namespace": "default", "name": "demo"}, "spec": map[string]any{"image": image},
	}))
}

func keys(ca *testpki.CA, leaf *testpki.Leaf) *httpmtls.Material {
	return must(httpmtls.NewMaterial(ca.PEM(), leaf.CertPEM(), must(leaf.KeyPEM())))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
