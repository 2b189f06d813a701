package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AddonSpec is the desired state in a remote cluster.
type AddonSpec struct {
	// Cluster is the name of the Cluster, in the same namespace.
	Cluster string `json:"cluster"`
}

// Addon is something that the operator keeps in a remote cluster.
//
// +kubebuilder:object:root=true
type Addon struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec AddonSpec `json:"spec"`
}

// AddonList is a list of add-ons.
//
// +kubebuilder:object:root=true
type AddonList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []Addon `json:"items"`
}
