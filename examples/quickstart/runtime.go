package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

// namespace contains all objects, in both clusters.
const namespace = metav1.NamespaceDefault

// deploymentName is the name of the written object in the runtime.
const deploymentName = "demo"

// watched returns the label of watched objects in the runtime.
func watched() map[string]string { return map[string]string{"watched": "true"} }

// registerWebhook registers the webhook for Deployments with the label, and returns when it is in
// effect.
func (r *remote) registerWebhook() string {
	configuration, err := admission.WebhookConfiguration("runtime-watcher",
		admission.Endpoint{URL: "https://" + lab.Address(r.agent.WebhookPort), CABundle: r.pki.CA.PEM},
		[]watch.Watch{{
			Name:     types.NamespacedName{Namespace: namespace, Name: component},
			Manager:  component,
			Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
			Selector: watch.Selector{Labels: watched()},
		}}, admission.ConfigurationOptions{
			// So that the agent decides about every write. By default the API server skips most
			// that do not matter.
			NoMatchConditions: true, Canary: r.canary.Lease, Timeout: 10 * time.Second,
		})
	lab.NoError(r, err)
	r.writeManifest(r.withPrefix("webhook.yaml"), configuration)
	lab.NoError(r, r.cluster.Client.Create(r.Context(), configuration))
	r.awaitReviews()
	return "in the runtime: the agent reviews Deployments with the label watched=true"
}

// awaitReviews makes dry-run writes until the agent gets a review: a webhook configuration takes
// effect after about a second.
func (r *remote) awaitReviews() {
	before := r.journal.now()
	r.await("a decision of the agent", func() bool {
		lab.NoError(r, r.cluster.Client.Create(r.Context(), newDeployment(1), client.DryRunAll))
		return len(r.journal.since(before, agentDecides)) > 0
	})
}

// newDeployment returns the written object. No controller runs in this runtime, so no pod starts.
func newDeployment(replicas int32) *appsv1.Deployment {
	labels := watched()
	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: deploymentName, Labels: labels,
			// For contract v1 only: the others take the name of the runtime from its certificate.
			Annotations: map[string]string{core.OwnerAnnotation: namespace + "/" + runtimeName},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:v1"}}},
			},
		},
	}
}

// look reads the state of a runtime, for the operator.
func look(ctx context.Context, cluster client.Reader) (string, error) {
	var deployment appsv1.Deployment
	err := cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: deploymentName}, &deployment)
	switch {
	case apierrors.IsNotFound(err):
		return "no Deployment", nil
	case err != nil:
		return "", err
	default:
		return describe(*deployment.Spec.Replicas, deployment.Spec.Template.Spec.Containers[0].Image), nil
	}
}

// describe returns the state of a Deployment in words.
func describe(replicas int32, image string) string {
	return fmt.Sprintf("replicas %d, image %s", replicas, image)
}
