// Package chain tests the control-plane side as a whole: real API servers, cert-manager's
// controllers, and the agent as a process with the environment and the files of its Deployment.
package chain

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

const (
	image = "agent.example/agent:test"
	host  = "listener.example"
	// propagation is enough for a volume that is updated every 100 ms and for watched files, also
	// on a slow machine.
	propagation = 4 * time.Second
)

// world is a control plane with an operator and one runtime.
type world struct {
	t        *testing.T
	settings map[string]string // of the agent
	scheme   *runtime.Scheme
	plane    *apiserver.ControlPlane
	broker   *rig.BrokerNode
	fleet    *fleet.Fleet
	set      *certificates.Certificates
	record   rig.Arrivals
	gets     atomic.Int32 // of the certificates, and of their Secrets

	runtime *apiserver.ControlPlane
	node    *node.Node
	ctx     context.Context //nolint:containedctx // That of its life.
	work    sync.WaitGroup

	mu    sync.Mutex                          // of the files of the NATS server
	state atomic.Pointer[installation.Status] // the last one that was reported
}

func deployment() types.NamespacedName {
	return types.NamespacedName{Namespace: installation.Name, Name: installation.Name}
}

// newWorld installs the agent into a namespace of its own, and watches objects in the namespace
// default.
func newWorld(t *testing.T, settings map[string]string) *world {
	t.Helper()
	rig.SkipShort(t)
	w := &world{t: t, settings: settings, scheme: runtime.NewScheme()}
	w.must(errors.Join(clientgoscheme.AddToScheme(w.scheme), certv1.AddToScheme(w.scheme), watcher.AddToScheme(w.scheme)))
	w.broker = rig.NewBrokerNode(t, "broker", "")
	// First of all, as it may skip the test.
	w.node = node.New(t, node.Options{
		Images: map[string]string{image: rig.Build(t, "cmd/agent")}, Hosts: map[string]string{host + ":443": w.broker.Addr},
	})
	w.plane = apiserver.StartT(t, apiserver.Options{
		Scheme: w.scheme, CRDs: []*apiextensionsv1.CustomResourceDefinition{manifests.Watchers(t)},
	})
	w.runtime = apiserver.StartT(t, apiserver.Options{APIServerArgs: w.node.APIServerArgs()})
	w.node.Start(w.runtime)
	var stop context.CancelFunc
	w.ctx, stop = context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		w.work.Wait()
	})
	pinning, source := w.operate()
	// The definitions of cert-manager come after the start of the operator.
	certmanager.StartT(t, w.plane.Kubeconfig, certmanager.Options{})
	w.consume(pinning, map[core.Manager]core.Handler{steady: source})
	w.must(w.plane.Client.Create(t.Context(), newWatcher()))
	w.setKubeconfig(rig.Must(os.ReadFile(w.runtime.Kubeconfig)))
	rig.AddRuntime(t, w.plane, string(stays), rig.RuntimeDomain(stays))
	w.waitFor(installation.Ready, "")
	w.settled()
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	rig.NoError(w.t, err)
}

func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	rig.Eventually(w.t, rig.Patience, what, condition)
}

// operate runs the parts of an operator: the Watcher controller, the reconciler of runtimes, and a
// controller with the source of its events. ConfigMaps with the annotation skr-domain represent
// runtimes.
func (w *world) operate() (pinning core.Verifier, source core.Handler) {
	w.t.Helper()
	mgr := rig.NewManager(w.t, w.plane.Config, w.scheme)
	w.must(watcher.SetUp(mgr, watcher.Options{Routing: watcher.NoRouting}))
	w.fleet = rig.Must(fleet.New(fleet.Options{}))
	w.set = rig.Must(certificates.New(w.counting(), types.NamespacedName{Namespace: rig.Namespace, Name: "watcher"},
		[]string{host, operatorDomain}, certificates.FromFleet(w.fleet, time.Millisecond),
		certificates.Options{Propagation: propagation}))
	w.must(w.addRuntimes(mgr))
	known := rig.Must(controllerruntime.NewRuntimes(w.ctx, mgr.GetCache(), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	events := controllerruntime.NewSource(controllerruntime.EnqueueByRuntime(known), controllerruntime.SourceOptions{
		Elected: mgr.Elected(), Handled: w.record.Delivered,
	})
	w.must(ctrl.NewControllerManagedBy(mgr).Named(string(steady)).WatchesRawSource(events).
		Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		})))
	w.run(mgr.Start)
	return listener.SANPinning(known), events
}

// counting returns a client for the certificates, which counts what they read.
func (w *world) counting() client.Client {
	w.t.Helper()
	direct := rig.Must(client.NewWithWatch(w.plane.Config, client.Options{Scheme: w.scheme}))
	return interceptor.NewClient(direct, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			w.gets.Add(1)
			return c.Get(ctx, key, o, opts...)
		},
	})
}

func (w *world) run(start func(context.Context) error) {
	w.work.Go(func() {
		if err := start(w.ctx); err != nil {
			w.t.Errorf("operator: %v", err)
		}
	})
}

// addRuntimes keeps the agents. Nothing is due by time within an hour.
func (w *world) addRuntimes(mgr ctrl.Manager) error {
	installer, err := installation.New(image, host+":443", installation.Options{
		Settings: w.settings,
		// With the default, writes could pass unreviewed on a busy machine. This test counts each
		// write.
		Webhooks: admission.ConfigurationOptions{Timeout: 30 * time.Second},
	})
	if err != nil {
		return err
	}
	identify := func(_ context.Context, object client.Object) (runtimes.Identity, error) {
		domain, ok := object.GetAnnotations()[controllerruntime.DomainAnnotation]
		if !ok {
			return runtimes.Identity{}, nil
		}
		return runtimes.Identity{ID: core.RuntimeID(object.GetName()), Domain: domain}, nil
	}
	connect := runtimes.NewKubeconfigs(mgr.GetAPIReader(), "config", func(object client.Object) client.ObjectKey {
		return client.ObjectKey{Namespace: object.GetNamespace(), Name: "kubeconfig-" + object.GetName()}
	}, runtimes.KubeconfigOptions{})
	return runtimes.SetUp(mgr, &corev1.ConfigMap{}, identify, connect, w.set, installer, runtimes.Options{
		Interval: time.Hour, Retry: 300 * time.Millisecond, Fleet: w.fleet,
		Kubeconfigs: runtimes.KubeconfigSecrets{Namespace: rig.Namespace, Label: "runtime"},
		Report: func(_ context.Context, object client.Object, status installation.Status) error {
			if object.GetName() == string(stays) {
				w.state.Store(&status)
			}
			return nil
		},
	})
}

// setKubeconfig writes the Secret with the kubeconfig of the runtime.
func (w *world) setKubeconfig(content []byte) {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: rig.Namespace, Name: "kubeconfig-" + string(stays), Labels: map[string]string{"runtime": string(stays)},
	}, Data: map[string][]byte{"config": content}}
	if err := w.plane.Client.Create(w.t.Context(), secret); err != nil {
		w.must(w.plane.Client.Update(w.t.Context(), secret))
	}
}

// waitFor waits for the state of the installation, and for its reason, if there is one.
func (w *world) waitFor(state installation.State, reason string) {
	w.t.Helper()
	defer func() {
		if w.t.Failed() {
			w.t.Logf("last status: %+v", w.state.Load())
		}
	}()
	w.eventually("the installation is "+string(state)+" "+reason, func() bool {
		last := w.state.Load()
		return last != nil && last.State == state && (reason == "" || last.Reason == reason)
	})
}

// settled returns when all replicas are of the newest Deployment, and the old ones gone.
func (w *world) settled() (pods []node.Pod) {
	w.t.Helper()
	w.eventually("both replicas are ready", func() bool {
		pods = w.node.Pods(deployment())
		return len(pods) == 2 && pods[0].Ready && pods[1].Ready && !pods[0].Ending && !pods[1].Ending
	})
	return pods
}
