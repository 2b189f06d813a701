package runtimes

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
)

// Other writers of a status may replace its list of conditions.
func TestConditionThatAnotherWriterRemovedComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		object := &corev1.Node{}
		object.SetName("runtime")

		c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(object).WithStatusSubresource(object).Build()
		report := ReportCondition(c, "AgentInstalled")
		conditions := func() int {
			if err := report(t.Context(), object, installation.Status{State: installation.Ready}); err != nil {
				t.Fatal(err)
			}

			live := &corev1.Node{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(object), live); err != nil {
				t.Fatal(err)
			}

			return len(live.Status.Conditions)
		}

		if have := conditions(); have != 1 {
			t.Fatalf("%d conditions, want 1", have)
		}

		live := &corev1.Node{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(object), live); err != nil {
			t.Fatal(err)
		}

		live.Status.Conditions = nil
		if err := c.Status().Update(t.Context(), live); err != nil {
			t.Fatal(err)
		}

		if have := conditions(); have != 0 {
			t.Fatalf("%d conditions at once, want no request for what is written already", have)
		}

		time.Sleep(writeAgainAfter)

		if have := conditions(); have != 1 {
			t.Errorf("%d conditions after %v, want 1", have, writeAgainAfter)
		}
	})
}
