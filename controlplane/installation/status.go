package installation

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/installations"
)

// State is the progress of an installation.
type State = installations.Progress

const (
	// Progressing means that the installation waits for a step.
	Progressing State = "Progressing"
	// Ready means that every replica belongs to the newest Deployment, at least one replica
	// answers, and the API server calls the agent. With [Options].Informer, at least one replica
	// watches.
	Ready State = "Ready"
	// Failed means that something must be changed. The installation is still retried.
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
	// Notice is a sentence about harmless additions to the webhooks and their field manager,
	// usually the platform. It may be set together with Ready. Default: none.
	Notice string
	// Available is the number of replicas that answer, and Replicas the number in the Deployment.
	Available, Replicas int32
	// Former are the managers that this call of Install has removed because no watch names them any
	// longer. A call after an error may report them again.
	Former []core.Manager
}

// Reason says why an installation has its state, in CamelCase for a condition. Package runtimes has
// further reasons.
type Reason = installations.Reason

const (
	// ReasonFormerNeeded means that the agent of the former installer stays until the new agent is
	// proved to work.
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
	// ReasonWebhooksContested means that another program keeps undoing changes to the webhooks.
	ReasonWebhooksContested Reason = "WebhooksContested"
)

func progressing(reason Reason, message string) Status {
	return Status{State: Progressing, Reason: reason, Message: message}
}

// withFailure keeps the numbers of a status, and changes the rest.
func (s Status) withFailure(reason Reason, message string) Status {
	s.State = Failed
	s.Reason = reason
	s.Message = message
	return s
}

// awaitingEndOf returns the status Removed without objects.
func awaitingEndOf(held []*unstructured.Unstructured) Status {
	if len(held) == 0 {
		return Status{State: Removed}
	}

	names := make([]string, len(held))
	for n, object := range held {
		names[n] = object.GetKind() + " " + object.GetName()
	}
	return progressing(ReasonObjectsEnding, "waiting for the end of "+strings.Join(names, ", "))
}
