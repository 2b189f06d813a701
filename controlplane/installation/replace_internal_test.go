package installation

import (
	"log/slog"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// A former webhook configuration without its other objects delays each write of the runtime.
func TestFormerObjectsAreRemovedWithoutTheLastOne(t *testing.T) {
	former := SKRWebhook("kyma-system")
	first := former[0].DeepCopy()
	finalizers := []string{"example.com/hold"}
	first.SetFinalizers(finalizers)
	in := &cluster{Client: fake.NewClientBuilder().WithObjects(first).Build(), id: "runtime", log: slog.New(slog.DiscardHandler)}
	i := &Installer{opts: Options{Replaces: former}}
	for range 2 {
		status, err := i.replace(t.Context(), in, Status{State: Ready})
		if err != nil || status.State != Progressing {
			t.Errorf("got %+v, %v, want it to wait for the webhook configuration", status, err)
		}
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(first.GroupVersionKind())
	if err := in.Get(t.Context(), client.ObjectKeyFromObject(first), live); err != nil {
		t.Fatal(err)
	}
	live.SetFinalizers(nil)
	if err := in.Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	if status, err := i.replace(t.Context(), in, Status{State: Ready}); err != nil || status.State != Ready {
		t.Errorf("got %+v, %v after the end of all objects, want it ready", status, err)
	}
}
