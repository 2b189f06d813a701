// Package v1beta2 is the custom resource Watcher of operator.kyma-project.io/v1beta2: what to watch in every runtime, and
// which service of the control plane gets the events. The reference for its users is docs/watcher.md.
//
// It depends on nothing but k8s.io/apimachinery, and registers nothing by itself: see [AddToScheme].
//
// +kubebuilder:object:generate=true
// +groupName=operator.kyma-project.io
package v1beta2
