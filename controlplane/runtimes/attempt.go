package runtimes

import (
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// attempt is one reconcile of one object. It belongs to the goroutine of that reconcile.
type attempt struct {
	*reconciler

	object   client.Object
	key      client.ObjectKey
	id       core.RuntimeID // Empty before identifyRuntime, and if another object has the runtime.
	identity Identity       // Set by identifyRuntime.
	has      contents       // Set before the installation.
}

// certificatesRuntime names the owner with its kind, so that the schemes of others need not know
// it. The garbage collector removes the certificates with the owner, even without the finalizer.
func (a *attempt) certificatesRuntime() certificates.Runtime {
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: a.object.GetNamespace(), Name: a.object.GetName(), UID: a.object.GetUID(),
	}}
	owner.SetGroupVersionKind(a.gvk)
	return certificates.Runtime{ID: a.identity.ID, Domain: a.identity.Domain, Owner: owner}
}

// patchIfChanged patches the object if change has changed its finalizers or annotations. The patch
// conflicts with concurrent changes, because it replaces the whole list of finalizers.
func (a *attempt) patchIfChanged(ctx context.Context, change func()) error {
	before, _ := a.object.DeepCopyObject().(client.Object) // A copy has the same type.
	change()
	isSame := slices.Equal(before.GetFinalizers(), a.object.GetFinalizers()) &&
		maps.Equal(before.GetAnnotations(), a.object.GetAnnotations())
	if isSame {
		return nil
	}

	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := a.client.Patch(ctx, a.object, patch); err != nil {
		return fmt.Errorf("patch the object: %w", err)
	}
	return nil
}

// labelSkip is the word of the label of objects with runtimes that are left as they are, with the
// value "true". The deletion of such an object still removes the agent.
const labelSkip = "skip-reconciliation"

func (a *attempt) isSkipped() bool {
	return a.object.GetLabels()[a.names.Key(labelSkip)] == "true"
}

// setRemoval notes the time of the first attempt to remove the agent.
func (a *attempt) setRemoval(first string) {
	annotations := a.othersOf(a.object)
	annotations[a.names.Key(annotationRemoval)] = first
	a.object.SetAnnotations(annotations)
}

func (a *attempt) clearRemoval() { a.object.SetAnnotations(a.othersOf(a.object)) }
