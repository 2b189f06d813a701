package installation

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// agents are the Deployment, nil if there is none, and the EndpointSlices of the Service. An
// informer needs no endpoint, so that its slices are not read.
type agents struct {
	deployment *unstructured.Unstructured
	slices     *unstructured.UnstructuredList
}

// listingSlices returns a task that lists the EndpointSlices of a Service. The task does nothing
// for agents without a Service.
func (c *cluster) listingSlices(
	ctx context.Context, service types.NamespacedName, into **unstructured.UnstructuredList,
) func() error {
	return func() error {
		if service.Name == "" {
			return nil
		}

		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSliceList"))
		ofService := client.MatchingLabels{discoveryv1.LabelServiceName: service.Name}
		if err := c.List(ctx, list, client.InNamespace(service.Namespace), ofService); err != nil {
			return c.wrapRequest(err, "list the EndpointSlices of Service", service.Name)
		}
		*into = list
		return nil
	}
}

// judgeAgents returns Ready for a complete rollout, and an endpoint if the agents have a Service.
// With an error, the status is empty. The steps of Install and of Unchanged call it.
func (c *cluster) judgeAgents(live agents, service types.NamespacedName) (Status, error) {
	if live.deployment == nil { // It was deleted a moment ago.
		return progressing(ReasonRolloutProgressing, "waiting for the Deployment"), nil
	}

	var deployment appsv1.Deployment
	if err := c.decodeInto(live.deployment, &deployment); err != nil {
		return Status{}, err
	}
	status := rollout(&deployment)
	if status.State != Ready || service.Name == "" {
		return status, nil
	}

	hasEndpoint, err := c.hasEndpoint(live.slices)
	if err != nil {
		return Status{}, err
	}
	if !hasEndpoint {
		status.State = Progressing
		status.Reason = ReasonServiceWithoutPods
		status.Message = "waiting for an endpoint of Service " + service.Name
	}
	return status, nil
}

// rollout judges a Deployment like kubectl rollout status, except that one available replica is
// enough if all replicas are updated.
func rollout(d *appsv1.Deployment) Status {
	s := Status{Available: d.Status.AvailableReplicas, Replicas: 1}
	if d.Spec.Replicas != nil {
		s.Replicas = *d.Spec.Replicas
	}

	former := d.Status.Replicas - d.Status.UpdatedReplicas
	isCurrent := d.Status.ObservedGeneration >= d.Generation
	isComplete := d.Status.UpdatedReplicas >= s.Replicas && former <= 0
	if isCurrent && isComplete && s.Available > 0 {
		s.State = Ready
		return s
	}

	if problem := stalled(d); isCurrent && problem != "" {
		return s.withFailure(ReasonRolloutStalled, problem)
	}

	s.State = Progressing
	s.Reason = ReasonRolloutProgressing
	s.Message = fmt.Sprintf(
		"waiting for the rollout: of %d replicas, %d are updated and %d available; %d are former ones",
		s.Replicas, d.Status.UpdatedReplicas, s.Available, former)
	return s
}

// formerServe reports whether replicas of a former template answer, and the rollout may never end,
// as in a runtime without room for one more pod. They read a new list of managers while they run.
func (s Status) formerServe() bool { return s.Reason == ReasonRolloutStalled && s.Available > 0 }

// stalled returns why a rollout makes no progress, "" if it does.
func stalled(d *appsv1.Deployment) string {
	for _, condition := range d.Status.Conditions {
		if condition.Type == appsv1.DeploymentProgressing && condition.Status == corev1.ConditionFalse {
			return fmt.Sprintf("the rollout makes no progress: %s: %s", condition.Reason, condition.Message)
		}
	}
	return ""
}

// hasEndpoint reports whether one of the slices has an endpoint that answers.
func (c *cluster) hasEndpoint(list *unstructured.UnstructuredList) (bool, error) {
	for n := range list.Items {
		var slice discoveryv1.EndpointSlice
		if err := c.decodeInto(&list.Items[n], &slice); err != nil {
			return false, err
		}

		if slices.ContainsFunc(slice.Endpoints, isReady) {
			return true, nil
		}
	}
	return false, nil
}

// isReady is true without a condition, as the API of EndpointSlices demands.
func isReady(endpoint discoveryv1.Endpoint) bool {
	return endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
}
