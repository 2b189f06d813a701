package v1beta2_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
)

func TestAddToScheme(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1beta2.AddToScheme(scheme); err != nil {
		t.Fatalf("AddToScheme: %v", err)
	}

	kinds, _, err := scheme.ObjectKinds(&v1beta2.Watcher{})
	if err != nil {
		t.Fatalf("ObjectKinds: %v", err)
	}

	want := []schema.GroupVersionKind{{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Watcher"}}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}
