// Package operator_test runs operators with a listener on a real API server.
package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
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
	t.Run("refusals", l.testRefusals)
	t.Run("leader election", l.testLeaderElection)
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
func (l *lab) kyma(t *testing.T, name, domain string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kymaKind())
	object.SetNamespace("kcp-system")
	object.SetName(name)
	object.SetAnnotations(map[string]string{controllerruntime.DomainAnnotation: domain})
	l.create(t, object)
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(l.Client.Delete(context.Background(), object)); err != nil {
			t.Error(err)
		}
	})
	return object.DeepCopy()
}

// testRefusals changes the objects of a control plane, one after the other, while events arrive. The
// cache lacks a namespace that an attacker names. All reasons are in TestDomain of
// adapters/controllerruntime.
func (l *lab) testRefusals(t *testing.T) {
	l.kyma(t, "probe", "probe.example.com")
	good := l.kyma(t, "good", "good.example.com")
	opts := managerOptions()
	opts.Cache.DefaultNamespaces = map[string]cache.Config{"kcp-system": {}}
	o := l.newOperator(t, opts)
	probe, sender := l.runtime(t, "probe", "probe.example.com"), l.runtime(t, "good", "good.example.com")
	o.start(t)
	o.accepted(t, probe, "", "kcp-system/probe")
	o.accepted(t, sender, "", "kcp-system/good")
	o.accepted(t, sender, "kcp-system/good", "kcp-system/good")
	o.refused(t, l.runtime(t, "good", "thief.example.com"), "", "san_mismatch", true)
	o.refused(t, sender, "default/good", "owner_missing", true)
	registered := func(value any) {
		patch := rig.Must(json.Marshal(map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{controllerruntime.DomainAnnotation: value},
		}}))
		rig.NoError(t, l.Client.Patch(t.Context(), good.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
	}
	registered(nil)
	o.refused(t, sender, "", "domain_missing", false)
	registered("good.example.com")
	o.accepted(t, sender, "", "kcp-system/good")
	l.kyma(t, "twin", "GOOD.example.com.")
	o.refused(t, sender, "", "domain_ambiguous", false)
	rig.NoError(t, l.Client.Delete(t.Context(), good))
	o.refused(t, sender, "", "runtime_unknown", false)
	o.refused(t, sender, "kcp-system/good", "owner_missing", true)
	// Nothing that was refused is in the queue.
	o.accepted(t, probe, "", "kcp-system/probe")
}

// testLeaderElection has two replicas with controllers that warm up. Both listen, and only the leader
// accepts events.
func (l *lab) testLeaderElection(t *testing.T) {
	l.kyma(t, "skr-1", "skr-1.example.com")
	skr1 := l.runtime(t, "skr-1", "skr-1.example.com")
	opts := managerOptions()
	opts.Controller.EnableWarmup = new(true)
	opts.LeaderElection, opts.LeaderElectionID = true, "operator"
	opts.LeaderElectionNamespace, opts.LeaderElectionReleaseOnCancel = "kcp-system", true
	// Nobody waits for the end of the lease: it is released. A busy machine renews it in time.
	lease, renew, retry := 3*time.Minute, 2*time.Minute, 200*time.Millisecond
	opts.LeaseDuration, opts.RenewDeadline, opts.RetryPeriod = &lease, &renew, &retry
	first := l.newOperator(t, opts)
	first.start(t)
	first.accepted(t, skr1, "", "kcp-system/skr-1")
	second := l.newOperator(t, opts)
	second.start(t)
	eventually(t, "the second replica has all that does not need to lead", func() bool {
		err := second.source.Handle(t.Context(), core.Delivery{Runtime: "skr-1"})
		return second.events.Ready() == nil && second.mgr.GetCache().WaitForCacheSync(t.Context()) &&
			errors.Is(err, core.ErrNotReady) && err.Error() == "not ready: another replica leads"
	})
	for range 3 {
		if err := skr1.send(second.addr, ""); !errors.Is(err, core.ErrNotReady) {
			t.Errorf("the second replica answers %v, want that it is not ready", err)
		}
	}
	first.stop()
	second.accepted(t, skr1, "", "kcp-system/skr-1")
}

// testSetUp runs the code in the README.
func (l *lab) testSetUp(t *testing.T) {
	l.kyma(t, "skr-1", "skr-1.example.com")
	o := &operator{
		mgr: rig.Must(manager.New(l.Config, managerOptions())), addr: rig.Address(rig.FreePort(t)),
		reconciled: make(chan string),
	}
	rig.NoError(t, setUp(t.Context(), o.mgr, o.addr, l.ServerMaterial(), reconcile.Func(o.reconcile)))
	o.start(t)
	// The controller reconciles each object at its start, and again after an event.
	if got := o.next(t); got != "kcp-system/skr-1" {
		t.Errorf("reconciled %s first, want kcp-system/skr-1", got)
	}
	o.accepted(t, l.runtime(t, "skr-1", "skr-1.example.com"), "", "kcp-system/skr-1")
}
