package installation

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

const brokenConversion = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.conversion.example.com}
spec:
  group: conversion.example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  versions:
  - {name: v1, served: true, storage: true, schema: &any {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v1beta1, served: true, storage: false, schema: *any}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:1/convert"}}
`

// The conversion webhook of a custom resource is away. Writes in the stored version need none, and
// a Watcher of another version must not stop them.
func TestABrokenConversionStopsNoWrite(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	rig.NoError(t, plane.Client.Create(t.Context(), manifests.Object(t, brokenConversion)))
	write := func() error {
		thing := manifests.Object(t, "{apiVersion: conversion.example.com/v1, kind: Thing, metadata: {generateName: thing-}}")
		thing.SetNamespace("default")
		return plane.Client.Create(t.Context(), thing)
	}
	rig.Eventually(t, rig.Patience, "things are served", func() bool { return write() == nil })
	watched := watchFor("conversion")
	watched.Resource = schema.GroupVersionResource{Group: "conversion.example.com", Version: "v1beta1", Resource: "things"}
	configuration := rig.Must(admission.WebhookConfiguration("conversion", admission.Endpoint{
		URL: "https://127.0.0.1:1", CABundle: testpki.Bundle(rig.NewPKI(t).CA),
	}, []watch.Watch{watched}, admission.ConfigurationOptions{}))
	rig.NoError(t, plane.Client.Create(t.Context(), configuration))
	rig.Eventually(t, rig.Patience, "the webhook is called, and away", func() bool {
		rig.NoError(t, write())
		return rig.Sum(rig.ScrapeAPIServer(t, plane), "apiserver_admission_webhook_fail_open_count", `name="default.conversion.`) > 0
	})
}
