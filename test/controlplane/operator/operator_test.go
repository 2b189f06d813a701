package operator_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// patience bounds the time of an API server, a cache or an election on a busy machine.
const patience = 5 * time.Minute

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// kymaCRD defines the kind that represents runtimes. There is no Go type for it.
func kymaCRD() *apiextensionsv1.CustomResourceDefinition {
	crd := rig.Definition(kymaKind().Group, "kymas", kymaKind().Kind)
	crd.Spec.Versions[0].Name = kymaKind().Version
	return crd
}

// runtime is a remote cluster with a certificate for its name and domain.
type runtime struct {
	t        testing.TB
	material *keys.Material
}

func (l *lab) runtime(t testing.TB, name, domain string) *runtime {
	t.Helper()
	leaf := rig.Must(l.CA.Client(name, testpki.Options{DNSNames: []string{domain}}))
	return &runtime{t, rig.Must(keys.NewMaterial(l.CA.PEM, leaf.CertPEM, leaf.KeyPEM))}
}

// send sends one event: of contract v1 with an owner, and else of v2.
func (r *runtime) send(addr, owner string) error {
	r.t.Helper()
	version := contract.V2
	event := core.WatchEvent{Watched: named("default/watched"), WatchedGVK: kymaKind()}
	if owner != "" {
		version, event.Owner = contract.V1, named(owner)
	}
	forwarder := rig.Must(httpmtls.NewForwarder(r.material, addr, version, httpmtls.Options{Timeout: patience}))
	defer func() { _ = forwarder.Close() }() // It is idle.
	err := forwarder.Forward(r.t.Context(), "my-operator", core.NewBatch(event))
	if refused, ok := errors.AsType[core.EventErrors](err); ok {
		return refused[0]
	}
	return err
}

// operator is a controller manager. Its controller sends each request to the test and does nothing
// else.
type operator struct {
	mgr        manager.Manager
	addr       string
	events     *listener.Listener
	source     *controllerruntime.Source[reconcile.Request]
	reconciled chan string
	stop       func()
}

func managerOptions() manager.Options {
	skip := true
	return manager.Options{
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Logger:                 logr.Discard(),
		Controller:             ctrlconfig.Controller{SkipNameValidation: &skip},
	}
}

// newOperator has one worker, so requests are reconciled in the order of the queue. Each reconcile
// has ended when the test has its request.
func (l *lab) newOperator(t *testing.T, opts manager.Options) *operator {
	t.Helper()
	o := &operator{mgr: rig.Must(manager.New(l.Config, opts)), reconciled: make(chan string)}
	runtimes := rig.Must(controllerruntime.NewRuntimes(
		t.Context(), o.mgr.GetCache(), kymaKind(), controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	bound := rig.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	o.addr = bound.Addr().String()
	var err error
	material := l.ServerMaterial()
	o.events, o.source, err = controllerruntime.RegisterListenerComponent(o.addr, "my-operator",
		listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}), listener.SANPinning(runtimes),
		controllerruntime.EnqueueOwner(controllerruntime.EnqueueByRuntime(runtimes)),
		controllerruntime.ComponentOptions{
			Listener: listener.Options{Listener: bound, TLS: keys.ServerTLSConfig(material)},
			Source:   controllerruntime.SourceOptions{Elected: o.mgr.Elected()},
		})
	err = errors.Join(err, o.mgr.Add(o.events),
		builder.ControllerManagedBy(o.mgr).Named("events").WatchesRawSource(o.source).
			Complete(reconcile.Func(o.reconcile)))
	rig.NoError(t, err)
	return o
}

func (o *operator) reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	select {
	case o.reconciled <- request.String():
	case <-ctx.Done():
	}
	return reconcile.Result{}, nil
}

// start runs the controller manager until stop or the end of the test.
func (o *operator) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.mgr.Start(ctx) }()
	o.stop = sync.OnceFunc(func() {
		cancel()
		// A leader ends with a lost lease.
		if err := <-ended; err != nil && err.Error() != "leader election lost" {
			t.Errorf("manager ended with %v", err)
		}
	})
	t.Cleanup(o.stop)
}

// next returns the next request.
func (o *operator) next(t *testing.T) string {
	t.Helper()
	select {
	case request := <-o.reconciled:
		return request
	case <-time.After(patience):
		t.Fatal("nothing is reconciled")
		return ""
	}
}

// eventually waits until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	rig.Eventually(t, patience, what, condition)
}

// accepted sends an event of a runtime until it is accepted, and waits for its reconcile.
func (o *operator) accepted(t *testing.T, from *runtime, owner, want string) {
	t.Helper()
	eventually(t, "an event is accepted", func() bool { return from.send(o.addr, owner) == nil })
	if got := o.next(t); got != want {
		t.Errorf("reconciled %s, want %s", got, want)
	}
}

// refused sends an event of a runtime until it is refused for a reason. The cache may lack a change,
// unless the event must be refused at once.
func (o *operator) refused(t *testing.T, from *runtime, owner, reason string, atOnce bool) {
	t.Helper()
	eventually(t, "an event is refused: "+reason, func() bool {
		err := from.send(o.addr, owner)
		if err == nil {
			o.next(t)
		}
		is := errors.Is(err, core.ErrForbidden) && strings.Contains(err.Error(), reason)
		if atOnce && !is {
			t.Errorf("got %v, want it refused: %s", err, reason)
		}
		return is || atOnce
	})
}

// named splits namespace/name.
func named(key string) types.NamespacedName {
	namespace, name, _ := strings.Cut(key, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}
