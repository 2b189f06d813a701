package lab

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Widgets is the resource that the writers change. It has a spec and a status.
func Widgets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "chaos.example.com", Version: "v1", Resource: "widgets"}
}

// WidgetKind is the kind of [Widgets].
func WidgetKind() schema.GroupVersionKind { return Widgets().GroupVersion().WithKind("Widget") }

// WidgetCRD defines [Widgets].
func WidgetCRD() *apiextensionsv1.CustomResourceDefinition {
	return Definition(Widgets().Group, Widgets().Resource, WidgetKind().Kind)
}

// Definition returns the definition of a namespaced custom resource of version v1 with a status and
// any fields.
func Definition(group, plural, kind string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
				},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: new(true),
				}},
			}},
		},
	}
}

// MetadataOf returns an empty object of a kind, for a watch of metadata.
func MetadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}

// Widget returns a widget with n in its spec.
func Widget(namespace, name string, labels map[string]string, n int64) *unstructured.Unstructured {
	w := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"n": n}}}
	w.SetGroupVersionKind(WidgetKind())
	w.SetNamespace(namespace)
	w.SetName(name)
	w.SetLabels(labels)

	return w
}
