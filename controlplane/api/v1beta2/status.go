package v1beta2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WatcherStatus is the status of a Watcher in the control plane.
type WatcherStatus struct {
	// The summary in one word.
	//
	// +kubebuilder:validation:Enum=Processing;Deleting;Ready;Error;Warning;Unmanaged;""
	// +optional
	State string `json:"state,omitempty"`

	// The conditions, with reasons.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// The generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}
