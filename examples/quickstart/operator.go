package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// component is the name by which runtimes know the operator: the manager of their watches.
const component = "quickstart"

// operator looks at a runtime whenever it is told to.
type operator struct {
	addr string
	// clusters are the runtimes that it can reach. There is only one here.
	clusters map[string]client.Reader
	diary    *diary
}

// embed makes an operator listen: a change in a runtime reconciles the Runtime of that name, and no other. This is all it takes.
func (o *operator) embed(ctx context.Context, mgr manager.Manager, port net.Listener, keys httpmtls.Source) error {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(runtimeKind())
	runtimes, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), runtimeKind(),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	peers := listener.FromTLSWithRoots(httpmtls.Roots(keys), listener.PeerOptions{})
	events, source, err := controllerruntime.RegisterListenerComponent(port.Addr().String(), component,
		peers, listener.SANPinning(runtimes), controllerruntime.EnqueueByRuntime(runtimes), o.options(port, keys))
	if err != nil {
		return err
	}
	return errors.Join(mgr.Add(events), builder.ControllerManagedBy(mgr).For(object).WatchesRawSource(source).Complete(o))
}

// Reconcile looks at the whole of what it cares for in a runtime, as an event only says that there is something to see.
func (o *operator) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	started := time.Now()

	sees := "nothing to look at"

	if cluster, reachable := o.clusters[request.Name]; reachable {
		var err error
		if sees, err = look(ctx, cluster); err != nil {
			return reconcile.Result{}, err
		}
	}

	o.diary.reconciled(reconciled{runtime: request.Name, started: started, sees: sees})

	return reconcile.Result{}, nil
}

// options are not needed for an operator to listen: these take a port that is bound already, and a note of each delivery.
func (o *operator) options(port net.Listener, keys httpmtls.Source) controllerruntime.ComponentOptions {
	return controllerruntime.ComponentOptions{
		Listener: listener.Options{Listener: port, TLS: httpmtls.ServerTLSConfig(keys)},
		Source: controllerruntime.SourceOptions{Handled: func(d core.Delivery, _ int, err error) {
			if err == nil {
				o.diary.delivered(d)
			}
		}},
	}
}

// startOperator runs the operator in this process, and returns when it has looked at every runtime once, as controllers do.
func (s *scene) startOperator(ctx context.Context) (string, error) {
	mgr, err := manager.New(s.controlPlane.Config, manager.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
		Scheme:  s.controlPlane.Client.Scheme(),
	})
	if err != nil {
		return "", err
	}

	port, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}

	s.operator = &operator{
		addr:     port.Addr().String(),
		clusters: map[string]client.Reader{runtimeName: s.runtime.Client},
		diary:    &s.diary,
	}
	if err := s.operator.embed(ctx, mgr, port, s.pki.operator); err != nil {
		return "", errors.Join(err, port.Close())
	}

	s.runManager(ctx, mgr)

	return fmt.Sprintf("in the control plane: reconciles Runtimes, listens at %s", s.operator.addr),
		s.diary.await(ctx, "the first look at the runtimes", func() bool { return len(s.diary.reconciles) >= len(registered()) })
}

// runManager runs the manager until the end, which is later than that of ctx: the agent, which ends before, shall have somebody to talk to.
func (s *scene) runManager(ctx context.Context, mgr manager.Manager) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)

	go func() {
		err := mgr.Start(ctx)
		if ctx.Err() == nil {
			s.fail(fmt.Errorf("the operator ended: %w\n  next: see quickstart.log", err))
		}

		ended <- err
	}()

	s.closers = append(s.closers, func() error {
		stop()

		return <-ended
	})
}
