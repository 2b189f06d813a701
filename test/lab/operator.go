package lab

import (
	"context"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Namespace has the objects in the control plane that represent runtimes.
const Namespace = "default"

// AddRuntime creates the object that represents a runtime: a ConfigMap of its name with the domain
// that its certificate carries.
func AddRuntime(t testing.TB, plane *apiserver.ControlPlane, name, domain string) types.NamespacedName {
	t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: Namespace,
		Annotations: map[string]string{controllerruntime.DomainAnnotation: domain},
	}}
	create(t, plane, object)
	return types.NamespacedName{Namespace: Namespace, Name: name}
}

// NewManager returns a controller manager that serves no metrics. Default scheme: client-go's.
func NewManager(t testing.TB, at *rest.Config, scheme *runtime.Scheme) ctrl.Manager {
	t.Helper()
	mgr, err := ctrl.NewManager(at, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	NoError(t, err)
	return mgr
}

// Operator is a manager with a controller that only a listener triggers. It records the deliveries.
type Operator struct {
	Addr string
	// Stop ends the operator and waits for it.
	Stop func()

	mu         sync.Mutex
	deliveries []core.Delivery
}

// OperatorOptions are the choices of [StartOperator].
type OperatorOptions struct {
	// Addr is where it listens. Default: a free port.
	Addr string
	// Listener are further choices of the listener.
	Listener listener.Options
}

// StartOperator runs an operator in this process. Runtimes are ConfigMaps, see [AddRuntime], and
// SAN pinning is on.
func StartOperator(t testing.TB, plane *apiserver.ControlPlane, material *keys.Material, component string,
	opts OperatorOptions,
) *Operator {
	t.Helper()
	o := &Operator{Addr: opts.Addr}
	if o.Addr == "" {
		o.Addr = Address(FreePort(t))
	}
	mgr := NewManager(t, plane.Config, nil)
	NoError(t, o.setUp(t.Context(), mgr, material, component, opts))
	o.Stop = Run(t, "operator", mgr.Start)
	if !mgr.GetCache().WaitForCacheSync(t.Context()) {
		t.Fatal("the operator's cache does not sync")
	}
	return o
}

func (o *Operator) setUp(
	ctx context.Context, mgr ctrl.Manager, material *keys.Material, component string, opts OperatorOptions,
) error {
	runtimes, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	source, err := controllerruntime.SetUpListener(mgr, o.Addr, component, controllerruntime.MutualTLS(material),
		listener.SANPinning(runtimes), controllerruntime.EnqueueByRuntime(runtimes), controllerruntime.ComponentOptions{
			Listener: opts.Listener,
			Source:   controllerruntime.SourceOptions{Handled: func(d core.Delivery, _ int, _ error) { o.delivered(d) }},
		})
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named(component).WatchesRawSource(source).
		Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		}))
}

func (o *Operator) delivered(d core.Delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deliveries = append(o.deliveries, d)
}

// Deliveries returns the deliveries of the listener so far.
func (o *Operator) Deliveries() []core.Delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.deliveries)
}
