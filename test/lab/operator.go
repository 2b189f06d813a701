package lab

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
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
