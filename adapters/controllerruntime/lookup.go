package controllerruntime

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lookup returns the objects with a value in an index. They belong to the cache and must not be
// changed.
type lookup func(ctx context.Context, index, value string) ([]*metav1.PartialObjectMetadata, error)

// newLookup adds indexes to a cache. It reads the indexer of the informer itself, because a list
// through the cache takes several times as long. A cache of several namespaces has an indexer for
// each, and only the list reads them all.
func newLookup(
	ctx context.Context, objects cache.Cache, informer cache.Informer, kind schema.GroupVersionKind,
	indexes map[string]client.IndexerFunc,
) (lookup, error) {
	if indexed, ok := informer.(interface{ GetIndexer() toolscache.Indexer }); ok {
		return lookInIndexer(indexed.GetIndexer()), informer.AddIndexers(indexersOf(indexes))
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	for name, extract := range indexes {
		if err := objects.IndexField(ctx, object, name, extract); err != nil {
			return nil, err // The caller wraps it.
		}
	}
	return lookInLists(objects, kind), nil
}

// indexersOf returns the indexes as an informer takes them.
func indexersOf(indexes map[string]client.IndexerFunc) toolscache.Indexers {
	indexers := make(toolscache.Indexers, len(indexes))
	for name, extract := range indexes {
		indexers[name] = func(object any) ([]string, error) {
			if metadata, ok := object.(*metav1.PartialObjectMetadata); ok {
				return extract(metadata), nil
			}
			return nil, nil
		}
	}
	return indexers
}

func lookInIndexer(indexer toolscache.Indexer) lookup {
	return func(_ context.Context, index, value string) ([]*metav1.PartialObjectMetadata, error) {
		found, err := indexer.ByIndex(index, value)
		objects := make([]*metav1.PartialObjectMetadata, 0, len(found))
		for _, object := range found {
			if metadata, ok := object.(*metav1.PartialObjectMetadata); ok {
				objects = append(objects, metadata)
			}
		}
		return objects, err
	}
}

func lookInLists(reader client.Reader, kind schema.GroupVersionKind) lookup {
	return func(ctx context.Context, index, value string) ([]*metav1.PartialObjectMetadata, error) {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := reader.List(ctx, list, client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy)
		objects := make([]*metav1.PartialObjectMetadata, len(list.Items))
		for i := range list.Items {
			objects[i] = &list.Items[i]
		}
		return objects, err
	}
}
