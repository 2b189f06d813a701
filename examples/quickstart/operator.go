package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

// component is the name of the operator in the runtimes: the manager of their watches.
const component = "quickstart"

// operator reads the state of a runtime at each reconcile.
type operator struct {
	addr string
	// clusters contains a client for each runtime. Here there is one runtime.
	clusters map[string]client.Client
	source   *controllerruntime.Source[reconcile.Request]
	journal  *journal
	// broker is the NATS server, nil without one.
	broker *broker
	log    *slog.Logger
	// fleet contains the freshness of each runtime.
	fleet *fleet.Fleet
}

// embedListener adds a listener to an operator. A change in a runtime reconciles the Runtime of
// that name, and no other.
func (o *operator) embedListener(mgr manager.Manager, material keys.Source) error {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(runtimeKind())

	runtimes, err := controllerruntime.NewRuntimes(mgr.GetCache(), object, controllerruntime.ByName,
		controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	if o.broker != nil {
		return o.embedConsumer(mgr, object, runtimes)
	}

	events, err := controllerruntime.AddListener(mgr, controllerruntime.ListenerConfig{
		Addr: o.addr, Senders: controllerruntime.MutualTLS(material), Verifier: listener.SANPinning(runtimes),
		Fleet: o.fleet, Runtimes: runtimes, Logger: o.log,
	})
	if err != nil {
		return err
	}

	o.source, err = controllerruntime.SourceFor(events, component, controllerruntime.EnqueueByRuntime(runtimes),
		o.sourceOptions())
	if err != nil {
		return err
	}

	return builder.ControllerManagedBy(mgr).For(object).WatchesRawSource(o.source).Complete(o)
}

// Reconcile reads all watched objects of a runtime, because an event only says that something may
// have changed.
func (o *operator) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	started := time.Now()
	sees := "nothing"
	if cluster, reachable := o.clusters[request.Name]; reachable {
		// The source notes the reads of this client, so that a resend of a write that was read
		// starts no second reconcile.
		there := o.source.Client(request, core.RuntimeID(request.Name), cluster)
		var err error
		sees, err = look(ctx, there)
		if err != nil {
			return reconcile.Result{}, err
		}
	}

	o.journal.enter(entry{operatorReconciles, core.RuntimeID(request.Name), sees, started},
		"reconciles %s, sees %s", request.Name, sees)
	return reconcile.Result{}, nil
}

// sourceOptions keep a journal of the deliveries.
func (o *operator) sourceOptions() controllerruntime.SourceOptions {
	return controllerruntime.SourceOptions{Handled: func(h hook.Handled) {
		d := h.Delivery
		object := aResync
		if !d.Event.Resync {
			object = fmt.Sprintf("%s %s", d.Event.WatchedGVK.Kind, d.Event.Watched)
		}

		if h.Err == nil {
			o.journal.enter(entry{where: listenerAccepts, runtime: d.Runtime, about: object},
				"accepts an event of %s: %s", d.Runtime, object)
		}
	}}
}

// startOperator runs the operator in this process. It returns after the first reconcile of each
// runtime.
func (d *demo) startOperator() string {
	watched, err := fleet.New(fleet.Options{Logger: d.Logger})
	lab.NoError(d, err)

	mgr, err := manager.New(d.controlPlane.Config,
		manager.Options{Metrics: d.metricsOptions(watched), Scheme: d.controlPlane.Client.Scheme()})
	lab.NoError(d, err)

	d.operator = &operator{
		addr: lab.Address(lab.FreePort(d)), clusters: make(map[string]client.Client),
		journal: &d.journal, broker: d.broker, log: d.Logger, fleet: watched,
	}
	for _, r := range d.remotes {
		d.operator.clusters[r.name] = r.cluster.Client
	}

	lab.NoError(d, d.operator.embedListener(mgr, d.pki.ServerMaterial()))
	lab.Run(d, "the operator ended", mgr.Start)
	d.await("the first reconcile of each runtime", func() bool {
		return len(d.journal.since(0, operatorReconciles)) >= len(registered())
	})

	from := "listens at " + d.operator.addr
	if d.broker != nil {
		from = "takes events from NATS"
	}

	return "in the control plane: reconciles Runtimes, " + from
}

// registered returns the names of the runtimes. Nothing changes in the second one, so there must be
// no reconcile for it. It has a cluster with --serve only.
func registered() []string { return []string{runtimeName, neighbour} }

const (
	runtimeName = "runtime-1"
	neighbour   = "runtime-2"
)

// domainOf returns the domain of a runtime, which its certificate and its object have.
func domainOf(runtime string) string { return lab.RuntimeDomain(core.RuntimeID(runtime)) }

// runtimeKind is the kind of the objects that represent runtimes. Any kind is possible.
func runtimeKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "quickstart.example.com", Version: "v1", Kind: "Runtime"}
}

// newRuntime returns an object that represents a runtime.
func newRuntime(name string) *unstructured.Unstructured {
	runtime := &unstructured.Unstructured{}
	runtime.SetGroupVersionKind(runtimeKind())
	runtime.SetNamespace(namespace)
	runtime.SetName(name)
	runtime.SetAnnotations(map[string]string{controllerruntime.DomainAnnotation: domainOf(name)})
	return runtime
}
