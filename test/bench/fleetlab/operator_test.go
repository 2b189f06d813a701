package fleetlab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	goruntime "runtime"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// manager is the name of the operator, and of the lease of its leader.
const manager core.Manager = "lab-operator"

const (
	workers = 10
	// every is the time between two reports of an operator, and poll between two readings of its files.
	every, poll = 500 * time.Millisecond, 5 * time.Second
)

// settings are those of an operator.
type settings struct {
	Kubeconfig, Namespace, Address string
	Files                          keys.Paths
	Lease                          time.Duration
	// Lossy means that it does not reconcile every seventh runtime.
	Lossy bool
}

// status is the report of an operator about itself.
type status struct {
	Leading bool `json:"leading"`
	// Runtimes has the number of runtimes in each state of freshness.
	Runtimes map[fleet.State]int `json:"runtimes"`
	// Resyncs has the number of resyncs by cause. The cause of those that agents send is "agent".
	Resyncs map[string]int64 `json:"resyncs"`
	// ToCome is the number of resyncs that the fleet has not delivered yet.
	ToCome int    `json:"toCome"`
	Heap   uint64 `json:"heap"`
	Stack  uint64 `json:"stack"`
}

// operator is an operator with a listener and a fleet, as an author would write it.
type operator struct {
	settings

	mgr     ctrl.Manager
	fleet   *fleet.Fleet
	resyncs atomic.Int64 // that were delivered
}

// runOperator prints a line "<number of a runtime> <time>" for each reconcile, and its status as
// JSON.
func runOperator(ctx context.Context) error {
	o := &operator{settings: kit.Settings[settings]()}
	handler := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})
	ctrl.SetLogger(logr.FromSlogHandler(handler))
	o.mgr = o.newManager()
	if err := o.setUp(ctx, slog.New(handler)); err != nil {
		return err
	}
	go o.report()
	return o.mgr.Start(ctx)
}

func (o *operator) newManager() ctrl.Manager {
	kubeconfig := lab.Must(clientcmd.BuildConfigFromFlags("", o.Kubeconfig))
	return lab.Must(ctrl.NewManager(kubeconfig, ctrl.Options{
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Cache:          cache.Options{DefaultNamespaces: map[string]cache.Config{o.Namespace: {}}},
		LeaderElection: true, LeaderElectionID: string(manager), LeaderElectionNamespace: o.Namespace,
		LeaseDuration: &o.Lease, RenewDeadline: new(o.Lease * 3 / 4), RetryPeriod: new(o.Lease / 8),
	}))
}

// setUp embeds the listener as the README does, with a fleet.
func (o *operator) setUp(ctx context.Context, log *slog.Logger) error {
	runtimes := lab.Must(controllerruntime.NewRuntimes(ctx, o.mgr.GetCache(), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	files := lab.Must(keys.NewFiles(o.Files, keys.FilesOptions{Logger: log, Poll: poll}))
	o.fleet = lab.Must(fleet.New(fleet.Options{Logger: log}))
	source := lab.Must(controllerruntime.SetUpListener(o.mgr, o.Address, string(manager), controllerruntime.MutualTLS(files),
		listener.SANPinning(runtimes), controllerruntime.EnqueueByRuntime(runtimes), controllerruntime.ComponentOptions{
			Listener: listener.Options{Fleet: o.fleet, Logger: log},
			Source:   controllerruntime.SourceOptions{Handled: o.handled},
		}))
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	return errors.Join(o.mgr.Add(files), builder.ControllerManagedBy(o.mgr).Named(string(manager)).
		For(object, builder.OnlyMetadata).WatchesRawSource(source).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).Complete(reconcile.Func(o.reconcile)))
}

// reconcile asks for no requeue: without polling, a lost event stays lost.
func (o *operator) reconcile(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
	began := record.Now()
	number, err := kit.RuntimeNumber(r.Name)
	if lost := o.Lossy && number%7 == 0; err == nil && !lost {
		fmt.Println(number, int64(began))
	}
	return reconcile.Result{}, nil
}

func (o *operator) handled(d core.Delivery, _ int, err error) {
	if err == nil && d.Event.Resync {
		o.resyncs.Add(1)
	}
}

func (o *operator) report() {
	for range time.Tick(every) {
		fmt.Println(string(lab.Must(json.Marshal(o.status()))))
	}
}

func (o *operator) status() status {
	var memory goruntime.MemStats
	goruntime.ReadMemStats(&memory)
	s := status{
		Runtimes: map[fleet.State]int{}, Resyncs: map[string]int64{"agent": o.resyncs.Load()},
		Heap: memory.HeapAlloc, Stack: memory.StackInuse,
	}
	select {
	case <-o.mgr.Elected():
		s.Leading = true
	default:
	}
	if summary := o.fleet.Summaries()[manager]; summary != nil {
		for condition, n := range summary.Runtimes {
			s.Runtimes[condition.State] += n
		}
		s.ToCome = summary.ResyncsToCome
		for cause, n := range summary.Resyncs {
			s.Resyncs[cause] = n
			s.Resyncs["agent"] -= n
		}
	}
	return s
}
