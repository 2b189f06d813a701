package v1beta2

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
