package v1beta2

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kyma is a runtime and its modules. The Kyma in the control plane represents the runtime: its name
// is the id of the runtime, and its annotation skr-domain the domain. The runtime has a Kyma, too,
// which the users there edit. The operator copies the spec from the runtime, and the status to it.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=kymas,singular=kyma
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Channel",type=string,JSONPath=`.spec.channel`
// +kubebuilder:printcolumn:name="Modules",type=string,JSONPath=`.status.modules[*].name`
// +kubebuilder:printcolumn:name="Watcher",type=string,JSONPath=`.status.conditions[?(@.type=="WatcherInstalled")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || self.metadata.name.size() <= 63",optionalOldSelf=true,message="metadata.name must have at most 63 characters: it is the value of a label"
type Kyma struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec KymaSpec `json:"spec"`

	// +optional
	Status KymaStatus `json:"status,omitempty,omitzero"`
}

// KymaList is a list of Kymas.
//
// +kubebuilder:object:root=true
type KymaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Kyma `json:"items"`
}

// KymaSpec names the modules that a runtime shall have.
type KymaSpec struct {
	// The channel of all modules that name none.
	Channel Channel `json:"channel"`

	// The enabled modules. Users that apply one module each do not overwrite each other.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Modules []Module `json:"modules,omitempty"`
}

// Channel is a stream of versions of a module, such as regular or fast.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^[a-z]+$`
type Channel string

// ModuleName is the name of a module.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
type ModuleName string

// Version is the version of a module, such as 2.1.0.
//
// +kubebuilder:validation:MaxLength=64
// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
type Version string

// Module is an enabled module.
//
// +kubebuilder:validation:XValidation:rule="!has(self.channel) || !has(self.version)",message="must have a channel or a version, not both"
type Module struct {
	Name ModuleName `json:"name"`

	// Default: the channel of the Kyma.
	//
	// +optional
	Channel Channel `json:"channel,omitempty"`

	// A version of the catalog, instead of that of a channel.
	//
	// +optional
	Version Version `json:"version,omitempty"`
}

// SkipLabel makes the operator leave a Kyma, its modules and its agent as they are, with the value
// "true".
const SkipLabel = "operator.kyma-project.io/skip-reconciliation"

// Skipped reports whether a Kyma opts out.
func Skipped(kyma *Kyma) bool { return kyma.Labels[SkipLabel] == "true" }

// WatcherInstalled is the condition about the agent in the runtime. Only the Kyma in the control
// plane has it.
const WatcherInstalled = "WatcherInstalled"

// KymaStatus reports the modules of a runtime.
type KymaStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// The worst state of the modules and of the agent in the runtime.
	//
	// +optional
	State State `json:"state,omitempty"`

	// The cluster that the kubeconfig of the Kyma leads to: the UID of its Namespace kube-system. A
	// cluster belongs to one Kyma.
	//
	// +optional
	Cluster types.UID `json:"cluster,omitempty"`

	// A problem of the runtime as a whole.
	//
	// +optional
	Message string `json:"message,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=name
	Modules []ModuleStatus `json:"modules,omitempty"`

	// Ready is true with the state Ready.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ModuleStatus reports one module.
type ModuleStatus struct {
	Name ModuleName `json:"name"`

	// The installed version, or that which is being installed. Empty if there is none.
	//
	// +optional
	Version Version `json:"version,omitempty"`

	State State `json:"state"`

	// +optional
	Message string `json:"message,omitempty"`
}

// State is the progress of the operator.
//
// +kubebuilder:validation:Enum=Processing;Ready;Error;Deleting
type State string

// The states of Kymas, modules and Manifests.
const (
	// Processing means that a step is awaited.
	Processing State = "Processing"
	// Ready means that the runtime has everything, and that it is ready there.
	Ready State = "Ready"
	// Error means that the message names a problem. It is retried.
	Error State = "Error"
	// Deleting means that the removal is awaited.
	Deleting State = "Deleting"
)

// ReadyCondition is the condition of Kymas and Manifests that sums up their status, as kubectl wait
// and kstatus read it.
const ReadyCondition = "Ready"

// SetReady sets [ReadyCondition] in a new list of conditions: true in the state Ready.
func SetReady(conditions []metav1.Condition, state State, message string, generation int64) []metav1.Condition {
	ready := metav1.Condition{
		Type: ReadyCondition, Status: metav1.ConditionFalse, Reason: string(state), Message: message,
		ObservedGeneration: generation,
	}
	if state == Ready {
		ready.Status = metav1.ConditionTrue
	}

	conditions = append([]metav1.Condition(nil), conditions...)
	meta.SetStatusCondition(&conditions, ready)
	return conditions
}
