package apiserver

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects calls each for all objects of any kind that is listed, except Events: API servers write those about a Service
// that goes.
func (c *ControlPlane) Objects(ctx context.Context, each func(kind string, object *metav1.PartialObjectMetadata)) error {
	asked, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		return err
	}
	groups, err := asked.ServerPreferredResources()
	if err != nil {
		return err
	}
	kinds := 0
	for _, group := range groups {
		for _, resource := range group.APIResources {
			if !slices.Contains(resource.Verbs, "list") || resource.Kind == "Event" {
				continue
			}
			kinds++
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(schema.FromAPIVersionAndKind(group.GroupVersion, resource.Kind+"List"))
			if err := client.IgnoreNotFound(c.Client.List(ctx, list)); err != nil { // A definition may go.
				return err
			}
			for i := range list.Items {
				each(resource.Kind, &list.Items[i])
			}
		}
	}
	if kinds < 20 {
		return fmt.Errorf("only %d kinds were read", kinds)
	}
	return nil
}
