// Package operator_test runs operators with a listener on a real API server.
package operator_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func TestMain(m *testing.M) {
	// client-go leaks this goroutine if a watch of metadata ends while an event arrives: it sends to a
	// channel without a reader. Neither this module nor the controller manager can end it.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

// TestManager runs controller managers on a real API server, with events over mTLS connections. The
// package of the adapter has tests of each part with a cache of its own.
func TestManager(t *testing.T) {
	t.Parallel()
	rig.SkipShort(t)
	kcp := apiserver.StartT(t, apiserver.Options{CRDs: []*apiextensionsv1.CustomResourceDefinition{kymaCRD()}})
	l := &lab{ControlPlane: kcp, PKI: rig.NewPKI(t)}
	l.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kcp-system"}})
	t.Run("leader endpoint", l.testLeaderEndpoint)
	t.Run("leader endpoint without rights", l.testLeaderWithoutRights)
	t.Run("replicas of the guide", l.testReplicas)
	t.Run("set-up of the example", l.testSetUp)
	t.Run("set-up of the guide", l.testEmbedding)
}

// lab is a control plane with certificates.
type lab struct {
	*apiserver.ControlPlane
	*rig.PKI
}

func (l *lab) create(t *testing.T, object client.Object) {
	t.Helper()
	rig.NoError(t, l.Client.Create(t.Context(), object))
}

// kyma creates the object of a runtime, with its domain, and deletes it after the test.
func (l *lab) kyma(t *testing.T, name, domain string) {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kymaKind())
	object.SetNamespace("kcp-system")
	object.SetName(name)
	object.SetAnnotations(map[string]string{controllerruntime.DomainAnnotation: domain})
	l.create(t, object)
	t.Cleanup(func() { rig.NoError(t, l.Client.Delete(context.Background(), object)) })
}

// testSetUp runs the code in the README.
func (l *lab) testSetUp(t *testing.T) {
	l.kyma(t, "skr-1", "skr-1.example.com")
	o := l.newOperator(t, managerOptions())
	rig.NoError(t, setUp(t.Context(), o.mgr, o.addr, l.ServerMaterial(), reconcile.Func(o.reconcile)))
	rig.Run(t, "manager", o.mgr.Start)
	// The controller reconciles each object at its start, and again after an event.
	if got := o.next(t); got != "kcp-system/skr-1" {
		t.Errorf("reconciled %s first, want kcp-system/skr-1", got)
	}
	o.accepted(t, l.runtime(t, "skr-1", "skr-1.example.com"), "kcp-system/skr-1")
}
