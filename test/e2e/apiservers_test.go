package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// apart is a scene with an API server that no other test uses. Reconciles read through it.
type apart struct {
	*scene

	began chan struct{} // It is closed when the scene is complete.
	mu    sync.Mutex
	read  map[string]string // the last state of each ConfigMap that a reconcile has read
}

func newApart(t *testing.T) *apart {
	t.Helper()
	lab.SkipShort(t)
	t.Parallel()
	clusters.Lock()
	t.Cleanup(clusters.Unlock)
	s := &apart{began: make(chan struct{}), read: make(map[string]string)}
	s.scene = &scene{
		t: t, runtime: apiserver.StartT(t, apiserver.Options{}), pki: lab.NewPKI(t),
		fleet: lab.Must(fleet.New(fleet.Options{ResyncJitter: time.Millisecond})),
	}
	s.plane = lab.StartPlane(t, s.pki, lab.PlaneOptions{
		Verifier: lab.Pinning(), Listener: listener.Options{Fleet: s.fleet}, Reconcile: s.reconcile,
	}, manager)
	close(s.began)
	return s
}

// reconcile reads one object, or all after a resync.
func (s *apart) reconcile(ctx context.Context, look lab.Look) (reconcile.Result, error) {
	<-s.began
	there := s.plane.Client(look, s.runtime.Client)
	all := &corev1.ConfigMapList{}
	if look.Object.Name == "" {
		if err := there.List(ctx, all, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return reconcile.Result{}, err
		}
	} else {
		one := corev1.ConfigMap{}
		if err := there.Get(ctx, look.Object, &one); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		all.Items = append(all.Items, one)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range all.Items {
		s.read[all.Items[i].Name] = all.Items[i].Data["state"]
	}
	return reconcile.Result{}, nil
}

func (s *apart) awaitRead(name, state string) {
	s.t.Helper()
	lab.Eventually(s.t, lab.Patience, "a reconcile reads the state "+state+" of "+name, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.read[name] == state
	})
}

// put writes a state into a ConfigMap, and returns the version. An API server that starts may refuse it at first.
func (s *apart) put(name, state string, labels map[string]string) (version uint64) {
	s.t.Helper()
	object := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: labels},
		Data:       map[string]string{"state": state},
	}
	text := lab.Must(json.Marshal(object))
	lab.Eventually(s.t, lab.Patience, "the write of "+name, func() bool {
		apply := client.RawPatch(types.ApplyPatchType, text)
		return s.runtime.Client.Patch(s.t.Context(), object, apply, client.FieldOwner("e2e"), client.ForceOwnership) == nil
	})
	return lab.Must(strconv.ParseUint(object.ResourceVersion, 10, 64))
}

func (s *apart) await(id core.RuntimeID, state fleet.State, reason fleet.Reason) {
	s.t.Helper()
	lab.Eventually(s.t, lab.Patience, fmt.Sprintf("%s is %s %s", id, state, reason), func() bool {
		have := s.fleet.Get(id, manager)
		return have.State == state && have.Reason == reason
	})
}

// startAgent returns an agent of a runtime with a canary that writes to these API servers, and the Lease of the canary.
func (s *apart) startAgent(id string, servers ...string) (*lab.Agent, types.NamespacedName) {
	s.t.Helper()
	canary := lab.NewCanary(s.t, s.runtime, id+"-canary")
	env := canary.Env
	env["MANAGERS"] = manager
	env["CONTROL_PLANE_CONTRACT"] = "v3"
	env["CANARY_INTERVAL"] = "1s"
	env["HEARTBEAT_INTERVAL"] = "2s"
	env["RESEND_RESYNC"] = "0s"
	if len(servers) > 0 {
		env["CANARY_API_SERVER"] = strings.Join(servers, ",")
	}
	volume := s.pki.RuntimeVolume(id, lab.RuntimeDomain(core.RuntimeID(id)))
	agent := lab.StartAgent(s.t, volume, s.plane.Addr, lab.AgentOptions{Env: env, Name: id})
	// Writes must not pass unreviewed on a busy machine.
	opts := admission.ConfigurationOptions{Canary: canary.Lease, Timeout: 30 * time.Second}
	lab.Register(s.t, s.runtime, id, agent.WebhookPort, s.pki.CA.PEM, opts, watchedConfigMaps())
	return agent, canary.Lease
}

// awaitCanary returns when the canary has written twice after a version. The agent has the first answer by then.
func (s *apart) awaitCanary(lease types.NamespacedName, after uint64) {
	s.t.Helper()
	for range 2 {
		lab.Eventually(s.t, lab.Patience, "the canary writes", func() bool {
			found := &coordinationv1.Lease{}
			lab.NoError(s.t, s.runtime.Client.Get(s.t.Context(), lease, found))
			version := lab.Must(strconv.ParseUint(found.ResourceVersion, 10, 64))
			if version <= after {
				return false
			}
			after = version
			return true
		})
	}
}

// TestRestoredEtcd restores the etcd of a runtime from a backup. No agent sees that, because a restore is no write. The
// canary notices that the versions went back, and a resync follows. A later write has a lower version than the one that
// a reconcile has read before the restore, and is reconciled nevertheless.
func TestRestoredEtcd(t *testing.T) {
	const object, writes = "restored", 500 // Those after the backup are more than an API server makes at its start.
	s := newApart(t)
	watched := watchedConfigMaps().Selector.Labels
	agent, lease := s.startAgent(runtime)
	s.await(runtime, fleet.Fresh, "")
	s.put(object, "saved", watched)
	s.awaitRead(object, "saved")

	backup := filepath.Join(t.TempDir(), "backup")
	lab.NoError(t, s.runtime.BackUp(backup))
	s.await(runtime, fleet.Fresh, "")
	s.put(object, "lost", watched)
	var last uint64
	for i := range writes {
		last = s.put("other", strconv.Itoa(i), nil)
	}
	s.awaitRead(object, "lost")
	s.awaitCanary(lease, last)

	lab.NoError(t, s.runtime.Restore(backup))
	lab.Eventually(t, lab.Patience, "the canary notices the restore", func() bool {
		return strings.Contains(agent.FullLog(), "went back or far ahead, as after a restored backup")
	})
	s.awaitRead(object, "saved")
	s.await(runtime, fleet.Fresh, "")
	if version := s.put(object, "new", watched); version >= last {
		t.Errorf("the write after the restore has the version %d, want one below %d", version, last)
	}
	s.awaitRead(object, "new")
}

// TestOneOfTwoAPIServersCallsNoAgent has a second API server that calls no webhook, as without a way to the agent. A load
// balancer that leads each write of a canary to the first one hides that. One that takes turns does not, and neither
// does a canary that knows both.
func TestOneOfTwoAPIServersCallsNoAgent(t *testing.T) {
	s := newApart(t)
	first := s.runtime.Config.Host
	second := lab.Must(s.runtime.Another(t.Context(), "--disable-admission-plugins=ValidatingAdmissionWebhook"))
	backend := func(server string) string { return lab.Must(url.Parse(server)).Host }
	pins := lab.Must(lab.NewRelayTo("127.0.0.1:0", func() string { return backend(first) }))
	t.Cleanup(pins.Close)
	turns := lab.Must(lab.NewRelay("127.0.0.1:0", time.Hour, backend(first), backend(second)))
	t.Cleanup(turns.Close)
	const pinned, inTurn, named = runtime, "runtime-2", "runtime-3"
	s.startAgent(pinned, "https://"+pins.Addr())
	s.startAgent(inTurn, "https://"+turns.Addr())
	s.startAgent(named, "https://"+backend(first), "https://"+backend(second))

	s.await(pinned, fleet.Fresh, "")
	s.await(inTurn, fleet.Degraded, fleet.ReasonCanaryLost)
	s.await(named, fleet.Degraded, fleet.ReasonCanaryLost)
	lab.Eventually(t, lab.Patience, "the heartbeat names the API server", func() bool {
		beat := s.fleet.Get(named, manager).Replicas[0].Heartbeat
		return beat.CanaryError == "the API server "+backend(second)+" does not call the agent"
	})

	config := rest.CopyConfig(s.runtime.Config)
	config.Host = second
	there := lab.Must(client.New(config, client.Options{}))
	labels := watchedConfigMaps().Selector.Labels
	hidden := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "hidden", Labels: labels}}
	lab.NoError(t, there.Create(t.Context(), hidden))
	s.put("seen", "1", labels)
	at := func(name string) lab.Look {
		return lab.Look{Runtime: pinned, Object: types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}}
	}
	lab.Eventually(t, lab.Patience, "the write through the first API server", func() bool { return len(s.plane.Started(at("seen"))) > 0 })
	if have := s.fleet.Get(pinned, manager); len(s.plane.Started(at("hidden"))) > 0 || have.State != fleet.Fresh {
		t.Errorf("the hidden write was seen, or %s is %s %s: then operations.md has no limit to describe", pinned, have.State, have.Reason)
	}
}
