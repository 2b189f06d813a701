package v1beta2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WatcherStatus is how far the control plane got with a Watcher.
type WatcherStatus struct {
	// The whole in one word.
	//
	// +optional
	State State `json:"state,omitempty"`

	// What is done, what is not, and why.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// The generation that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// State is the status of a [Watcher] in one word.
//
// +kubebuilder:validation:Enum=Processing;Deleting;Ready;Error;Warning;Unmanaged;""
type State string

// The states that this module writes. Deleting, Warning and Unmanaged are accepted, as other controllers may have
// stored them.
const (
	StateProcessing State = "Processing"
	StateReady      State = "Ready"
	StateError      State = "Error"
)

// ConditionRouteReady is the type of the condition that reports whether events reach the service.
const ConditionRouteReady = "RouteReady"
