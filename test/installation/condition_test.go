package installation

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
)

// TestCondition keeps a condition on an object with conditions of its own. A Watcher stands for it.
func TestCondition(t *testing.T) {
	plane := startPlane(t)
	object := newWatcher("represents")
	create(t, plane, object)

	others := metav1.Condition{
		Type: "Ready", Status: metav1.ConditionTrue, Reason: "Of", Message: "the operator", LastTransitionTime: metav1.Now(),
	}
	object.Status.Conditions = []metav1.Condition{others}

	if err := plane.Client.Status().Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	requests := 0
	counting, err := client.NewWithWatch(plane.Config, client.Options{Scheme: plane.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}

	report := runtimes.ReportCondition(interceptor.NewClient(counting, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object,
			opts ...client.GetOption,
		) error {
			requests++

			return c.Get(ctx, key, into, opts...)
		},
	}), "RuntimeWatcherInstalled")

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
		{
			installation.Status{State: installation.Ready, Available: 1, Replicas: 2},
			metav1.Condition{
				Status: metav1.ConditionTrue, Reason: "Installed", Message: "the agent answers, with 1 of 2 replicas",
			},
			2,
		},
		{
			installation.Status{State: installation.Ready, Available: 1, Replicas: 2},
			metav1.Condition{
				Status: metav1.ConditionTrue, Reason: "Installed", Message: "the agent answers, with 1 of 2 replicas",
			},
			2,
		},
		{
			installation.Status{State: installation.Failed, Reason: "InstallerRefused", Message: "of another"},
			metav1.Condition{Status: metav1.ConditionFalse, Reason: "InstallerRefused", Message: "of another"},
			3,
		},
	} {
		if err := report(t.Context(), object, step.status); err != nil {
			t.Fatal(err)
		}

		stored := &v1beta2.Watcher{}
		if err := plane.Client.Get(t.Context(), client.ObjectKeyFromObject(object), stored); err != nil {
			t.Fatal(err)
		}

		step.want.Type, step.want.ObservedGeneration = "RuntimeWatcherInstalled", object.Generation

		ignored := cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")
		if diff := cmp.Diff([]metav1.Condition{others, step.want}, stored.Status.Conditions, ignored); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}

		if requests != step.reads {
			t.Errorf("%d reads, want %d: an unchanged condition is not read again", requests, step.reads)
		}
	}

	remove(t, plane, object)

	if err := report(t.Context(), object, installation.Status{State: installation.Removed}); err != nil {
		t.Errorf("of an object that is gone: %v", err)
	}
}
