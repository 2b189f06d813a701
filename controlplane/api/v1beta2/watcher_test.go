package v1beta2_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
)

func TestManagerName(t *testing.T) {
	t.Parallel()
	label := map[string]string{v1beta2.ManagedByLabel: "by-label"}
	tests := map[string]struct {
		labels  map[string]string
		manager string
		want    string
	}{
		"the spec":               {manager: "by-spec", want: "by-spec"},
		"the spec beats a label": {labels: label, manager: "by-spec", want: "by-spec"},
		"the label":              {labels: label, want: "by-label"},
		"neither":                {labels: map[string]string{"other": "label"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watcher := &v1beta2.Watcher{
				ObjectMeta: metav1.ObjectMeta{Labels: tt.labels},
				Spec:       v1beta2.WatcherSpec{Manager: tt.manager},
			}
			if got := watcher.ManagerName(); got != tt.want {
				t.Errorf("ManagerName() = %q, want %q", got, tt.want)
			}
		})
	}
}

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
