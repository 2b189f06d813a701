package manifest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
)

// content contains the objects of a ModuleTemplate.
type content struct {
	objects []*unstructured.Unstructured
	// data is the custom resource, and ignored that which the policy leaves to the user.
	data, ignored []*unstructured.Unstructured
}

// wantedContent returns the content of the ModuleTemplate. It returns nil if this is no longer the
// ModuleTemplate that the Manifest names. In this case, the Kyma controller names another
// ModuleTemplate, or reports why not.
func (r *Reconciler) wantedContent(ctx context.Context, manifest *v1beta2.Manifest) (*content, error) {
	template, err := r.storedTemplate(ctx, manifest)
	if err != nil || template == nil || template.Generation != manifest.Spec.Template.Generation {
		return nil, err
	}
	return contentOf(template)
}

// storedTemplate returns the ModuleTemplate of a Manifest in any generation, nil if it is gone.
func (r *Reconciler) storedTemplate(ctx context.Context, manifest *v1beta2.Manifest) (*v1beta2.ModuleTemplate, error) {
	ref := manifest.Spec.Template
	template := &v1beta2.ModuleTemplate{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: manifest.Namespace, Name: ref.Name}, template)
	if err != nil || template.UID != ref.UID {
		return nil, client.IgnoreNotFound(err)
	}
	return template, nil
}

func contentOf(template *v1beta2.ModuleTemplate) (wanted *content, err error) {
	wanted = &content{}
	wanted.objects, err = decode(template.Spec.Resources)
	if err != nil || template.Spec.Data == nil {
		return wanted, err
	}

	wanted.data, err = decode([]v1beta2.Resource{*template.Spec.Data})
	if template.Spec.CustomResourcePolicy == v1beta2.Ignore {
		wanted.ignored = wanted.data
		wanted.data = nil
	}
	return wanted, err
}

func decode(resources []v1beta2.Resource) ([]*unstructured.Unstructured, error) {
	objects := make([]*unstructured.Unstructured, len(resources))
	for i, resource := range resources {
		objects[i] = &unstructured.Unstructured{}
		if err := json.Unmarshal(resource.Raw, objects[i]); err != nil {
			return nil, fmt.Errorf("resource %d: %w", i, err)
		}
	}
	return objects, nil
}

// inventoryOf is the inverse of objectsOf.
func inventoryOf(objects []*unstructured.Unstructured) (inventory []v1beta2.Object) {
	for _, object := range objects {
		gvk := object.GroupVersionKind()
		inventory = append(inventory, v1beta2.Object{
			Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind,
			Namespace: object.GetNamespace(), Name: object.GetName(),
		})
	}
	return inventory
}

// objectsOf returns objects with the identity of their entries and no other content.
func objectsOf(inventory []v1beta2.Object) (objects []*unstructured.Unstructured) {
	for _, entry := range inventory {
		object := &unstructured.Unstructured{}
		gvk := schema.GroupVersionKind{Group: entry.Group, Version: entry.Version, Kind: entry.Kind}
		object.SetGroupVersionKind(gvk)
		object.SetNamespace(entry.Namespace)
		object.SetName(entry.Name)
		objects = append(objects, object)
	}
	return objects
}

// without returns the entries of inventory that are not in others. The version of a kind does not
// matter.
func without(inventory, others []v1beta2.Object) []v1beta2.Object {
	return slices.DeleteFunc(slices.Clone(inventory), func(entry v1beta2.Object) bool {
		return slices.ContainsFunc(others, func(other v1beta2.Object) bool {
			other.Version = entry.Version
			return other == entry
		})
	})
}

// Affected returns a function that requests the Manifests of the runtime that sent an event. An
// event about an object requests only the Manifest that has the object, and a resync all of them.
func Affected(manifests client.Reader, known *controllerruntime.Runtimes) controllerruntime.MapFunc[ctrl.Request] {
	return func(ctx context.Context, d core.Delivery) (requests []ctrl.Request, err error) {
		kymas, err := known.Objects(ctx, d.Runtime)
		if err != nil {
			return nil, err
		}

		for _, kyma := range kymas {
			all, err := v1beta2.ManifestsOf(ctx, manifests, kyma)
			if err != nil {
				return nil, err
			}

			for i := range all {
				if d.Event.Resync || slices.ContainsFunc(all[i].Status.Inventory, is(&d.Event)) {
					requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&all[i])})
				}
			}
		}
		return requests, nil
	}
}

// is returns a function that reports whether an entry is the object of an event.
func is(event *core.WatchEvent) func(v1beta2.Object) bool {
	return func(o v1beta2.Object) bool {
		return o.Group == event.WatchedGVK.Group && o.Kind == event.WatchedGVK.Kind &&
			o.Namespace == event.Watched.Namespace && o.Name == event.Watched.Name
	}
}
