package main

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/nats-io/nats.go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

// broker is a NATS server between runtimes and operator.
type broker struct {
	*lab.Broker

	// conn is the connection of the operator.
	conn *nats.Conn
}

func (d *demo) startBroker() string {
	server := lab.StartBroker(d, lab.BrokerOptions{CA: d.pki.CA},
		lab.RuntimeUser(runtimeName, component), lab.RuntimeUser(neighbour, component), lab.OperatorUser(component))
	d.failsWith(server.Nodes[0].Process, "the NATS server", "NATS server n0.log")
	d.broker = &broker{server, server.Operator(component)}
	d.await("the operator's connection to NATS", d.broker.conn.IsConnected)

	return fmt.Sprintf("at %s, one user for %s and one for the operator", server.URLs(), runtimeName)
}

// embedConsumer adds a consumer to an operator, instead of a listener.
func (o *operator) embedConsumer(
	mgr manager.Manager, object *metav1.PartialObjectMetadata, runtimes *controllerruntime.Runtimes,
) error {
	o.source = controllerruntime.NewSource(controllerruntime.EnqueueByRuntime(runtimes), o.sourceOptions())
	events, err := natsjetstream.NewConsumer(o.broker.conn, listener.SANPinning(runtimes),
		map[core.Manager]core.Handler{component: o.source},
		natsjetstream.Options{Peer: mapped, Logger: o.log, Fleet: o.fleet})
	if err != nil {
		return err
	}

	o.source.Follow(o.fleet, component)
	if err := runtimes.Track(o.fleet, component); err != nil {
		return err
	}

	ready := func(*http.Request) error { return events.Ready() }
	return errors.Join(mgr.Add(events), mgr.AddReadyzCheck("events", ready),
		builder.ControllerManagedBy(mgr).For(object).WatchesRawSource(o.source).Complete(o))
}

// mapped returns the ID of a runtime and the SAN that the NATS server requires in its certificate.
func mapped(runtime core.RuntimeID) core.Peer {
	return core.Peer{ID: runtime, CommonName: string(runtime), DNSNames: []string{domainOf(string(runtime))}}
}
