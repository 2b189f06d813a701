// Package v1beta2 is the custom resource Watcher of operator.kyma-project.io/v1beta2. The reference
// for its users is docs/reference/watcher.md.
//
// The package depends on k8s.io/apimachinery only and registers nothing by itself: see
// [AddToScheme].
//
// +kubebuilder:object:generate=true
// +groupName=operator.kyma-project.io
package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion returns the group and version of this package's types.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "operator.kyma-project.io", Version: "v1beta2"}
}

// AddToScheme adds [Watcher] and [WatcherList] to a scheme. It never fails.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &Watcher{}, &WatcherList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
