package multicluster_test

import (
	"context"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
	"sigs.k8s.io/multicluster-runtime/providers/kubeconfig"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/multicluster"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// settings are those of an operator, which is a process of its own.
type settings struct {
	// Keys is the key material of the listener, and Server the URL of the control plane.
	Keys   keys.Paths
	Server string
	// Addr is the address of the listener. Without one, the operator has caches.
	Addr string
}

// workers is what reads over a network need: with caches, one would do.
const workers = 10

// seen is the state of an operator.
type seen struct {
	// Memory is the resident memory after a garbage collection, in bytes.
	Memory int64
	// Reconciles counts all, and Delays has the times from each write to its first reconcile.
	Reconciles int
	Delays     []time.Duration
}

type operator struct {
	settings

	mgr mcmanager.Manager

	mu     sync.Mutex
	seen   seen
	newest map[mcreconcile.Request]int64
}

// operate runs until its parent ends.
func operate(ctx context.Context) error {
	log.SetLogger(logr.Discard())
	o := &operator{settings: kit.Settings[settings](), newest: make(map[mcreconcile.Request]int64)}
	config := &rest.Config{
		Host: o.Server, BearerToken: "t", TLSClientConfig: rest.TLSClientConfig{CAFile: o.Keys.CA},
		QPS: -1, // As ctrl.GetConfig sets it.
	}
	local := lab.Must(ctrl.NewManager(config, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: ctrlconfig.Controller{MaxConcurrentReconciles: workers},
	}))
	setUp := o.cached
	if o.Addr != "" {
		setUp = o.watched
	}
	if err := setUp(ctx, local); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		_ = kit.Answer(o.state)
		stop()
	}()
	return o.mgr.Start(ctx)
}

// cached sets up the provider of multicluster-runtime.
func (o *operator) cached(ctx context.Context, local ctrl.Manager) error {
	provider := kubeconfig.New(kubeconfig.Options{Namespace: "default"})
	o.mgr = lab.Must(mcmanager.WithMultiCluster(local, provider))
	if err := provider.SetupWithManager(ctx, o.mgr); err != nil {
		return err
	}
	return mcbuilder.ControllerManagedBy(o.mgr).Named("configmaps").For(&corev1.ConfigMap{}).Complete(mcreconcile.Func(o.reconcile))
}

// watched sets up the provider of this project.
func (o *operator) watched(ctx context.Context, local ctrl.Manager) error {
	kubeconfigs := runtimes.NewKubeconfigs(local.GetAPIReader(), "kubeconfig", client.ObjectKeyFromObject, runtimes.KubeconfigOptions{
		Scheme: local.GetScheme(),
		Mapper: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return local.GetRESTMapper(), nil },
	})
	provider := multicluster.NewProvider(kubeconfigs, multicluster.ProviderOptions{})
	o.mgr = lab.Must(mcmanager.WithMultiCluster(local, provider))
	secrets := lab.Must(controllerruntime.NewRuntimes(ctx, local.GetCache(), corev1.SchemeGroupVersion.WithKind("Secret"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	files := lab.Must(keys.NewFiles(o.Keys, keys.FilesOptions{}))
	source := lab.Must(controllerruntime.SetUpListener(local, o.Addr, string(manager), controllerruntime.MutualTLS(files),
		listener.SANPinning(secrets), multicluster.Enqueue, controllerruntime.ComponentOptions{}))
	if err := provider.SetupWithManager(ctx, o.mgr); err != nil {
		return err
	}
	return multicluster.Complete(o.mgr, mcbuilder.ControllerManagedBy(o.mgr).Named("configmaps"), source,
		corev1.SchemeGroupVersion.WithKind("ConfigMap"), mcreconcile.Func(o.reconcile))
}

// reconcile notes how long the write waited that it reads first.
func (o *operator) reconcile(ctx context.Context, r mcreconcile.Request) (reconcile.Result, error) {
	cluster, err := o.mgr.GetCluster(ctx, r.ClusterName)
	if err != nil {
		return reconcile.Result{}, err
	}
	object := &corev1.ConfigMap{}
	if err := cluster.GetClient().Get(ctx, r.NamespacedName, object); err != nil {
		return reconcile.Result{}, err
	}
	at, err := strconv.ParseInt(object.Data[written], 10, 64)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen.Reconciles++
	if at > o.newest[r] {
		o.newest[r] = at
		o.seen.Delays = append(o.seen.Delays, time.Since(time.Unix(0, at)))
	}
	return reconcile.Result{}, err
}

// state is also the end of a garbage collection.
func (o *operator) state(string) any {
	debug.FreeOSMemory()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen.Memory = lab.Must(kit.UsageOf(os.Getpid())).Resident
	state := o.seen
	state.Delays = slices.Clone(state.Delays)
	return state
}
