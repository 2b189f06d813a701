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
)

// deploymentName is the object in the runtime that is written to.
const deploymentName = "demo"

// watched is the label of the objects in the runtime that the operator cares for.
func watched() map[string]string { return map[string]string{"watched": "true"} }

// watch tells the API server of the runtime to ask the agent about Deployments with the label, and returns when it does.
func (s *scene) watch(ctx context.Context) (string, error) {
	configuration, err := admission.WebhookConfiguration("runtime-watcher",
		admission.Endpoint{URL: "https://" + s.agent.webhook(), CABundle: s.pki.ca.PEM()},
		[]admission.Watch{{
			Name:     types.NamespacedName{Namespace: namespace, Name: component},
			Manager:  component,
			Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
			Labels:   watched(),
		}}, admission.ConfigurationOptions{})
	if err != nil {
		return "", err
	}

	if err := s.runtime.Client.Create(ctx, configuration); err != nil {
		return "", err
	}

	return "in the runtime: asks the agent about Deployments with the label watched=true", s.awaitReviews(ctx)
}

// awaitReviews makes dry-run writes, of which nothing becomes, until the agent is asked: the configuration takes effect after about a second.
func (s *scene) awaitReviews(ctx context.Context) error {
	const often = 200 * time.Millisecond

	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	for {
		if err := s.runtime.Client.Create(ctx, newDeployment(1), client.DryRunAll); err != nil {
			return fmt.Errorf("a dry run, to see whether the API server asks the agent: %w", err)
		}

		waiting, cancel := context.WithTimeout(ctx, often)
		err := s.diary.await(waiting, "a decision of the agent", func() bool { return len(s.diary.decisions) > 0 })

		cancel()

		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// newDeployment returns the object that is written to. No controller runs in this runtime, so no pod starts.
func newDeployment(replicas int32) *appsv1.Deployment {
	labels := watched()

	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: deploymentName, Labels: labels,
			// Only contract v1 needs it: the others take the name of the runtime from its certificate.
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

// look is what the operator does in a runtime. It returns what it saw.
func look(ctx context.Context, cluster client.Reader) (string, error) {
	var deployment appsv1.Deployment

	err := cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: deploymentName}, &deployment)

	switch {
	case apierrors.IsNotFound(err):
		return "no Deployment", nil
	case err != nil:
		return "", err
	default:
		return sight(*deployment.Spec.Replicas, deployment.Spec.Template.Spec.Containers[0].Image), nil
	}
}

// sight says what there is to see of a Deployment.
func sight(replicas int32, image string) string {
	return fmt.Sprintf("replicas %d, image %s", replicas, image)
}
