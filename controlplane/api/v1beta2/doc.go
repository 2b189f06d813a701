// Package v1beta2 is the custom resource Watcher of operator.kyma-project.io/v1beta2. The reference
// for its users is docs/reference/watcher.md.
//
// The package depends on k8s.io/apimachinery only and registers nothing by itself: see
// [AddToScheme].
//
// +kubebuilder:object:generate=true
// +groupName=operator.kyma-project.io
package v1beta2
