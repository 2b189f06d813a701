// Package operator_test runs operators with a listener on a real API server.
package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func TestMain(m *testing.M) {
	// client-go leaks this goroutine if a watch of metadata ends while an event arrives: it sends to a
	// channel without a reader. Neither this module nor the controller manager can end it.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

// TestManager runs controller managers on a real API server, with events over mTLS connections.
func TestManager(t *testing.T) {
	t.Parallel()
	rig.SkipShort(t)
	kcp := apiserver.StartT(t, apiserver.Options{CRDs: []*apiextensionsv1.CustomResourceDefinition{kymaCRD()}})
	l := &lab{ControlPlane: kcp, PKI: rig.NewPKI(t)}
	l.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kcp-system"}})
	t.Run("events", l.testEvents)
	t.Run("refusals", l.testRefusals)
	t.Run("leader election", l.testLeaderElection)
	t.Run("cache of one namespace", l.testOneNamespace)
	t.Run("unknown kind", l.testUnknownKind)
	t.Run("leader endpoint", l.testLeaderEndpoint)
	t.Run("leader endpoint without rights", l.testLeaderWithoutRights)
	t.Run("replicas of the guide", l.testReplicas)
	t.Run("set-up of the example", l.testSetUp)
	t.Run("restart beside a dead runtime", l.testRestart)
	t.Run("set-up of the guide", l.testEmbedding)
}

// lab is a control plane with certificates.
type lab struct {
	*apiserver.ControlPlane
	*rig.PKI
}

func (l *lab) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := l.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// kyma creates the object of a runtime and deletes it after the test. It has no annotation without
// a domain.
func (l *lab) kyma(t *testing.T, name string, domains ...string) *metav1.PartialObjectMetadata {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kymaKind())
	object.SetNamespace("kcp-system")
	object.SetName(name)
	for _, value := range domains {
		object.SetAnnotations(domain(value))
	}
	l.create(t, object)
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(l.Client.Delete(context.Background(), object)); err != nil {
			t.Error(err)
		}
	})
	return kyma(name)
}

func (l *lab) testEvents(t *testing.T) {
	l.kyma(t, "skr-1", "skr-1.example.com")
	l.kyma(t, "skr-2", "skr-2.example.com")
	skr1, skr2 := l.runtime(t, "skr-1", "skr-1.example.com"), l.runtime(t, "skr-2", "skr-2.example.com")
	o := l.newOperator(t, managerOptions())
	// Before the controller manager starts, the cache is not synced: the answer is 503.
	before := httptest.NewUnstartedServer(o.events)
	before.TLS = keys.ServerTLSConfig(l.ServerMaterial())
	before.StartTLS()
	defer before.Close()
	for _, owner := range []string{"", "kcp-system/skr-1"} {
		status := skr1.post(t, before.Listener.Addr().String(), owner, "a")
		if status != http.StatusServiceUnavailable {
			t.Errorf("before the start: status %d, want 503", status)
		}
	}
	o.start(t)
	o.accepted(t, skr1, "kcp-system/skr-1")
	t.Run("each reconciles its runtime", func(t *testing.T) {
		var got []string
		for _, send := range []struct {
			from  *runtime
			owner string
		}{{skr1, ""}, {skr2, ""}, {skr2, "kcp-system/skr-2"}, {skr1, "kcp-system/skr-1"}} {
			if status := send.from.post(t, o.addr, send.owner, "a"); status != http.StatusOK {
				t.Fatalf("status %d, want 200", status)
			}
			got = append(got, o.next(t))
		}
		// There is one worker: another reconcile would have come in between.
		want := []string{"kcp-system/skr-1", "kcp-system/skr-2", "kcp-system/skr-2", "kcp-system/skr-1"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("reconciled (-want +have):\n%s", diff)
		}
	})
	t.Run("duplicates collapse", func(t *testing.T) {
		// The first occupies the worker, which waits for next. The others can only wait in the queue.
		for _, watched := range []string{"a", "b", "c", "d", "e", "a"} {
			if status := skr1.post(t, o.addr, "", watched); status != http.StatusOK {
				t.Fatalf("status %d, want 200", status)
			}
		}
		if status := skr2.post(t, o.addr, "", "a"); status != http.StatusOK {
			t.Fatalf("status %d, want 200", status)
		}
		got := map[string]int{}
		for got["kcp-system/skr-2"] == 0 || got["kcp-system/skr-1"] == 0 {
			got[o.next(t)]++
		}
		// The worker may have taken the first request before the others arrived: one or two.
		if got["kcp-system/skr-1"] > 2 || got["kcp-system/skr-2"] != 1 {
			t.Errorf("reconciles by runtime: %v, want 1 or 2 for six events of skr-1, 1 for one of skr-2", got)
		}
	})
	t.Run("after the stop", func(t *testing.T) {
		o.stop()
		err := o.source.Handle(t.Context(),
			core.Delivery{Runtime: "skr-1", Event: core.WatchEvent{Owner: named("kcp-system/skr-1")}})
		if !errors.Is(err, core.ErrNotReady) {
			t.Errorf("have %v, want not ready", err)
		}
		if status := skr1.post(t, before.Listener.Addr().String(), "", "a"); status != http.StatusServiceUnavailable {
			t.Errorf("status %d, want 503", status)
		}
	})
}

// testRefusals changes the objects of a control plane, one after the other, while events arrive. All
// reasons are in TestDomain of adapters/controllerruntime.
func (l *lab) testRefusals(t *testing.T) {
	l.kyma(t, "probe", "probe.example.com")
	good := l.kyma(t, "good", "good.example.com")
	o := l.newOperator(t, managerOptions())
	o.start(t)
	probe := l.runtime(t, "probe", "probe.example.com")
	o.accepted(t, probe, "kcp-system/probe")
	sender, thief := l.runtime(t, "good", "good.example.com"), l.runtime(t, "good", "thief.example.com")
	changed := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	registered := func(value any) {
		patch := must(json.Marshal(map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{controllerruntime.DomainAnnotation: value},
		}}))
		changed(l.Client.Patch(t.Context(), good.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
	}
	for _, tc := range []struct {
		name   string
		change func()
		from   *runtime
		owner  string
		reason string // "" is accepted.
	}{
		{"fine, by runtime", nil, sender, "", ""},
		{"fine, by owner", nil, sender, "kcp-system/good", ""},
		{"another certificate", nil, thief, "", "san_mismatch"},
		{"annotation removed", func() { registered(nil) }, sender, "", "domain_missing"},
		{"annotation restored", func() { registered("good.example.com") }, sender, "", ""},
		{"registered twice", func() { l.kyma(t, "twin", "GOOD.example.com.") }, sender, "", "domain_ambiguous"},
		{"object deleted", func() { changed(l.Client.Delete(t.Context(), good.DeepCopy())) }, sender, "", "runtime_unknown"},
		{"object deleted, by owner", nil, sender, "kcp-system/good", "owner_missing"},
	} {
		if tc.change != nil {
			tc.change()
		}
		l.expect(t, o, tc.name, tc.from, tc.owner, tc.reason, tc.change != nil)
	}
	// Nothing that was refused is in the queue.
	o.accepted(t, probe, "kcp-system/probe")
}

// expect posts an event and compares the answer. It repeats this while the cache may lack a change.
func (l *lab) expect(t *testing.T, o *operator, name string, from *runtime, owner, reason string, changed bool) {
	t.Helper()
	want := http.StatusOK
	if reason != "" {
		want = http.StatusForbidden
	}
	eventually(t, name, func() bool {
		status := from.post(t, o.addr, owner, "a")
		if status == http.StatusOK {
			if got := o.next(t); got != "kcp-system/good" {
				t.Errorf("%s: reconciled %s, want kcp-system/good", name, got)
			}
		}
		have := o.reasons.get()
		if !changed && (status != want || have != reason) {
			t.Errorf("%s: status %d (%s), want %d (%s)", name, status, have, want, reason)
			return true
		}
		return status == want && have == reason
	})
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
	first.accepted(t, skr1, "kcp-system/skr-1")
	second := l.newOperator(t, opts)
	second.start(t)
	eventually(t, "the second replica has all that does not need to lead", func() bool {
		err := second.source.Handle(t.Context(), core.Delivery{Runtime: "skr-1"})
		return second.events.Ready() == nil && second.mgr.GetCache().WaitForCacheSync(t.Context()) &&
			errors.Is(err, core.ErrNotReady) && err.Error() == "not ready: another replica leads"
	})
	for range 3 {
		if status := skr1.post(t, second.addr, "", "a"); status != http.StatusServiceUnavailable {
			t.Errorf("the second replica answers %d, want 503", status)
		}
	}
	first.stop()
	second.accepted(t, skr1, "kcp-system/skr-1")
}

// testOneNamespace has a cache without the namespace that an attacker names.
func (l *lab) testOneNamespace(t *testing.T) {
	l.kyma(t, "good", "good.example.com")
	opts := managerOptions()
	opts.Cache.DefaultNamespaces = map[string]cache.Config{"kcp-system": {}}
	o := l.newOperator(t, opts)
	o.start(t)
	sender := l.runtime(t, "good", "good.example.com")
	o.accepted(t, sender, "kcp-system/good")
	l.expect(t, o, "owner in the cache", sender, "kcp-system/good", "", false)
	l.expect(t, o, "owner outside of the cache", sender, "default/good", "owner_missing", false)
}

func (l *lab) testUnknownKind(t *testing.T) {
	mgr := must(manager.New(l.Config, managerOptions()))
	_, err := controllerruntime.NewRuntimes(t.Context(), mgr.GetCache(),
		schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Cluster"},
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err == nil || !strings.Contains(err.Error(), "example.com/v1, Kind=Cluster") {
		t.Errorf("have %v, want an error that names the kind", err)
	}
}

// testSetUp runs the code in the README.
func (l *lab) testSetUp(t *testing.T) {
	l.kyma(t, "skr-1", "skr-1.example.com")
	o := &operator{
		mgr: must(manager.New(l.Config, managerOptions())), addr: rig.Address(rig.FreePort(t)),
		reconciled: make(chan string),
	}
	if err := setUp(t.Context(), o.mgr, o.addr, l.ServerMaterial(), reconcile.Func(o.reconcile)); err != nil {
		t.Fatal(err)
	}
	o.start(t)
	// The controller reconciles each object at its start, and again after an event.
	if got := o.next(t); got != "kcp-system/skr-1" {
		t.Errorf("reconciled %s first, want kcp-system/skr-1", got)
	}
	o.accepted(t, l.runtime(t, "skr-1", "skr-1.example.com"), "kcp-system/skr-1")
}
