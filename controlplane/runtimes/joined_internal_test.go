package runtimes

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

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
			have, err := r.joined(object, "runtime-1", managers)
			check(t, err)
			have.Available, have.Replicas = 0, 0
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
