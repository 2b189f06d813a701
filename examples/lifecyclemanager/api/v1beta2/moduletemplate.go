package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Labels that hide a ModuleTemplate, with the value "true". Only Kymas with the same label see it.
const (
	InternalLabel = "operator.kyma-project.io/internal"
	BetaLabel     = "operator.kyma-project.io/beta"
)

// TemplateFinalizer holds a ModuleTemplate for as long as a Manifest uses it.
const TemplateFinalizer = "operator.kyma-project.io/module-template"

// ModuleTemplate is one version of a module. All ModuleTemplates of the control plane are the
// catalog. A runtime has a copy of those that it may see, without data and resources.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:path=moduletemplates,singular=moduletemplate
// +kubebuilder:printcolumn:name="Module",type=string,JSONPath=`.spec.module`
// +kubebuilder:printcolumn:name="Channels",type=string,JSONPath=`.spec.channels`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == self.spec.module + '-' + self.spec.version",message="metadata.name must be <module>-<version>"
type ModuleTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ModuleTemplateSpec `json:"spec"`
}

// ModuleTemplateList is a list of ModuleTemplates.
//
// +kubebuilder:object:root=true
type ModuleTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ModuleTemplate `json:"items"`
}

// ModuleTemplateSpec is a module in one version.
type ModuleTemplateSpec struct {
	Module ModuleName `json:"module"`

	// +kubebuilder:validation:MinLength=1
	Version Version `json:"version"`

	// The channels that offer this version. Of several versions, a channel offers the newest.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	Channels []Channel `json:"channels,omitempty"`

	// The custom resource with which the module starts. Its spec belongs to the user, see
	// customResourcePolicy.
	//
	// +optional
	Data *Resource `json:"data,omitempty"`

	// CreateAndDelete creates data once, and deletes it with the module. Changes by users stay, and
	// an object that a user deletes is not created again. Ignore neither creates nor deletes it.
	// Default: CreateAndDelete.
	//
	// +optional
	CustomResourcePolicy CustomResourcePolicy `json:"customResourcePolicy,omitempty"`

	// The other objects of the module, in any order. At least one, except in a runtime.
	//
	// +optional
	// +listType=atomic
	Resources []Resource `json:"resources,omitempty"`
}

// CustomResourcePolicy is the policy of the operator for the custom resource of a module.
//
// +kubebuilder:validation:Enum=CreateAndDelete;Ignore
type CustomResourcePolicy string

// The policies. The empty one is CreateAndDelete.
const (
	CreateAndDelete CustomResourcePolicy = "CreateAndDelete"
	Ignore          CustomResourcePolicy = "Ignore"
)

// Resource is an object of any kind, as a user would apply it.
//
// +kubebuilder:validation:XEmbeddedResource
// +kubebuilder:validation:XPreserveUnknownFields
type Resource struct {
	runtime.RawExtension `json:",inline"`
}
