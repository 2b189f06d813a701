package cause_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/cause"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// reader is a runtime with an object in version 2.
type reader struct{ client.Client }

// Get implements [client.Reader].
func (reader) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	object.SetUID("uid")
	object.SetResourceVersion("2")
	return nil
}

// GroupVersionKindFor implements [client.Client]. Only a read of the kind of an event counts for
// it.
func (reader) GroupVersionKindFor(runtime.Object) (schema.GroupVersionKind, error) { return kind, nil }

var kind = corev1.SchemeGroupVersion.WithKind("ConfigMap")

// TestCauses wants an event to cause one reconcile, also with a resync after it. Its resend causes
// none, and the next reconcile, after an error, is not reported as one for the resend.
func TestCauses(t *testing.T) {
	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}

	var causes []cause.Cause
	request := ctrl.Request{}
	source := cause.NewSource("my-operator", func(context.Context, core.Delivery) ([]ctrl.Request, error) {
		return []ctrl.Request{request}, nil
	}, watched, func(why cause.Cause) { causes = append(causes, why) })
	queue := priorityqueue.New[ctrl.Request]("causes")
	defer queue.ShutDown()
	counted := source.Count(reconcile.Func(func(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
		there := source.Client(r, "runtime-1", reader{})
		return ctrl.Result{}, errors.Join(there.Get(ctx, client.ObjectKey{}, &corev1.ConfigMap{}), errors.New("again"))
	}))

	err = source.Start(t.Context(), queue)
	changed := core.WatchEvent{UID: "uid", Base: 1, WatchedGVK: kind}
	for _, events := range [][]core.WatchEvent{{changed, {Resync: true}}, {changed}} {
		for _, e := range events {
			err = errors.Join(err, source.Handle(t.Context(), core.Delivery{Runtime: "runtime-1", Event: e}))
		}
		_, _ = counted.Reconcile(t.Context(), request)
	}

	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(causes, []cause.Cause{cause.Event, cause.Retry}) {
		t.Errorf("causes %q, want an event and a retry", causes)
	}
}

// TestOtherQueue refuses a queue without priorities, as a source would not see its requests.
func TestOtherQueue(t *testing.T) {
	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}

	source := cause.NewSource("my-operator", nil, watched, func(cause.Cause) {})
	if err := source.Start(t.Context(), nil); err == nil {
		t.Error("want an error")
	}
}
