package watcher

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
)

// formerFinalizer is on every Watcher of a controller that this one replaces.
const formerFinalizer = "operator.kyma-project.io/watcher"

// removeFinalizer takes the former finalizer off. Routes have an owner reference, so they need no
// finalizer.
func (r *reconciler) removeFinalizer(ctx context.Context, w *v1beta2.Watcher) error {
	before := w.DeepCopy()
	if !controllerutil.RemoveFinalizer(w, formerFinalizer) {
		return nil
	}
	// A patch replaces the whole list, so it must not overwrite a concurrent change.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(r.client.Patch(ctx, w, patch)); err != nil {
		return fmt.Errorf("remove the finalizer %s: %w", formerFinalizer, err)
	}
	return nil
}
