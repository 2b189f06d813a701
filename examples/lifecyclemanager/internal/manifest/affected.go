package manifest

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
)

// Affected returns a function that requests the Manifests of the runtime that sent an event. An
// event about an object requests only the Manifest that has the object, and a resync all of them.
func Affected(manifests client.Reader, known *controllerruntime.Runtimes) controllerruntime.MapFunc[ctrl.Request] {
	return func(ctx context.Context, d core.Delivery) (requests []ctrl.Request, err error) {
		kymas, err := known.Objects(ctx, d.Runtime)
		if err != nil {
			return nil, err
		}
		for _, kyma := range kymas {
			list := &v1beta2.ManifestList{}
			ofKyma := client.MatchingLabels{v1beta2.KymaLabel: kyma.Name}
			if err := manifests.List(ctx, list, client.InNamespace(kyma.Namespace), ofKyma); err != nil {
				return nil, err
			}
			requests = append(requests, requestsFor(list, &d.Event)...)
		}
		return requests, nil
	}
}

func requestsFor(list *v1beta2.ManifestList, event *core.WatchEvent) (requests []ctrl.Request) {
	for i := range list.Items {
		manifest := &list.Items[i]
		if event.Resync || slices.ContainsFunc(manifest.Status.Inventory, is(event)) {
			name := types.NamespacedName{Namespace: manifest.Namespace, Name: manifest.Name}
			requests = append(requests, ctrl.Request{NamespacedName: name})
		}
	}
	return requests
}

// is returns a function that reports whether an entry is the object of an event.
func is(event *core.WatchEvent) func(v1beta2.Object) bool {
	return func(o v1beta2.Object) bool {
		return o.Group == event.WatchedGVK.Group && o.Kind == event.WatchedGVK.Kind &&
			o.Namespace == event.Watched.Namespace && o.Name == event.Watched.Name
	}
}
