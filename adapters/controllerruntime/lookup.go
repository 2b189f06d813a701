package controllerruntime

import (
	"errors"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kindOf names the kind of an object for errors. A typed object seldom has its kind.
func kindOf(object client.Object) string {
	if kind := object.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	return reflect.TypeOf(object).Elem().Name()
}

// checkKind refuses an object without a Go type of its own that does not name its kind.
func checkKind(object client.Object) error {
	switch object.(type) {
	case *metav1.PartialObjectMetadata, *unstructured.Unstructured:
		kind := object.GetObjectKind().GroupVersionKind()
		if kind.Kind == "" || kind.Version == "" {
			return errors.New("want an object that has a kind with version: call SetGroupVersionKind")
		}
	}
	return nil
}

// lookup finds objects by the indexes of a store. They belong to the cache and must not be changed.
type lookup struct{ store toolscache.Indexer }

// findBy returns the objects with a value in an index. The index must exist.
func (l lookup) findBy(index, value string) []client.Object {
	found, _ := l.store.ByIndex(index, value) // It fails only for an unknown index.
	return objectsOf(found)
}

func (l lookup) allObjects() []client.Object { return objectsOf(l.store.List()) }

func objectsOf(stored []any) []client.Object {
	objects := make([]client.Object, 0, len(stored))
	for _, item := range stored {
		if object, ok := item.(client.Object); ok {
			objects = append(objects, object)
		}
	}
	return objects
}

// indexed adds indexes to an informer and returns its store. A cache of several namespaces has an
// informer for each, and shows no store. own then means that the store is a new one for the same
// objects, which the caller must fill.
func indexed(informer cache.Informer, indexers toolscache.Indexers) (store toolscache.Indexer, own bool, err error) {
	shown, ok := informer.(interface{ GetIndexer() toolscache.Indexer })
	if !ok {
		return toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, indexers), true, nil
	}
	return shown.GetIndexer(), false, informer.AddIndexers(indexers)
}

// storing fills a store before it calls next.
func storing(store toolscache.Indexer, next toolscache.ResourceEventHandlerFuncs) toolscache.ResourceEventHandlerFuncs {
	// A store fails for nothing that has metadata.
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			_ = store.Add(object)
			next.AddFunc(object)
		},
		UpdateFunc: func(before, after any) {
			_ = store.Update(after)
			next.UpdateFunc(before, after)
		},
		DeleteFunc: func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			_ = store.Delete(object)
			next.DeleteFunc(object)
		},
	}
}

// valueOf makes an index of one value. Objects without a value are not in it.
func valueOf(value func(object client.Object) string) toolscache.IndexFunc {
	return func(item any) ([]string, error) {
		object, ok := item.(client.Object)
		if !ok {
			return nil, nil
		}
		v := value(object)
		if v == "" {
			return nil, nil
		}
		return []string{v}, nil
	}
}
