package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// component is the name of the operator in the runtimes: the manager of their watches.
const component = "quickstart"

// operator reads the state of a runtime at each reconcile.
type operator struct {
	addr string
	// clusters has a client for each runtime. Here it is one.
	clusters map[string]client.Client
	source   *controllerruntime.Source[reconcile.Request]
	journal  *journal
	// broker is the NATS server, nil without one.
	broker *broker
	log    *slog.Logger
	// fleet has the freshness of each runtime.
	fleet *fleet.Fleet
}

// embed adds a listener to an operator. A change in a runtime reconciles the Runtime of that name,
// and no other.
func (o *operator) embed(ctx context.Context, mgr manager.Manager, port net.Listener, material keys.Source) error {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(runtimeKind())
	runtimes, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), runtimeKind(),
		controllerruntime.ByName,
		controllerruntime.RuntimesOptions{Fleet: o.fleet, Managers: []core.Manager{component}})
	if err != nil {
		return err
	}
	if o.broker != nil {
		return o.embedConsumer(mgr, object, runtimes)
	}
	// The port is bound already, for this demo only.
	o.source, err = controllerruntime.SetUpListener(mgr, port.Addr().String(), component,
		controllerruntime.MutualTLS(material), listener.SANPinning(runtimes),
		controllerruntime.EnqueueByRuntime(runtimes),
		controllerruntime.ComponentOptions{
			Listener: listener.Options{Listener: port, Fleet: o.fleet, Logger: o.log}, Source: o.sourceOptions(),
		})
	if err != nil {
		return err
	}
	return builder.ControllerManagedBy(mgr).For(object).WatchesRawSource(o.source).Complete(o)
}

// Reconcile reads all watched objects of a runtime, as an event is only a hint to look.
func (o *operator) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	started := time.Now()
	sees := "nothing"
	if cluster, reachable := o.clusters[request.Name]; reachable {
		there := o.source.Client(request, core.RuntimeID(request.Name), cluster)
		var err error
		if sees, err = look(ctx, there); err != nil {
			return reconcile.Result{}, err
		}
	}
	o.journal.reconciled(reconciled{runtime: request.Name, started: started, sees: sees})
	return reconcile.Result{}, nil
}

// sourceOptions keep a journal of the deliveries.
func (o *operator) sourceOptions() controllerruntime.SourceOptions {
	return controllerruntime.SourceOptions{Handled: func(d core.Delivery, _ int, err error) {
		if err == nil {
			o.journal.delivered(d)
		}
	}}
}

// startOperator runs the operator in this process. It returns after the first reconcile of each
// runtime.
func (d *demo) startOperator(ctx context.Context) (string, error) {
	watched, err := fleet.New(fleet.Options{Logger: d.log})
	if err != nil {
		return "", err
	}
	served, err := d.page(ctx, watched)
	if err != nil {
		return "", err
	}
	mgr, err := manager.New(d.controlPlane.Config,
		manager.Options{Metrics: served, Scheme: d.controlPlane.Client.Scheme()})
	if err != nil {
		return "", err
	}
	port, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	d.operator = &operator{
		addr: port.Addr().String(), clusters: make(map[string]client.Client),
		journal: &d.journal, broker: d.broker, log: d.log, fleet: watched,
	}
	for _, r := range d.remotes {
		d.operator.clusters[r.name] = r.cluster.Client
	}
	if err := d.operator.embed(ctx, mgr, port, d.pki.operator); err != nil {
		return "", errors.Join(err, port.Close())
	}
	d.runManager(ctx, mgr)
	from := "listens at " + d.operator.addr
	if d.broker != nil {
		from = "takes events from NATS"
	}
	return "in the control plane: reconciles Runtimes, " + from,
		d.journal.await(ctx, "the first reconcile of each runtime", func() bool {
			return len(d.journal.reconciles) >= len(registered())
		})
}

// runManager runs the manager beyond the end of ctx, until the agent has ended.
func (d *demo) runManager(ctx context.Context, mgr manager.Manager) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		err := mgr.Start(ctx)
		if ctx.Err() == nil {
			d.fail(fmt.Errorf("the operator ended: %w\n  next: see quickstart.log", err))
		}
		ended <- err
	}()
	d.closers = append(d.closers, func() error {
		stop()
		return <-ended
	})
}
