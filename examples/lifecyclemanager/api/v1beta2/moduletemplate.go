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

// ModuleTemplate is the version of a module that a channel has now. All ModuleTemplates of the
// control plane are the catalog. Each runtime has a copy of those that it may see.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:path=moduletemplates,singular=moduletemplate
// +kubebuilder:printcolumn:name="Module",type=string,JSONPath=`.spec.module`
// +kubebuilder:printcolumn:name="Channel",type=string,JSONPath=`.spec.channel`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == self.spec.module + '-' + self.spec.channel",message="metadata.name must be <module>-<channel>, so that a channel has one version of a module"
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
	Module  ModuleName `json:"module"`
	Channel Channel    `json:"channel"`

	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`

	// The objects of the module, in any order.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	Resources []Resource `json:"resources"`
}

// Resource is an object of any kind, as a user would apply it.
//
// +kubebuilder:validation:XEmbeddedResource
// +kubebuilder:validation:XPreserveUnknownFields
type Resource struct {
	runtime.RawExtension `json:",inline"`
}
