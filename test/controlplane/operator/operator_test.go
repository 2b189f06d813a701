package operator_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
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

// send sends one event.
func (r *runtime) send(addr string) error {
	r.t.Helper()
	forwarder := rig.Must(httpmtls.NewForwarder(r.material, addr, contract.V2, httpmtls.Options{Timeout: patience}))
	defer func() { _ = forwarder.Close() }() // It is idle.
	return forwarder.Forward(r.t.Context(), "my-operator", core.NewBatch(core.WatchEvent{
		Watched: types.NamespacedName{Namespace: "default", Name: "watched"}, WatchedGVK: kymaKind(),
	}))
}

// operator is a controller manager. Its controller sends each request to the test and does nothing
// else.
type operator struct {
	mgr        manager.Manager
	addr       string
	reconciled chan string
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

func (l *lab) newOperator(t *testing.T, opts manager.Options) *operator {
	t.Helper()
	return &operator{rig.Must(manager.New(l.Config, opts)), rig.Address(rig.FreePort(t)), make(chan string)}
}

func (o *operator) reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	select {
	case o.reconciled <- request.String():
	case <-ctx.Done():
	}
	return reconcile.Result{}, nil
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

// accepted sends an event of a runtime until it is accepted, and waits for its reconcile.
func (o *operator) accepted(t *testing.T, from *runtime, want string) {
	t.Helper()
	rig.Eventually(t, patience, "an event is accepted", func() bool { return from.send(o.addr) == nil })
	if got := o.next(t); got != want {
		t.Errorf("reconciled %s, want %s", got, want)
	}
}
