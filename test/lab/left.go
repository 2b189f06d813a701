package lab

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Left returns all objects of a cluster, of any kind but Event, that the condition holds for.
func Left(t testing.TB, plane *apiserver.ControlPlane, condition func(*metav1.PartialObjectMetadata) bool) (left []string) {
	t.Helper()
	asked, err := discovery.NewDiscoveryClientForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := asked.ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	kinds := 0
	for _, list := range lists {
		for _, resource := range list.APIResources {
			// API servers write Events about a Service that goes.
			if !slices.Contains(resource.Verbs, "list") || resource.Kind == "Event" {
				continue
			}
			kinds++
			found := &metav1.PartialObjectMetadataList{}
			found.SetGroupVersionKind(schema.FromAPIVersionAndKind(list.GroupVersion, resource.Kind+"List"))
			if err := plane.Client.List(t.Context(), found); err != nil {
				t.Fatal(err)
			}
			for i := range found.Items {
				if item := &found.Items[i]; condition(item) {
					left = append(left, fmt.Sprintf("%s %s/%s", resource.Kind, item.Namespace, item.Name))
				}
			}
		}
	}
	if kinds < 20 {
		t.Errorf("only %d kinds were read", kinds)
	}
	return left
}
