package operator

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/test/chaos"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// Reconcile reads the requested object or runtime, no more, and records the state.
func (o *operator) Reconcile(ctx context.Context, r request) (reconcile.Result, error) {
	look := record.Look{
		Runtime: r.runtime.Name, Object: r.object.Name, Started: record.Now(),
		Versions: make(map[string]string),
	}

	read := o.readObject
	if look.Object == "" {
		read = o.readAll
	}

	if err := read(ctx, r, look.Versions); err != nil {
		return reconcile.Result{}, err
	}

	o.write(record.Entry{Look: &look})
	return reconcile.Result{}, nil
}

func (o *operator) readObject(ctx context.Context, r request, versions map[string]string) error {
	var object metav1.PartialObjectMetadata
	object.SetGroupVersionKind(chaos.WidgetKind())

	err := o.reader.Get(ctx, r.object, &object)
	if apierrors.IsNotFound(err) {
		return nil // The look records that the object is absent.
	}

	if err != nil {
		return wrap(r.object.String(), err)
	}

	versions[object.Name] = object.ResourceVersion
	return nil
}

func (o *operator) readAll(ctx context.Context, _ request, versions map[string]string) error {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(chaos.WidgetKind())
	if err := o.reader.List(ctx, &list, client.InNamespace(o.namespace)); err != nil {
		return wrap("all of "+o.namespace, err)
	}

	for i := range list.Items {
		versions[list.Items[i].Name] = list.Items[i].ResourceVersion
	}
	return nil
}
