// Package v1beta1 is the former version of the custom resource Watcher, as far as its definition
// needs it. A cluster that has ever stored this version accepts no definition without it.
//
// +kubebuilder:object:generate=false
// +groupName=operator.kyma-project.io
package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Watcher is not served. The API server reads a stored object as v1beta2, where the fields have the
// same names.
//
// +kubebuilder:unservedversion
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:resource:path=watchers,singular=watcher
type Watcher struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}
