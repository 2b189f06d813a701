// Package chain tests the control-plane side as a whole: real API servers, cert-manager's
// controllers, and the agent as a process with the environment and the files of its Deployment.
package chain

import (
	"context"
	"errors"
	"os"
	"sync"
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
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/keysource"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

const (
	// patience is the limit for each wait, also on a busy machine.
	patience = 5 * time.Minute
	image    = "agent.example/agent:test"
	host     = "listener.example"
	// propagation is enough for a volume that is updated every 100 ms and for watched files, also
	// on a slow machine.
	propagation = 4 * time.Second
)

// world is a control plane with an operator, and some runtimes.
type world struct {
	t        *testing.T
	settings map[string]string // of the agent
	scheme   *runtime.Scheme
	plane    *apiserver.ControlPlane
	addr     string
	broker   *rig.BrokerNode // With TRANSPORT=nats.
	fleet    *fleet.Fleet
	set      *certificates.Certificates
	record   record

	runtimes map[core.RuntimeID]*member
	ctx      context.Context //nolint:containedctx // That of its life.
	work     sync.WaitGroup

	mu     sync.Mutex
	states map[core.RuntimeID]installation.Status
}

func (w *world) deployment() types.NamespacedName {
	return types.NamespacedName{Namespace: installation.Name, Name: installation.Name}
}

// member is a runtime with an API server of its own.
type member struct {
	*apiserver.ControlPlane

	node *node.Node
}

// newWorld installs the agents into a namespace of their own, and watches objects in the namespace
// default for steady.
func newWorld(t *testing.T, settings map[string]string, managers []core.Manager, ids ...core.RuntimeID) *world {
	t.Helper()
	rig.SkipShort(t)
	w := &world{settings: settings}
	w.t, w.scheme, w.addr = t, runtime.NewScheme(), rig.Address(rig.FreePort(t))
	if settings["TRANSPORT"] == "nats" {
		w.broker = rig.NewBrokerNode(t, "broker", "")
		w.addr = w.broker.Addr
	}
	w.runtimes, w.states = map[core.RuntimeID]*member{}, map[core.RuntimeID]installation.Status{}
	w.must(errors.Join(clientgoscheme.AddToScheme(w.scheme), certv1.AddToScheme(w.scheme), watcher.AddToScheme(w.scheme)))
	nodes := make([]*node.Node, len(ids)) // First of all, as they may skip the test.
	for i := range ids {
		nodes[i] = node.New(t, node.Options{
			Images: map[string]string{image: rig.Build(t, "cmd/agent")}, Hosts: map[string]string{host + ":443": w.addr},
		})
	}
	w.plane = apiserver.StartT(t, apiserver.Options{
		Scheme: w.scheme, CRDs: []*apiextensionsv1.CustomResourceDefinition{manifests.Watchers(t)},
	})
	certmanager.StartT(t, w.plane.Kubeconfig, certmanager.Options{})
	for i, id := range ids {
		m := &member{apiserver.StartT(t, apiserver.Options{APIServerArgs: nodes[i].APIServerArgs()}), nodes[i]}
		m.node.Start(m.ControlPlane)
		w.runtimes[id] = m
	}
	var stop context.CancelFunc
	w.ctx, stop = context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		w.work.Wait()
	})
	w.operate(managers)
	w.must(w.plane.Client.Create(t.Context(), newWatcher(steady)))
	for _, id := range ids {
		w.represent(id)
	}
	w.installed(ids...)
	w.settled(ids...)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	rig.Eventually(w.t, patience, what, condition)
}

// operate runs the parts of an operator: the Watcher controller, the reconciler of runtimes, and a
// listener. Deliveries of the listener reconcile runtimes. ConfigMaps with the annotation skr-domain
// represent runtimes.
func (w *world) operate(managers []core.Manager) {
	w.t.Helper()
	mgr := rig.NewManager(w.t, w.plane.Config, w.scheme)
	w.must(watcher.SetUp(mgr, watcher.Options{Routing: watcher.NoRouting}))
	var err error
	w.fleet, err = fleet.New(fleet.Options{})
	w.must(err)
	w.set, err = certificates.New(w.plane.Client, types.NamespacedName{Namespace: rig.Namespace, Name: "watcher"},
		[]string{host, operatorDomain},
		certificates.FromFleet(w.fleet, time.Millisecond),
		certificates.Options{Propagation: propagation})
	w.must(err)
	w.must(w.addRuntimes(mgr))
	known, err := controllerruntime.NewRuntimes(w.ctx, mgr.GetCache(), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	w.must(err)
	handlers := map[core.Manager]core.Handler{}
	for _, manager := range managers {
		source := controllerruntime.NewSource(controllerruntime.EnqueueByRuntime(known), controllerruntime.SourceOptions{
			Elected: mgr.Elected(), Handled: w.record.Delivered,
		})
		handlers[manager] = source
		w.must(ctrl.NewControllerManagedBy(mgr).Named(string(manager)).WatchesRawSource(source).
			Complete(reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
				w.record.add(manager, r.Name)
				return reconcile.Result{}, nil
			})))
	}
	w.run(mgr.Start)
	if w.broker == nil {
		w.listen(listener.SANPinning(known), handlers)
	} else {
		w.consume(listener.SANPinning(known), handlers)
	}
}

func (w *world) run(start func(context.Context) error) {
	w.work.Go(func() {
		if err := start(w.ctx); err != nil {
			w.t.Errorf("operator: %v", err)
		}
	})
}

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
	return runtimes.SetUp(mgr, &corev1.ConfigMap{}, identify, connect, w.set, installer,
		runtimes.Options{
			Interval: time.Hour, Retry: 300 * time.Millisecond, Fleet: w.fleet,
			Report: func(_ context.Context, object client.Object, status installation.Status) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.states[core.RuntimeID(object.GetName())] = status
				return nil
			},
		})
}

// listen starts the listener, with the Secret that the certificates publish.
func (w *world) listen(pinning core.Verifier, handlers map[core.Manager]core.Handler) {
	w.t.Helper()
	material, err := keysource.NewSecret(w.plane.Client, w.set.ListenerSecret(), keys.FilesOptions{Poll: 200 * time.Millisecond})
	w.must(err)
	w.run(material.Start)
	peers := listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{})
	l, err := listener.New(peers, pinning, handlers, listener.Options{
		Addr: w.addr, TLS: keys.ServerTLSConfig(material), Fleet: w.fleet,
	})
	w.must(err)
	w.run(l.Start)
	w.eventually("the listener is ready", func() bool { return l.Ready() == nil })
}

// represent creates the object that represents a runtime.
func (w *world) represent(id core.RuntimeID) {
	w.t.Helper()
	kubeconfig, err := os.ReadFile(w.runtimes[id].Kubeconfig)
	w.must(err)
	w.must(w.plane.Client.Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: rig.Namespace,
			Name:      "kubeconfig-" + string(id),
		}, Data: map[string][]byte{"config": kubeconfig},
	}))
	rig.AddRuntime(w.t, w.plane, string(id), rig.RuntimeDomain(id))
}

func (w *world) installed(ids ...core.RuntimeID) {
	w.t.Helper()
	var last map[core.RuntimeID]installation.Status
	defer func() {
		if w.t.Failed() {
			w.t.Logf("states: %+v", last)
		}
	}()
	w.eventually("all agents are installed", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		last = w.states
		for _, id := range ids {
			if w.states[id].State != installation.Ready {
				return false
			}
		}
		return true
	})
}

// settled returns when all replicas are of the newest Deployment, and the old ones gone.
func (w *world) settled(ids ...core.RuntimeID) {
	w.t.Helper()
	for _, id := range ids {
		w.eventually("both replicas of "+string(id)+" are ready", func() bool {
			pods := w.runtimes[id].node.Pods(w.deployment())
			return len(pods) == 2 && pods[0].Ready && pods[1].Ready && !pods[0].Ending && !pods[1].Ending
		})
	}
}
