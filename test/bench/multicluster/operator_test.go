package multicluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
)

// settings are those of an operator, which is a process of its own.
type settings struct {
	// Keys is a folder with key material, and Server the URL of the control plane.
	Keys   string `json:"keys"`
	Server string `json:"server"`
	// Addr is the address of the listener. Without one, the operator has caches.
	Addr string `json:"addr"`
}

// seen is the state of an operator.
type seen struct {
	// Memory is the resident memory after a garbage collection, in bytes.
	Memory int64 `json:"memory"`
	// Reconciles counts all, and Delays has the times from each write to its first reconcile.
	Reconciles int             `json:"reconciles"`
	Delays     []time.Duration `json:"delays"`
}

type operator struct {
	mgr mcmanager.Manager

	mu     sync.Mutex
	seen   seen
	newest map[mcreconcile.Request]int64
}

// serve runs an operator. It prints its state for each line of standard input.
func (s settings) serve(ctx context.Context) error {
	log.SetLogger(logr.Discard())
	config := &rest.Config{
		Host: s.Server, BearerToken: "t", TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(s.Keys, "ca.crt")},
	}
	local, err := ctrl.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	o := &operator{newest: make(map[mcreconcile.Request]int64)}
	setUp := o.cached
	if s.Addr != "" {
		setUp = func(ctx context.Context, local ctrl.Manager) error { return o.watched(ctx, local, s) }
	}
	if err := setUp(ctx, local); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		o.report()
		stop()
	}()
	return o.mgr.Start(ctx)
}

// cached sets up the provider of multicluster-runtime.
func (o *operator) cached(ctx context.Context, local ctrl.Manager) (err error) {
	provider := kubeconfig.New(kubeconfig.Options{Namespace: "default"})
	if o.mgr, err = mcmanager.WithMultiCluster(local, provider); err != nil {
		return err
	}
	if err := provider.SetupWithManager(ctx, o.mgr); err != nil {
		return err
	}
	return mcbuilder.ControllerManagedBy(o.mgr).Named("configmaps").For(&corev1.ConfigMap{}).Complete(mcreconcile.Func(o.reconcile))
}

// watched sets up the provider of this project.
func (o *operator) watched(ctx context.Context, local ctrl.Manager, s settings) error {
	kubeconfigs := runtimes.NewKubeconfigs(local.GetAPIReader(), "kubeconfig", client.ObjectKeyFromObject, runtimes.KubeconfigOptions{
		Scheme: local.GetScheme(),
		Mapper: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return local.GetRESTMapper(), nil },
	})
	provider := multicluster.NewProvider(kubeconfigs.Connect, multicluster.ProviderOptions{})
	mgr, err := mcmanager.WithMultiCluster(local, provider)
	if err != nil {
		return err
	}
	o.mgr = mgr
	secrets, err := controllerruntime.NewRuntimes(ctx, local.GetCache(), corev1.SchemeGroupVersion.WithKind("Secret"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	key := func(name string) string { return filepath.Join(s.Keys, name) }
	files, err := keys.NewFiles(keys.Paths{CA: key("ca.crt"), Certificate: key("tls.crt"), Key: key("tls.key")}, keys.FilesOptions{})
	if err != nil {
		return err
	}
	source, err := controllerruntime.SetUpListener(local, s.Addr, string(manager), controllerruntime.MutualTLS(files),
		listener.SANPinning(secrets), multicluster.Enqueue, controllerruntime.ComponentOptions{})
	if err != nil {
		return err
	}
	if err := provider.SetupWithManager(ctx, mgr); err != nil {
		return err
	}
	return multicluster.Complete(mgr, mcbuilder.ControllerManagedBy(mgr).Named("configmaps"), source,
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

func (o *operator) report() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		debug.FreeOSMemory()
		o.mu.Lock()
		o.seen.Memory = resident()
		err := json.NewEncoder(os.Stdout).Encode(o.seen)
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// resident returns the resident memory of the process (proc(5), statm).
func resident() int64 {
	var size, pages int64
	_ = must(fmt.Sscan(string(must(os.ReadFile("/proc/self/statm"))), &size, &pages))
	return pages * int64(os.Getpagesize())
}
