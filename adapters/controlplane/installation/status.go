package installation

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// State is how far an installation is.
type State string

// The states of an installation.
const (
	// Progressing means that something is awaited.
	Progressing State = "Progressing"
	// Ready means that the agent answers, and that the API server calls it.
	Ready State = "Ready"
	// Removed means that nothing is left.
	Removed State = "Removed"
)

// Status is how far an installation is, and what it waits for.
type Status struct {
	State State
	// Awaiting says what is awaited while the state is Progressing.
	Awaiting string
	// Available is how many replicas of the agent answer, Replicas how many are wanted.
	Available, Replicas int32
	// Former are the managers of the webhooks that this call of Install has removed and that no watch names now. It is said once.
	Former []core.Manager
}

// answers reports whether the agent does: at least one replica is ready, and the Service leads there.
func (i *Installer) answers(ctx context.Context, in *cluster) (Status, error) {
	status := Status{State: Progressing, Replicas: i.opts.Replicas}

	live, err := in.get(ctx, i.object("deployment.yaml"))
	if err != nil {
		return Status{}, err
	}

	var deployment appsv1.Deployment

	if live == nil { // Somebody was faster.
		status.Awaiting = "the Deployment"

		return status, nil
	}

	if err := in.decode(live, &deployment); err != nil {
		return Status{}, err
	}

	observed := deployment.Status.ObservedGeneration >= deployment.Generation
	status.Available = deployment.Status.AvailableReplicas

	switch reached, err := i.reached(ctx, in); {
	case err != nil:
		return Status{}, err
	case !observed:
		status.Awaiting = "the Deployment to be observed by its controller"
	case status.Available == 0:
		status.Awaiting = fmt.Sprintf("a replica of the agent: none of %d is available", status.Replicas)
	case !reached:
		status.Awaiting = "the Service to lead to a replica of the agent"
	default:
		status.State = Ready
	}

	return status, nil
}

// reached reports whether the Service has an endpoint.
func (i *Installer) reached(ctx context.Context, in *cluster) (bool, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSliceList"))

	err := in.List(ctx, list, client.InNamespace(i.opts.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: Name})
	if err != nil {
		return false, in.wrap(err, "list the EndpointSlices of Service", Name)
	}

	for n := range list.Items {
		var slice discoveryv1.EndpointSlice
		if err := in.decode(&list.Items[n], &slice); err != nil {
			return false, err
		}

		for _, endpoint := range slice.Endpoints {
			// Nil is to be taken for true (discovery.k8s.io/v1).
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				return true, nil
			}
		}
	}

	return false, nil
}
