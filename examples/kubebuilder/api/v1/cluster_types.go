package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterSpec describes a remote cluster.
type ClusterSpec struct {
	// ID identifies the cluster. It is the Common Name of the certificate of its agent.
	ID string `json:"id"`
	// Domain is in the certificate of its agent, too.
	Domain string `json:"domain"`
}

// Cluster represents a remote cluster.
//
// +kubebuilder:object:root=true
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec ClusterSpec `json:"spec"`
}

// ClusterList is a list of clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []Cluster `json:"items"`
}
