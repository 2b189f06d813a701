package runtimes

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/fleet/fleettest"
)

// joinsBySelf returns a reconciler for runtimes that join by themselves. It fails the test if one is
// connected to.
func joinsBySelf(t *testing.T, object client.Object) (r *reconciler, last *installation.Status) {
	t.Helper()

	r = newReconciler(t, newPlane(t, object), func(context.Context, client.Object) (client.Client, error) {
		t.Error("a runtime that joins by itself is connected to")
		return nil, errors.New("no kubeconfig")
	})

	identify := r.identify
	r.identify = func(ctx context.Context, object client.Object) (Identity, error) {
		identity, err := identify(ctx, object)
		identity.Joins = true
		return identity, err
	}

	last = &installation.Status{}
	r.opts.Report = func(_ context.Context, _ client.Object, status installation.Status) error {
		*last = status
		return nil
	}

	return r, last
}

// Of a runtime that joins by itself, heartbeats are all that is known.
func TestARuntimeThatJoinsIsJudgedByItsHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: "runtime-1"}}
		r, last := joinsBySelf(t, object)
		all, err := fleet.New(fleet.Options{})
		check(t, err)
		r.opts.Fleet = all
		managers := []core.Manager{"first", "second", "not-there"}

		for _, step := range []struct {
			manager core.Manager
			set     fleet.Condition
			want    installation.Status
		}{
			{"", fleet.Condition{}, installation.Status{
				State: installation.Progressing, Reason: ReasonHeartbeatAwaited, Message: "waiting for the first heartbeat of the agent",
			}},
			{"first", fleet.Condition{State: fleet.Fresh}, installation.Status{State: installation.Ready}},
			{"second", fleet.Condition{State: fleet.Unproved}, installation.Status{
				State: installation.Progressing, Reason: ReasonAgentUnproved, Message: "second is unproved",
			}},
			{"second", fleet.Condition{State: fleet.Degraded, Reason: fleet.ReasonWebhookChanged}, installation.Status{
				State: installation.Failed, Reason: ReasonAgentUnhealthy, Message: "second is degraded webhook_changed",
			}},
			{"second", fleet.Condition{State: fleet.Fresh}, installation.Status{State: installation.Ready}},
			{"first", fleet.Condition{State: fleet.Stale}, installation.Status{
				State: installation.Failed, Reason: ReasonAgentUnhealthy, Message: "first is stale stopped",
			}},
		} {
			if step.manager != "" {
				fleettest.Set(all, "runtime-1", step.manager, step.set)
			}

			have, err := judge(r, object, managers)
			check(t, err)
			have.Available = 0
			have.Replicas = 0

			if diff := cmp.Diff(step.want, have); diff != "" {
				t.Errorf("after %s %v (-want +got):\n%s", step.manager, step.set, diff)
			}
		}

		check(t, reconcileOnce(t, r, object))
		check(t, r.client.Get(t.Context(), client.ObjectKeyFromObject(object), object))
		if len(object.Finalizers) > 0 || last.Reason != ReasonHeartbeatAwaited { // There are no Watchers.
			t.Errorf("finalizers %q, status %+v", object.Finalizers, last)
		}

		check(t, r.client.Delete(t.Context(), object))
		check(t, reconcileOnce(t, r, object))
		if have := all.Get("runtime-1", "second").State; have != fleet.Unknown {
			t.Errorf("the fleet has %s after the deletion of the object, want that it is forgotten", have)
		}
	})
}

// An agent may serve some managers only, while the fleet expects heartbeats to all. A manager that never got one is then
// named, and the runtime is ready.
func TestAManagerThatTheAgentDoesNotServeIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: "runtime-1"}}
		r, _ := joinsBySelf(t, object)
		all := newTestFleet(t).Fleet
		r.opts.Fleet = all
		served := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
		go func() {
			_ = all.Receiver().Start(t.Context(), map[core.Manager]core.Handler{"first": served, "second": served})
		}()

		all.Expect("runtime-1", "first")
		all.Expect("runtime-1", "second")
		time.Sleep(2 * time.Minute)
		managers := []core.Manager{"first", "second"}
		have, err := judge(r, object, managers)
		check(t, err)

		if have.State != installation.Failed || have.Message != "first is stale; second is stale" {
			t.Errorf("without any heartbeat: %+v", have)
		}

		fleettest.Set(all, "runtime-1", "first", fleet.Condition{State: fleet.Fresh})
		have, err = judge(r, object, managers)
		check(t, err)
		if have.State != installation.Ready || !strings.Contains(have.Notice, "no heartbeat ever came for second") {
			t.Errorf("with heartbeats to one manager: %+v", have)
		}

		fleettest.Set(all, "runtime-1", "first", fleet.Condition{State: fleet.Degraded, Reason: fleet.ReasonWebhookChanged})
		have, err = judge(r, object, managers)
		check(t, err)
		if have.State != installation.Failed || !strings.Contains(have.Message, "webhook_changed; no heartbeat ever came for second") {
			t.Errorf("with a fault: %+v", have)
		}
	})
}

// The status of a runtime that joins by itself follows its heartbeats within seconds, faults that no reconcile can end
// and the end of a fault included.
func TestTheStatusOfAJoinedRuntimeFollowsItsHeartbeats(t *testing.T) {
	inRepairWorld(t, func(w *repairWorld) {
		w.book.noteJoins(prodKey, true)
		w.beat("a", alive)
		w.drain()
		pending := core.Heartbeat{Canary: core.CanaryAlive, OldestPending: time.Hour}

		for _, beat := range []core.Heartbeat{pending, alive, lost, alive} {
			time.Sleep(w.opts.Retry)
			w.beat("a", beat)
			w.wantLooks(1)
		}

		// Changes that follow each other soon share a reconcile.
		for range 10 {
			w.beat("a", pending)
			w.beat("a", alive)
		}

		w.wantLooks(0)
		time.Sleep(w.opts.Retry)
		w.wantLooks(1)
		w.wantVerified(false)
	})
	inRepairWorld(t, func(w *repairWorld) {
		w.book.forgetObject(prodKey)
		w.book.addObject(prodKey, "new")
		w.book.noteJoins(prodKey, true)
		w.drain()
		fleettest.Set(w.fleet, "new", "a", fleet.Condition{State: fleet.Unproved})
		w.wantLooks(1) // Its first heartbeat.
	})
}

// An agent that was installed from here is removed before its runtime joins, because only the
// installer renews its certificate.
func TestAnInstalledAgentIsRemovedBeforeItsRuntimeJoins(t *testing.T) {
	t.Parallel()

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: "runtime-1"}}
	r, last := joinsBySelf(t, object)
	_ = reconcileOnce(t, r, object) // The status has its error.
	if last.Reason != ReasonIdentityUnknown {
		t.Errorf("without a fleet: %+v", last)
	}

	all, err := fleet.New(fleet.Options{})
	check(t, err)
	r.opts.Fleet = all
	check(t, r.client.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	controllerutil.AddFinalizer(object, r.names.Finalizer)
	check(t, r.client.Update(t.Context(), object))
	_ = reconcileOnce(t, r, object) // The status has its error.

	if last.State != installation.Failed || last.Reason != ReasonInstallerRefused {
		t.Errorf("with an installed agent: %+v", last)
	}
}

func judge(r *reconciler, object client.Object, managers []core.Manager) (installation.Status, error) {
	a := attemptOf(r, object, "runtime-1")
	a.has.managers = managers
	return a.judgeJoined()
}
