// Package v1beta2 contains the kinds of this example in operator.kyma-project.io/v1beta2: Kyma,
// ModuleTemplate and Manifest. They are the kinds of the Kyma lifecycle-manager, reduced to the
// fields that the example needs.
//
// +kubebuilder:object:generate=true
// +groupName=operator.kyma-project.io
package v1beta2

//go:generate controller-gen object crd:crdVersions=v1 paths=. output:crd:dir=../../config/crd
