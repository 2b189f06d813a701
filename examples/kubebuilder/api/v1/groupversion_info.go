// Package v1 contains the kinds of the operator, in its own API group.
//
// +kubebuilder:object:generate=true
// +groupName=fleet.example.com
package v1

//go:generate controller-gen object paths=.

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion returns the group and version of the kinds.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "fleet.example.com", Version: "v1"}
}

// AddToScheme adds the kinds to a scheme. It never fails.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &Cluster{}, &ClusterList{}, &Addon{}, &AddonList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
