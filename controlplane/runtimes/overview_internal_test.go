package runtimes

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// An agent that answers may still send nothing. The overview names its runtime.
func TestOverviewNamesRuntimesThatAreNeverHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, o := newTestFleet(t), &Overview{}
		o.useFleet(f.Fleet)
		ready := installation.Status{State: installation.Ready}
		note := func() {
			o.note(client.ObjectKey{Name: "a"}, prod, ready, contents{managers: []core.Manager{"kyma"}})
			o.note(client.ObjectKey{Name: "b"}, "silent", ready, contents{managers: []core.Manager{"kyma", "other"}})
			o.note(client.ObjectKey{Name: "c"}, "waits", installation.Status{
				State: installation.Failed, Reason: reasonUnreachable,
			}, contents{})
		}
		note()
		f.beat("e", "kyma")
		if all := o.Installations(); len(all.NeverHeard["kyma"]) > 0 {
			t.Errorf("never heard at once: %v", all.NeverHeard)
		}
		time.Sleep(neverHeardAfter)
		note() // It is not new.
		time.Sleep(time.Second)
		o.noteRepair()
		o.noteAuthority(certificates.Status{Phase: "Confirming", Waiting: []core.RuntimeID{"silent"}})
		want := fleet.Installations{
			Runtimes: map[fleet.InstallationState]int{
				{State: "Ready"}: 2, {State: "Failed", Reason: "Unreachable"}: 1,
			},
			Failed: []fleet.FailedInstallation{
				{Object: client.ObjectKey{Name: "c"}, Runtime: "waits", Reason: "Unreachable"},
			},
			Repairs:    1,
			NeverHeard: map[core.Manager][]core.RuntimeID{"kyma": {"silent"}, "other": {"silent"}},
			Phase:      "Confirming", Waiting: []core.RuntimeID{"silent"},
		}
		if diff := cmp.Diff(want, o.Installations()); diff != "" {
			t.Errorf("overview (-want +got):\n%s", diff)
		}
		o.forget(client.ObjectKey{Name: "b"})
		all := o.Installations()
		if len(all.NeverHeard["kyma"]) > 0 || all.Runtimes[fleet.InstallationState{State: "Ready"}] != 1 {
			t.Errorf("after it was removed: %+v", all)
		}
	})
}

// Its id is known from an earlier reconcile, or not at all.
func TestOverviewNamesRuntimesThatFail(t *testing.T) {
	t.Parallel()
	known, unknown := newObject(string(prod)), newObject("unknown")
	r := newReconciler(t, newPlane(t, known, unknown), outOfReach)
	r.certificates, r.identify = ready{}, func(_ context.Context, object client.Object) (Identity, error) {
		if object.GetName() == "unknown" {
			return Identity{}, errors.New("no such thing")
		}
		return Identity{ID: core.RuntimeID(object.GetName()), Domain: "a.example.com"}, nil
	}
	if err := errors.Join(reconcileOnce(t, r, known), reconcileOnce(t, r, unknown)); err == nil {
		t.Fatal("nothing fails")
	}
	want := []fleet.FailedInstallation{
		{Object: client.ObjectKeyFromObject(known), Runtime: prod, Reason: "Unreachable"},
		{Object: client.ObjectKeyFromObject(unknown), Reason: "IdentityUnknown"},
	}
	if diff := cmp.Diff(want, r.opts.Overview.Installations().Failed); diff != "" {
		t.Errorf("runtimes that fail (-want +got):\n%s", diff)
	}
}

func TestEventsTellOfEachStep(t *testing.T) {
	t.Parallel()
	recorder := events.NewFakeRecorder(100)
	r := newReconciler(t, newPlane(t), nil)
	r.events = recorder
	object := newObject(string(prod))
	waiting := awaiting("RolloutProgressing", "waiting for the rollout: 1 of 2 replicas are updated")
	for _, status := range []installation.Status{
		{State: installation.Ready},
		waiting, waiting,
		{State: installation.Ready, Available: 2, Replicas: 2},
		{State: installation.Ready},
		{State: installation.Failed, Reason: "Unreachable", Message: "no route"},
		{State: installation.Ready},
	} {
		check(t, r.report(t.Context(), object, prod, status, contents{}))
	}
	var have []string
	for len(recorder.Events) > 0 {
		kind, rest, _ := strings.Cut(<-recorder.Events, " ")
		reason, _, _ := strings.Cut(rest, " ")
		have = append(have, kind+" "+reason)
	}
	want := []string{"Normal RolloutProgressing", "Normal Installed", "Warning Unreachable", "Normal Installed"}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// Two installers want one runtime. The second waits, and does not fail again and again.
func TestARuntimeOfAnotherInstallerIsRefused(t *testing.T) {
	t.Parallel()
	object := newObject(string(prod))
	r := newReconciler(t, newPlane(t, object), nil)
	reports := observeReports(r)
	result, err := r.fail(t.Context(), object, prod,
		because(installReason(coretest.Refusal{Label: "owned"}.Err()), errors.New("of another")))
	if err != nil || result.RequeueAfter < r.opts.Interval || reports.last().Reason != "InstallerRefused" {
		t.Errorf("got %+v, %v, %+v", result, err, reports.last())
	}
}
