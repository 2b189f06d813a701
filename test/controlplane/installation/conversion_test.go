package installation

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// The conversion webhook of a custom resource is away. Writes in the stored version need none, and
// a Watcher of another version must not stop them.
func TestABrokenConversionStopsNoWrite(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	version := func(name string, stored bool) map[string]any {
		return map[string]any{"name": name, "served": true, "storage": stored, "schema": map[string]any{
			"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
		}}
	}
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "things.conversion.example.com"},
		"spec": map[string]any{
			"group": "conversion.example.com", "scope": "Namespaced",
			"names":    map[string]any{"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
			"versions": []any{version("v1", true), version("v1beta1", false)},
			"conversion": map[string]any{"strategy": "Webhook", "webhook": map[string]any{
				"conversionReviewVersions": []any{"v1"},
				"clientConfig":             map[string]any{"url": "https://127.0.0.1:1/convert"},
			}},
		},
	}}
	rig.NoError(t, plane.Client.Create(t.Context(), definition))
	write := func() error {
		thing := &unstructured.Unstructured{}
		thing.SetGroupVersionKind(schema.GroupVersionKind{Group: "conversion.example.com", Version: "v1", Kind: "Thing"})
		thing.SetNamespace("default")
		thing.SetGenerateName("thing-")
		return plane.Client.Create(t.Context(), thing)
	}
	rig.Eventually(t, patience, "things are served", func() bool { return write() == nil })
	watched := watchFor("conversion")
	watched.Resource = schema.GroupVersionResource{Group: "conversion.example.com", Version: "v1beta1", Resource: "things"}
	configuration := rig.Must(admission.WebhookConfiguration("conversion", admission.Endpoint{
		URL: "https://127.0.0.1:1", CABundle: testpki.Bundle(rig.NewPKI(t).CA),
	}, []watch.Watch{watched}, admission.ConfigurationOptions{}))
	rig.NoError(t, plane.Client.Create(t.Context(), configuration))
	rig.Eventually(t, patience, "the webhook is called, and away", func() bool {
		rig.NoError(t, write())
		return rig.Sum(rig.ScrapeAPIServer(t, plane), "apiserver_admission_webhook_fail_open_count", `name="default.conversion.`) > 0
	})
}
