package v1beta2

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State is the progress of the operator.
//
// +kubebuilder:validation:Enum=Processing;Ready;Error;Deleting
type State string

// The states of Kymas, modules and Manifests.
const (
	// Processing means that a step is awaited.
	Processing State = "Processing"
	// Ready means that the runtime has everything, and that it is ready there.
	Ready State = "Ready"
	// Error means that the message names a problem. It is retried.
	Error State = "Error"
	// Deleting means that the removal is awaited.
	Deleting State = "Deleting"
)

// ReadyCondition is the condition of Kymas and Manifests that sums up their status, as kubectl wait
// and kstatus read it.
const ReadyCondition = "Ready"

// SetReady sets [ReadyCondition] in a new list of conditions: true in the state Ready.
func SetReady(conditions []metav1.Condition, state State, message string, generation int64) []metav1.Condition {
	ready := metav1.Condition{
		Type: ReadyCondition, Status: metav1.ConditionFalse, Reason: string(state), Message: message,
		ObservedGeneration: generation,
	}
	if state == Ready {
		ready.Status = metav1.ConditionTrue
	}
	conditions = append([]metav1.Condition(nil), conditions...)
	meta.SetStatusCondition(&conditions, ready)
	return conditions
}
