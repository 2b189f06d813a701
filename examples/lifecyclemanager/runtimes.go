package main

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/runtimes"
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

// condition reports the installation of the agent.
type condition struct{ client.Client }

// report writes the condition of a Kyma if it has changed.
func (c condition) report(ctx context.Context, object client.Object, installed installation.Status) error {
	kyma := &v1beta2.Kyma{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), kyma); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := kyma.DeepCopy()
	if !meta.SetStatusCondition(&kyma.Status.Conditions, conditionOf(installed)) {
		return nil
	}
	return client.IgnoreNotFound(c.Status().Patch(ctx, kyma, client.MergeFrom(before)))
}

func conditionOf(installed installation.Status) metav1.Condition {
	made := metav1.Condition{
		Type: v1beta2.WatcherInstalled, Status: metav1.ConditionFalse,
		Reason: installed.Reason, Message: installed.Message,
	}
	if installed.State == installation.Ready {
		made.Status = metav1.ConditionTrue
	}
	if installed.Reason == "" { // Ready and Removed have none.
		made.Reason = string(installed.State)
	}
	return made
}
