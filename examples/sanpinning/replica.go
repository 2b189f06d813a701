package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// replica is a process of the operator. Here it is a controller manager.
type replica struct {
	name, addr string
	ready      func() error
	stop       func() error
}

// memory is the control plane: the objects of the runtimes, and the lease of the leader.
type memory struct {
	lease *lease
	done  chan reconciled
}

// start runs a replica until its stop is called.
func (m *memory) start(
	ctx context.Context, name string, material keys.Source, verify verifierFor, hooks listener.Hooks,
) (*replica, error) {
	mgr, err := m.manager(name)
	if err != nil {
		return nil, err
	}
	port, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &replica{name: name, addr: port.Addr().String()}
	r.ready, err = setUp(ctx, mgr, material, verify, &reconciler{replica: name, reconciled: m.done},
		listener.Options{Listener: port, Hooks: hooks})
	if err != nil {
		return nil, errors.Join(err, port.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	r.stop = func() error {
		cancel()
		return <-ended
	}
	return r, nil
}

// manager returns a controller manager without a cluster. In a cluster, the options name the lease
// (LeaderElectionID), and all others are left out.
func (m *memory) manager(name string) (manager.Manager, error) {
	objects := controllerruntimetest.NewCache(
		kyma("runtime-a", "a.example.com"), kyma("runtime-b", "b.example.com"),
		kyma("runtime-c", "c.example.com"), kyma("runtime-d", "d.example.com"))
	lease, renew, retry, skip := 4*time.Second, 2*time.Second, 100*time.Millisecond, true
	opts := manager.Options{
		LeaderElection: true, LeaderElectionResourceLockInterface: &lock{lease: m.lease, identity: name},
		LeaderElectionReleaseOnCancel: true, LeaseDuration: &lease, RenewDeadline: &renew, RetryPeriod: &retry,
		NewCache:  func(*rest.Config, cache.Options) (cache.Cache, error) { return objects, nil },
		NewClient: func(*rest.Config, client.Options) (client.Client, error) { return nil, nil },
		Metrics:   metricsserver.Options{BindAddress: "0"}, Logger: logr.Discard(),
	}
	opts.Controller.SkipNameValidation = &skip // Both replicas are in one process.
	return manager.New(&rest.Config{}, opts)
}

// lead waits until the replica leads and takes events.
func (r *replica) lead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for r.ready() != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s does not lead: %w", r.name, ctx.Err())
		}
	}
	return nil
}
