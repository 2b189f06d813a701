package v1beta2

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// KymaLabel is the label of a Manifest with the name of its Kyma.
	KymaLabel = "operator.kyma-project.io/kyma-name"
	// ManifestFinalizer holds a Manifest until its objects are removed from the runtime. A Manifest
	// is created with it: added later, it could come after a deletion.
	ManifestFinalizer = "operator.kyma-project.io/manifest"
)

// Manifest is one module in one runtime. The Kyma controller writes the spec, and the Manifest
// controller makes the runtime have the objects of its ModuleTemplate and no others of the module.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=manifests,singular=manifest
// +kubebuilder:printcolumn:name="Module",type=string,JSONPath=`.spec.module`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
type Manifest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ManifestSpec `json:"spec"`

	// +optional
	Status ManifestStatus `json:"status,omitempty,omitzero"`
}

// ManifestList is a list of Manifests.
//
// +kubebuilder:object:root=true
type ManifestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Manifest `json:"items"`
}

// ManifestName returns the name of the Manifest of a module. The name of a module has no dot, so
// that [KymaOfManifest] finds the Kyma.
func ManifestName(kyma string, module ModuleName) string { return kyma + "." + string(module) }

// KymaOfManifest returns the name of the Kyma in the name of a Manifest.
func KymaOfManifest(name string) string {
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		return name[:dot]
	}
	return name
}

// ManifestsOf returns the Manifests of a Kyma. A Kyma with a name that is too long for a label has
// none.
func ManifestsOf(ctx context.Context, stored client.Reader, kyma client.ObjectKey) ([]Manifest, error) {
	list := &ManifestList{}
	if len(kyma.Name) > validation.LabelValueMaxLength {
		return nil, nil
	}

	err := stored.List(ctx, list, client.InNamespace(kyma.Namespace), client.MatchingLabels{KymaLabel: kyma.Name})
	return list.Items, err
}

// ManifestSpec names the ModuleTemplate with the objects that a runtime shall have.
type ManifestSpec struct {
	Module   ModuleName  `json:"module"`
	Version  Version     `json:"version"`
	Template TemplateRef `json:"template"`

	// When the user has disabled the module. Its custom resources are deleted first. Until they are
	// gone, the module can be enabled again. Then the Manifest is deleted.
	//
	// +optional
	DisabledSince *metav1.Time `json:"disabledSince,omitempty"`
}

// TemplateRef names one generation of a ModuleTemplate in the namespace of the Manifest.
type TemplateRef struct {
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
}

// ManifestStatus reports the objects that a runtime has of a module.
type ManifestStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Ready is true with the state Ready.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// +optional
	State State `json:"state,omitempty"`

	// +optional
	Message string `json:"message,omitempty"`

	// The cluster that has the objects: the UID of its Namespace kube-system. A cluster that is
	// made anew under the same name has none of them.
	//
	// +optional
	Cluster types.UID `json:"cluster,omitempty"`

	// The version that was applied last.
	//
	// +optional
	Version Version `json:"version,omitempty"`

	// Whether the custom resource of the module was created. It is created once.
	//
	// +optional
	CustomResourceCreated bool `json:"customResourceCreated,omitempty"`

	// Every object that may be in the runtime because of this Manifest. An object is here before it
	// is created, and until it is gone, because the operator may die in between.
	//
	// +optional
	// +listType=atomic
	Inventory []Object `json:"inventory,omitempty"`
}

// Object identifies an object in a runtime.
type Object struct {
	// +optional
	Group   string `json:"group,omitempty"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}
