package installation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// An EndpointSlice that cannot be read leaves the state open, although the rollout is complete. The
// control is the same rollout with a readable slice.
func TestAgentsHaveNoStatusWithAnError(t *testing.T) {
	t.Parallel()

	deployment := &unstructured.Unstructured{Object: map[string]any{
		"spec":   map[string]any{"replicas": int64(1)},
		"status": map[string]any{"replicas": int64(1), "updatedReplicas": int64(1), "availableReplicas": int64(1)},
	}}

	service := types.NamespacedName{Namespace: "runtime-watcher", Name: "runtime-watcher"}
	judge := func(endpoints any) (Status, error) {
		slice := unstructured.Unstructured{Object: map[string]any{"endpoints": endpoints}}
		live := agents{
			deployment: deployment,
			slices:     &unstructured.UnstructuredList{Items: []unstructured.Unstructured{slice}},
		}

		return (&cluster{id: "prod"}).judgeAgents(live, service)
	}

	status, err := judge([]any{map[string]any{"addresses": []any{"192.0.2.1"}}})
	if err != nil || status.State != Ready {
		t.Errorf("readable slice: got %+v, %v, want ready", status, err)
	}

	status, err = judge("no list")
	if diff := cmp.Diff(Status{}, status); err == nil || diff != "" {
		t.Errorf("unreadable slice: got error %v and a status (-want +got):\n%s", err, diff)
	}
}
