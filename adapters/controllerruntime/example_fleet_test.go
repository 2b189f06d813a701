package controllerruntime_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
)

// look reconciles one runtime.
type look func(ctx context.Context, kyma types.NamespacedName) error

// setUpPolling is setUp for an operator that polls seldom while a runtime is fresh.
func setUpPolling(
	mgr manager.Manager, addr string, mtls *tls.Config, roots listener.RootsFunc,
	kyma *metav1.PartialObjectMetadata, runtimes *controllerruntime.Runtimes, look look,
) (http.Handler, error) {
	watched, err := fleet.New(fleet.Options{PollFresh: time.Hour, PollOtherwise: time.Minute})
	if err != nil {
		return nil, err
	}
	events, source, err := controllerruntime.RegisterListenerComponent(addr, "my-operator",
		listener.FromTLSWithRoots(roots, listener.PeerOptions{}), listener.SANPinning(runtimes),
		controllerruntime.EnqueueByRuntime(runtimes),
		controllerruntime.ComponentOptions{Listener: listener.Options{TLS: mtls, Fleet: watched}})
	if err != nil {
		return nil, err
	}
	kymas := reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		if err := look(ctx, request.NamespacedName); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{RequeueAfter: watched.RequeueAfter(core.RuntimeID(request.Name))}, nil
	})
	return statuspage.FleetHandler(watched), errors.Join(mgr.Add(events),
		builder.ControllerManagedBy(mgr).For(kyma, builder.OnlyMetadata).WatchesRawSource(source).Complete(kymas))
}

// An operator polls fresh runtimes seldom, and all others often.
func Example_adaptivePolling() {
	watched, err := fleet.New(fleet.Options{
		PollFresh: time.Hour, PollOtherwise: time.Minute,
		Random: func() float64 { return 0.5 }, // No jitter, for the sake of the output.
	})
	if err != nil {
		panic(err)
	}

	watched.OnChange(func(change fleet.Transition) {
		fmt.Println(change.To.Runtime, "was", change.From, "and is", change.To.State)
	})

	fmt.Println("a runtime without heartbeat:", watched.RequeueAfter("skr-1"))

	// A listener calls Observe for each request. The last heartbeat announces that the agent stops.
	for n, leaving := range []bool{false, true} {
		beat := &core.Heartbeat{
			Number: uint64(n + 1), Interval: 30 * time.Second, Canary: core.CanaryAlive, Leaving: leaving,
		}
		watched.Observe(core.Peer{ID: "skr-1"}, "my-operator", core.Batch{Epoch: "e", Heartbeat: beat}, nil)
		fmt.Println(watched.RequeueAfter("skr-1"))
	}
	// Output:
	// a runtime without heartbeat: 1m0s
	// skr-1 was unknown and is fresh
	// 1h0m0s
	// skr-1 was fresh and is stale
	// 1m0s
}

var _ = setUpPolling // The README shows it.
