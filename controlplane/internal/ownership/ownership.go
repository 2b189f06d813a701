// Package ownership writes and deletes only objects that the caller has read and found to be its
// own.
//
// Whether an object is the caller's is decided by a mark on the object, such as an annotation or a
// label with the owner's identity, which the caller reads. The functions of this package then make
// sure that the object that is written is the object that was read. Between the two, another client
// may have deleted the object and created another one with its name.
package ownership

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

// errAppeared means that another client has created an object with our name since it was read as
// absent. The next attempt reads the object, and decides about it.
var errAppeared = errors.New("another client has created an object with this name")

// Metadata reads the metadata of an object, or returns nil if the object does not exist. It does
// not read the content of the object, such as keys in a Secret.
func Metadata(
	ctx context.Context, reader client.Reader, kind schema.GroupVersionKind, key client.ObjectKey,
) (*metav1.PartialObjectMetadata, error) {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(kind)
	return serverside.Get(ctx, reader, key, live)
}

// Apply creates or corrects an object by server-side apply, as [serverside.Apply] does. The
// argument live is the object that the caller has read and found to be its own, or nil if there was
// no object. Apply fails without a change if another object now has the name.
func Apply(
	ctx context.Context, c client.Client, object *unstructured.Unstructured, live metav1.Object, manager string,
) (*unstructured.Unstructured, error) {
	if live == nil {
		return create(ctx, c, object, manager)
	}

	next := object.DeepCopy()
	// An API server refuses to apply a UID to an object with another one, and to no object.
	next.SetUID(uidOf(live))
	return serverside.Apply(ctx, c, next, manager)
}

// ApplyTyped is [Apply] for an object of a Go type.
func ApplyTyped(
	ctx context.Context, c client.Client, object client.Object, kind schema.GroupVersionKind,
	live metav1.Object, manager string,
) error {
	content, err := serverside.Content(object)
	if err != nil {
		return err
	}

	applied := &unstructured.Unstructured{Object: content}
	applied.SetGroupVersionKind(kind)
	_, err = Apply(ctx, c, applied, live, manager)

	return err
}

// create applies without force, which changes no field of another manager. An object that was
// created since the caller's read has fields of others. It is left as it was.
func create(
	ctx context.Context, c client.Client, object *unstructured.Unstructured, manager string,
) (*unstructured.Unstructured, error) {
	created := object.DeepCopy() // The client writes the response into its argument.
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(created), client.FieldOwner(manager))
	if apierrors.IsConflict(err) {
		return nil, fmt.Errorf("create %s %s: %w: %w", object.GetKind(), object.GetName(), errAppeared, err)
	}
	if err != nil {
		return nil, fmt.Errorf("create %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	if onlyBy(created, manager) {
		return created, nil
	}

	// An apply without fields removes the fields of this manager.
	nothing := &unstructured.Unstructured{}
	nothing.SetGroupVersionKind(object.GroupVersionKind())
	nothing.SetNamespace(object.GetNamespace())
	nothing.SetName(object.GetName())
	nothing.SetUID(created.GetUID())
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(nothing), client.FieldOwner(manager))

	return nil, errors.Join(
		fmt.Errorf("create %s %s: %w", object.GetKind(), object.GetName(), errAppeared), err)
}

// onlyBy reports whether no other manager has written fields of an object.
func onlyBy(object metav1.Object, manager string) bool {
	for _, entry := range object.GetManagedFields() {
		if entry.Manager != manager {
			return false
		}
	}
	return true
}

// WrittenBy reports whether a manager has written fields of an object. The result is not proof of
// ownership, because all installers of this module use the same field manager.
func WrittenBy(object metav1.Object, manager string) bool {
	for _, entry := range object.GetManagedFields() {
		if entry.Manager == manager {
			return true
		}
	}
	return false
}

// Delete deletes the object that was read, but never a later object with the same name. The garbage
// collector later deletes the objects that it owns. A missing object is not an error.
func Delete(ctx context.Context, c client.Client, live client.Object) error {
	return deleteIf(ctx, c, live, client.Preconditions{UID: new(live.GetUID())})
}

// DeleteUnchanged is like [Delete], but fails with a conflict if the object has changed since it
// was read, for example because it has lost its mark.
func DeleteUnchanged(ctx context.Context, c client.Client, live client.Object) error {
	return deleteIf(ctx, c, live, client.Preconditions{
		UID: new(live.GetUID()), ResourceVersion: new(live.GetResourceVersion()),
	})
}

func deleteIf(ctx context.Context, c client.Client, live client.Object, unchanged client.Preconditions) error {
	err := c.Delete(ctx, live, unchanged, client.PropagationPolicy(metav1.DeletePropagationBackground))
	return serverside.IgnoreAbsent(err)
}

// uidOf returns no UID that is longer than any of an API server: a runtime chooses it.
func uidOf(live metav1.Object) types.UID { return types.UID(remote.Token(string(live.GetUID()))) }
