package installation

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/installations"
)

// State is the progress of an installation.
type State = installations.Progress

const (
	// Progressing means that a step is awaited.
	Progressing State = "Progressing"
	// Ready means that every replica is of the newest Deployment, at least one answers, and the
	// API server calls it. With [Options.Informer], at least one watches.
	Ready State = "Ready"
	// Failed means that the installation needs a change. It is still retried.
	Failed State = "Failed"
	// Removed means that nothing is left.
	Removed State = "Removed"
)

// Status is the progress of an installation.
type Status struct {
	State State
	// Reason is for a condition, and Message is a sentence. Both are empty if the state is Ready or
	// Removed.
	Reason  Reason
	Message string
	// Notice is a sentence about harmless additions of others to the webhooks, and which field
	// manager has done so, most often the platform. It may be set beside Ready. Default: none.
	Notice string
	// Available is the number of replicas that answer, Replicas the number in the Deployment.
	Available, Replicas int32
	// Former are the managers that this call of Install has removed and that no watch names now.
	// A call after an error may report them once more.
	Former []core.Manager
}

// Reason is why an installation has its state, in CamelCase for a condition. Package runtimes has
// further reasons.
type Reason = installations.Reason

const (
	// ReasonFormerNeeded means that the agent of the former installer stays until ours is proved.
	ReasonFormerNeeded Reason = "FormerNeeded"
	// ReasonNamespaceEnding means that the namespace of the agent is being deleted.
	ReasonNamespaceEnding Reason = "NamespaceEnding"
	// ReasonObjectsEnding means that objects of the agent are being deleted.
	ReasonObjectsEnding Reason = "ObjectsEnding"
	// ReasonRolloutProgressing means that the Deployment is not complete yet.
	ReasonRolloutProgressing Reason = "RolloutProgressing"
	// ReasonRolloutStalled means that the Deployment makes no progress.
	ReasonRolloutStalled Reason = "RolloutStalled"
	// ReasonServiceWithoutPods means that the Service of the agent has no endpoint yet.
	ReasonServiceWithoutPods Reason = "ServiceWithoutPods"
	// ReasonWebhooksContested means that another program undoes changes of the webhooks.
	ReasonWebhooksContested Reason = "WebhooksContested"
)

func progressing(reason Reason, message string) Status {
	return Status{State: Progressing, Reason: reason, Message: message}
}

// agents are the Deployment, nil if there is none, and the EndpointSlices of the Service. An
// informer needs no endpoint, so that its slices are not read.
type agents struct {
	deployment *unstructured.Unstructured
	slices     *unstructured.UnstructuredList
}

// judge needs a complete rollout, and an endpoint unless the agents watch.
func (v *visit) judge(live agents) (Status, error) {
	if live.deployment == nil { // It was deleted a moment ago.
		return progressing(ReasonRolloutProgressing, "waiting for the Deployment"), nil
	}
	var deployment appsv1.Deployment
	if err := v.decode(live.deployment, &deployment); err != nil {
		return Status{}, err
	}
	status := rollout(&deployment)
	if status.State != Ready || v.opts.Informer {
		return status, nil
	}
	reached, err := v.reached(live.slices)
	if err == nil && !reached {
		status.State, status.Reason = Progressing, ReasonServiceWithoutPods
		status.Message = "waiting for an endpoint of Service " + v.opts.Name
	}
	return status, err
}

// rollout is that of kubectl, except that one available replica is enough if all are updated.
func rollout(d *appsv1.Deployment) Status {
	s := Status{State: Progressing, Reason: ReasonRolloutProgressing, Available: d.Status.AvailableReplicas, Replicas: 1}
	if d.Spec.Replicas != nil {
		s.Replicas = *d.Spec.Replicas
	}
	switch current := d.Status.ObservedGeneration >= d.Generation; {
	case current && s.Available > 0 && d.Status.UpdatedReplicas >= s.Replicas && d.Status.Replicas <= d.Status.UpdatedReplicas:
		s.State, s.Reason = Ready, ""
	case current && stalled(d) != "":
		s.State, s.Reason, s.Message = Failed, ReasonRolloutStalled, stalled(d)
	default:
		s.Message = fmt.Sprintf("waiting for the rollout: of %d replicas, %d are updated and %d available; %d are former ones",
			s.Replicas, d.Status.UpdatedReplicas, s.Available, d.Status.Replicas-d.Status.UpdatedReplicas)
	}
	return s
}

// formerServe reports whether replicas of a former template answer, and the rollout may never end,
// as in a runtime without room for one more pod. They read a new list of managers while they run.
func (s Status) formerServe() bool { return s.Reason == ReasonRolloutStalled && s.Available > 0 }

func stalled(d *appsv1.Deployment) string {
	for _, condition := range d.Status.Conditions {
		if condition.Type == appsv1.DeploymentProgressing && condition.Status == corev1.ConditionFalse {
			return fmt.Sprintf("the rollout makes no progress: %s: %s", condition.Reason, condition.Message)
		}
	}
	return ""
}

func (v *visit) slicesInto(ctx context.Context, into **unstructured.UnstructuredList) func() error {
	return func() error {
		if v.opts.Informer {
			return nil
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSliceList"))
		ofService := client.MatchingLabels{discoveryv1.LabelServiceName: v.opts.Name}
		err := v.List(ctx, list, client.InNamespace(v.opts.Namespace), ofService)
		*into = list
		return v.wrap(err, "list the EndpointSlices of Service", v.opts.Name)
	}
}

func (c *cluster) reached(list *unstructured.UnstructuredList) (bool, error) {
	for n := range list.Items {
		var slice discoveryv1.EndpointSlice
		err := c.decode(&list.Items[n], &slice)
		ready := slices.ContainsFunc(slice.Endpoints, func(endpoint discoveryv1.Endpoint) bool {
			return endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready // Nil means ready.
		})
		if ready || err != nil {
			return ready, err
		}
	}
	return false, nil
}
