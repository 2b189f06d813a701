package simulation

import (
	"context"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func widgets() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
}

// readThere reads one object of a runtime, or all.
func readThere(there client.Reader, name string) {
	if name == "" {
		_ = there.List(context.Background(), new(metav1.PartialObjectMetadataList))
		return
	}
	key := client.ObjectKey{Namespace: "default", Name: name}
	_ = there.Get(context.Background(), key, new(metav1.PartialObjectMetadata)) // It may be absent.
}

// reader reads the objects of a cluster.
type reader struct {
	client.Client

	cluster *cluster
}

// GroupVersionKindFor implements [client.Client].
func (reader) GroupVersionKindFor(runtime.Object) (schema.GroupVersionKind, error) {
	return widgets(), nil
}

// Get implements [client.Reader].
func (r reader) Get(_ context.Context, name client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	object, known := r.cluster.read()[name.Name]
	if !known || !object.exists {
		return apierrors.NewNotFound(schema.GroupResource{Group: widgets().Group, Resource: "widgets"}, name.Name)
	}
	into.SetUID(types.UID(object.uid))
	into.SetResourceVersion(strconv.Itoa(object.version))
	return nil
}

// List implements [client.Reader].
func (r reader) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	list, _ := into.(*metav1.PartialObjectMetadataList)
	for _, object := range r.cluster.read() {
		if object.exists {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				UID: types.UID(object.uid), ResourceVersion: strconv.Itoa(object.version),
			}})
		}
	}
	return nil
}
