package lab

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Inventory returns all objects of the runtime, of any kind that it lists, except Events.
func (r *Runtime) Inventory(ctx context.Context) (objects []string, err error) {
	kinds, err := discovery.NewDiscoveryClientForConfig(r.plane.Config)
	if err != nil {
		return nil, err
	}
	groups, err := kinds.ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		for _, resource := range group.APIResources {
			if !slices.Contains(resource.Verbs, "list") || resource.Kind == "Event" {
				continue
			}
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(schema.FromAPIVersionAndKind(group.GroupVersion, resource.Kind+"List"))
			if err := client.IgnoreNotFound(r.List(ctx, list)); err != nil {
				return nil, err
			}
			for i := range list.Items {
				objects = append(objects, resource.Kind+" "+client.ObjectKeyFromObject(&list.Items[i]).String())
			}
		}
	}
	slices.Sort(objects)
	return objects, nil
}
