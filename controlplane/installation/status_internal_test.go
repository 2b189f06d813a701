package installation

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// A runtime may have room for one of two replicas, for ever.
func TestOneReplicaThatAnswersIsEnough(t *testing.T) {
	late := []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded",
	}}
	tests := map[string]struct {
		status appsv1.DeploymentStatus
		want   State
	}{
		"room for one": {appsv1.DeploymentStatus{
			Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 1, Conditions: late,
		}, Ready},
		"room for none": {appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, Conditions: late}, Failed},
		"a former replica answers": {appsv1.DeploymentStatus{
			Replicas: 3, UpdatedReplicas: 1, AvailableReplicas: 1, Conditions: late,
		}, Failed},
		"one of two is new": {appsv1.DeploymentStatus{
			Replicas: 3, UpdatedReplicas: 1, AvailableReplicas: 2,
		}, Progressing},
		"an old one is left": {appsv1.DeploymentStatus{
			Replicas: 3, UpdatedReplicas: 2, AvailableReplicas: 3,
		}, Progressing},
		"an old generation": {appsv1.DeploymentStatus{
			ObservedGeneration: -1, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2,
		}, Progressing},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}, Status: test.status,
			}
			if have := rollout(d); have.State != test.want {
				t.Errorf("got %+v, want %s", have, test.want)
			}
		})
	}
}

// The object of a runtime may vanish without an end.
func TestARuntimeThatIsGoneIsForgotten(t *testing.T) {
	i, err := New("image", "a:443", Options{})
	if err != nil {
		t.Fatal(err)
	}
	i.looks.Store(core.RuntimeID("prod"), look{})
	status, err := i.Uninstall(t.Context(), Runtime{ID: "prod"})
	if _, known := i.looks.Load(core.RuntimeID("prod")); known || err != nil || status.State != Removed {
		t.Errorf("known: %t, %+v, %v", known, status, err)
	}
}
