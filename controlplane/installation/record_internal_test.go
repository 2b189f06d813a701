package installation

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A backup of etcd has an object one generation older than the record. The next change to that
// object, such as a restart of its pods, gives it the generation of the record, with the older
// content.
func TestVersionAfterARestoredBackup(t *testing.T) {
	t.Parallel()

	deployment := func(generation int64, image, status string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"uid": "u", "generation": generation, "resourceVersion": status},
			"spec":     map[string]any{"image": image},
			"status":   status,
		}}
	}

	recorded := versionOf(deployment(2, "agent:v2", "10"))

	if versionOf(deployment(2, "agent:v1", "20")) == recorded {
		t.Error("an older object of the same generation counts as unchanged")
	}
	if versionOf(deployment(3, "agent:v2", "20")) == recorded {
		t.Error("another generation counts as unchanged")
	}
	if versionOf(deployment(2, "agent:v2", "30")) != recorded {
		t.Error("another status counts as a change")
	}
}
