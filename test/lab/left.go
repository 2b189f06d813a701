package lab

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Left returns all objects of a cluster, of any kind but Event, that the condition holds for.
func Left(t testing.TB, plane *apiserver.ControlPlane, condition func(*metav1.PartialObjectMetadata) bool) (left []string) {
	t.Helper()
	if err := plane.Objects(t.Context(), func(kind string, o *metav1.PartialObjectMetadata) {
		if condition(o) {
			left = append(left, fmt.Sprintf("%s %s/%s", kind, o.Namespace, o.Name))
		}
	}); err != nil {
		t.Fatal(err)
	}
	return left
}
