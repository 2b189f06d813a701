package migration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// leftIn returns all objects of a cluster, of whichever kind, with one of the prefixes.
func leftIn(t *testing.T, c client.Client, plane *apiserver.ControlPlane, prefixes []string) (left []string) {
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
			if !slices.Contains(resource.Verbs, "list") || resource.Kind == "Event" {
				continue
			}

			kinds++
			found := &metav1.PartialObjectMetadataList{}
			found.SetGroupVersionKind(schema.FromAPIVersionAndKind(list.GroupVersion, resource.Kind+"List"))

			if err := c.List(t.Context(), found); err != nil {
				t.Fatal(err)
			}

			for _, item := range found.Items {
				if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(item.Name, p) }) {
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

func toMap(object any) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(object)
}
