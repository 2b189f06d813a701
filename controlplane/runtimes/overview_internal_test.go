package runtimes

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

// An agent that answers may still send nothing. The overview names its runtime.
func TestOverviewNamesRuntimesThatAreNeverHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t)
		o := &Overview{}
		b := o.newBook()
		another := o.newBook()
		b.status = f.Get
		another.status = f.Get
		ready := installation.Status{State: installation.Ready}
		note := func() {
			b.noteStatus(client.ObjectKey{Name: "a"}, prod, ready, contents{managers: []core.Manager{"kyma"}})
			b.noteStatus(client.ObjectKey{Name: "b"}, "silent", ready, contents{managers: []core.Manager{"kyma", "other"}})
			another.noteStatus(client.ObjectKey{Name: "b"}, "waits", installation.Status{
				State: installation.Failed, Reason: ReasonUnreachable,
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
		b.repairs++
		o.authority = certificates.Status{Phase: "Confirming", Waiting: []core.RuntimeID{"silent"}}
		want := Installations{
			Runtimes: map[InstallationState]int{
				{State: "Ready"}: 2, {State: "Failed", Reason: "Unreachable"}: 1,
			},
			Failed: []FailedInstallation{
				{Object: client.ObjectKey{Name: "b"}, Runtime: "waits", Reason: "Unreachable"},
			},
			Repairs:    1,
			NeverHeard: map[core.Manager][]core.RuntimeID{"kyma": {"silent"}, "other": {"silent"}},
			Phase:      "Confirming", Waiting: []core.RuntimeID{"silent"},
		}
		if diff := cmp.Diff(want, o.Installations()); diff != "" {
			t.Errorf("overview (-want +got):\n%s", diff)
		}

		b.forgetObject(client.ObjectKey{Name: "b"})
		all := o.Installations()
		if len(all.NeverHeard["kyma"]) > 0 || all.Runtimes[InstallationState{State: "Ready"}] != 1 {
			t.Errorf("after it was removed: %+v", all)
		}
	})
}

// Its id is known from an earlier reconcile, or not at all.
func TestOverviewNamesRuntimesThatFail(t *testing.T) {
	t.Parallel()

	known := newObject(string(prod))
	unknown := newObject("unknown")
	r := newReconciler(t, newPlane(t, known, unknown), outOfReach)
	r.certificates = ready{}
	r.identify = func(_ context.Context, object client.Object) (Identity, error) {
		if object.GetName() == "unknown" {
			return Identity{}, errors.New("no such thing")
		}
		return Identity{ID: core.RuntimeID(object.GetName()), Domain: "a.example.com"}, nil
	}

	if err := errors.Join(reconcileOnce(t, r, known), reconcileOnce(t, r, unknown)); err == nil {
		t.Fatal("nothing fails")
	}

	want := []FailedInstallation{
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
	a := attemptOf(r, newObject(string(prod)), prod)
	waiting := awaiting("RolloutProgressing", "waiting for the rollout: 1 of 2 replicas are updated")

	for _, status := range []installation.Status{
		{State: installation.Ready},
		waiting, waiting,
		{State: installation.Ready, Available: 2, Replicas: 2},
		{State: installation.Ready},
		{State: installation.Failed, Reason: "Unreachable", Message: "no route"},
		{State: installation.Ready},
	} {
		check(t, a.reportStatus(t.Context(), status))
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
	result, err := attemptOf(r, object, prod).reportFailure(t.Context(),
		because(installReason(coretest.Refusal{Label: "owned"}.Err()), errors.New("of another")))
	if err != nil || result.RequeueAfter < r.opts.Interval || reports.last().Reason != "InstallerRefused" {
		t.Errorf("got %+v, %v, %+v", result, err, reports.last())
	}
}

// Other writers of a status may replace its list of conditions.
func TestConditionThatAnotherWriterRemovedComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		object := &v1beta2.Watcher{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "represents"}}
		c := planeWith(t, object, func() {})
		report := ReportCondition(c, "AgentInstalled")
		wantConditions := func(want int) (live *v1beta2.Watcher) {
			t.Helper()

			live = &v1beta2.Watcher{}
			check(t, errors.Join(report(t.Context(), object, installation.Status{State: installation.Ready}),
				c.Get(t.Context(), client.ObjectKeyFromObject(object), live)))
			if have := len(live.Status.Conditions); have != want {
				t.Fatalf("%d conditions, want %d", have, want)
			}

			return live
		}

		live := wantConditions(1)
		live.Status.Conditions = nil
		check(t, c.Status().Update(t.Context(), live))
		wantConditions(0) // There is no request for what is written already.
		time.Sleep(writeAgainAfter)
		wantConditions(1)
	})
}

// Another writer adds a condition after the list was read.
func TestConditionOfAnotherWriterIsNotOverwritten(t *testing.T) {
	t.Parallel()

	object := &v1beta2.Watcher{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "represents"}}
	plane := planeWith(t, object, func() {})
	c := interceptor.NewClient(plane, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
			other := &v1beta2.Watcher{}
			err := errors.Join(c.Get(ctx, key, into, opts...), c.Get(ctx, key, other))
			other.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Of"}}

			return errors.Join(err, c.Status().Update(ctx, other))
		},
	})

	err := ReportCondition(c, "AgentInstalled")(t.Context(), object, installation.Status{State: installation.Ready})
	if !apierrors.IsConflict(err) {
		t.Errorf("have %v, want a conflict", err)
	}
}

// A Watcher stands for an object with conditions of its own. An unchanged condition is not read again.
func TestConditionIsKeptBesideOthers(t *testing.T) {
	t.Parallel()

	others := metav1.Condition{
		Type: "Ready", Status: metav1.ConditionTrue, Reason: "Of", Message: "the operator", LastTransitionTime: metav1.Now(),
	}

	object := &v1beta2.Watcher{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "represents", Generation: 3}}
	object.Status.Conditions = []metav1.Condition{others}
	reads := 0
	c := planeWith(t, object, func() { reads++ })
	report := ReportCondition(c, "AgentInstalled")
	installed := metav1.Condition{Status: metav1.ConditionTrue, Reason: "Installed", Message: "the agent answers, with 1 of 2 replicas"}

	for _, step := range []struct {
		status installation.Status
		want   metav1.Condition
		reads  int
	}{
		{
			installation.Status{State: installation.Progressing, Reason: "CertificateIssuing", Message: "waiting"},
			metav1.Condition{Status: metav1.ConditionFalse, Reason: "CertificateIssuing", Message: "waiting"},
			1,
		},
		{installation.Status{State: installation.Ready, Available: 1, Replicas: 2}, installed, 2},
		{installation.Status{State: installation.Ready, Available: 1, Replicas: 2}, installed, 2},
		{
			installation.Status{State: installation.Failed, Reason: "InstallerRefused", Message: "of another"},
			metav1.Condition{Status: metav1.ConditionFalse, Reason: "InstallerRefused", Message: "of another"},
			3,
		},
	} {
		check(t, report(t.Context(), object, step.status))
		if reads != step.reads {
			t.Errorf("%d reads, want %d: an unchanged condition is not read again", reads, step.reads)
		}

		before := reads
		stored := &v1beta2.Watcher{}
		check(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), stored))
		reads = before
		step.want.Type = "AgentInstalled"
		step.want.ObservedGeneration = object.Generation
		ignored := cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")
		if diff := cmp.Diff([]metav1.Condition{others, step.want}, stored.Status.Conditions, ignored); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}
	}

	check(t, c.Delete(t.Context(), object))
	if err := report(t.Context(), object, installation.Status{State: installation.Removed}); err != nil {
		t.Errorf("of an object that is gone: %v", err)
	}
}

// planeWith returns a control plane with one Watcher. It calls read at each Get.
func planeWith(t *testing.T, object client.Object, read func()) client.WithWatch {
	t.Helper()

	known := runtime.NewScheme()
	check(t, v1beta2.AddToScheme(known))
	return fake.NewClientBuilder().WithScheme(known).WithObjects(object).WithStatusSubresource(object).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
				read()
				return c.Get(ctx, key, into, opts...)
			},
		}).Build()
}
