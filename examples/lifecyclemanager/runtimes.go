package main

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
)

// newKyma returns an object of the kind that represents a runtime. Watching needs only its
// metadata.
func newKyma() *metav1.PartialObjectMetadata {
	kyma := &metav1.PartialObjectMetadata{}
	kyma.SetGroupVersionKind(v1beta2.GroupVersion().WithKind("Kyma"))
	return kyma
}

// identify returns the runtime that a Kyma represents.
func identify(_ context.Context, kyma client.Object) (runtimes.Identity, error) {
	domain := kyma.GetAnnotations()[controllerruntime.DomainAnnotation]
	return runtimes.Identity{ID: controllerruntime.ByName(kyma), Domain: domain}, nil
}
