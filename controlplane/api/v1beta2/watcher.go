package v1beta2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Watcher makes every runtime report changes of one resource to a manager in the control plane.
//
// Its spec becomes one webhook in each runtime and one route in the control plane. Its status
// reports the route.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=watchers,singular=watcher
// +kubebuilder:printcolumn:name="Manager",type=string,JSONPath=`.spec.manager`
// +kubebuilder:printcolumn:name="Resource",type=string,JSONPath=`.spec.resourceToWatch.resource`
// +kubebuilder:printcolumn:name="Field",type=string,JSONPath=`.spec.field`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Group",type=string,priority=1,JSONPath=`.spec.resourceToWatch.group`
// +kubebuilder:printcolumn:name="Service",type=string,priority=1,JSONPath=`.spec.serviceInfo.name`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="RouteReady")].message`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 164",message="metadata.name must have at most 164 characters: it becomes part of the name of a webhook"
type Watcher struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec WatcherSpec `json:"spec"`

	// +optional
	Status WatcherStatus `json:"status,omitempty,omitzero"`
}

// WatcherList is a list of Watchers.
//
// +kubebuilder:object:root=true
type WatcherList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Watcher `json:"items"`
}

// WatcherSpec names a resource to watch and the service that gets the events.
//
// +kubebuilder:validation:XValidation:rule="!self.resourceToWatch.resource.contains('/') || !has(self.field) || self.field != 'status'",fieldPath=".field",message="must be spec for a subresource"
// +kubebuilder:validation:XValidation:rule="!self.resourceToWatch.resource.contains('/') || self.resourceToWatch.resource.split('/')[1] in ['approval', 'ephemeralcontainers', 'finalize', 'resize'] || ((!has(self.labelsToWatch) || self.labelsToWatch.size() == 0) && (!has(self.labelExpressionsToWatch) || self.labelExpressionsToWatch.size() == 0))",message="a watch of this subresource must have no labelsToWatch and no labelExpressionsToWatch: its reviews show no labels of the object"
type WatcherSpec struct {
	// The operator that gets the events, as in the path of their URL: a DNS-1123 label. Default:
	// the label operator.kyma-project.io/managed-by.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '' || !format.dns1123Label().validate(self).hasValue()",message="must be a DNS-1123 label: lower case letters, digits and '-', beginning and ending with a letter or digit"
	Manager string `json:"manager,omitempty"`

	// The service in the control plane that gets the events. Required if the operator makes routes.
	//
	// +optional
	ServiceInfo Service `json:"serviceInfo,omitempty,omitzero"`

	// Labels that an object must all have to be watched, before or after a change. Without any,
	// every object is watched.
	//
	// +optional
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(key, !format.qualifiedName().validate(key).hasValue())",message="has a key that is no label key: [<DNS-1123 subdomain>/]<name>, the name with at most 63 characters"
	LabelsToWatch map[string]LabelValue `json:"labelsToWatch,omitempty"`

	// Requirements that the labels of an object must all meet to be watched, before or after a
	// change, in addition to labelsToWatch.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	LabelExpressionsToWatch []LabelRequirement `json:"labelExpressionsToWatch,omitempty"`

	// The namespaces in which objects are watched, by their labels. Objects without a namespace are
	// watched, except Namespaces that the selector does not select. Default: all namespaces.
	//
	// +optional
	// +structType=atomic
	NamespaceSelector *NamespaceSelector `json:"namespaceSelector,omitempty"`

	// CEL expressions that must all be true for a change to count, as in a webhook configuration.
	// The API server of the runtime evaluates them. An expression counts as true when it cannot be
	// evaluated. docs/reference/watcher.md describes the allowed part of CEL.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=4
	MatchConditions []MatchCondition `json:"matchConditions,omitempty"`

	// The resource to watch in the runtimes.
	ResourceToWatch WatchableGVR `json:"resourceToWatch"`

	// The part of an object in which changes count: spec or status. In an object without that part,
	// every change counts.
	//
	// +optional
	// +kubebuilder:default=spec
	// +kubebuilder:validation:Enum=spec;status
	Field string `json:"field,omitempty"`

	// The gateways through which the events arrive. Required if the operator makes routes.
	//
	// +optional
	Gateway GatewayConfig `json:"gateway,omitempty,omitzero"`
}

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="!format.labelValue().validate(self).hasValue()",message="must be a label value: letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, or empty"
type LabelValue string

// WatchableGVR is a resource of the API of the runtimes.
//
// +kubebuilder:validation:XValidation:rule="self.group != 'admissionregistration.k8s.io' || !(self.resource in ['validatingwebhookconfigurations', 'mutatingwebhookconfigurations', 'validatingadmissionpolicies', 'validatingadmissionpolicybindings', 'mutatingadmissionpolicies', 'mutatingadmissionpolicybindings'])",fieldPath=".resource",message="cannot be watched: API servers call no webhooks for it"
type WatchableGVR struct {
	// The API group: a DNS-1123 subdomain, or "" for the core group.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || !format.dns1123Subdomain().validate(self).hasValue()",message="must be one API group such as apps, or \"\" for the core group; a wildcard is not allowed"
	Group string `json:"group"`

	// The version, or "*" for any.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '*' || !format.dns1123Label().validate(self).hasValue()",message="must be a version such as v1, or \"*\" for any"
	Version string `json:"version"`

	// The plural name of the resource, such as configmaps, or a subresource, such as pods/eviction.
	// No wildcard.
	//
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:XValidation:rule="self.split('/').size() <= 2 && self.split('/').all(part, !format.dns1123Label().validate(part).hasValue())",message="must be the plural name of one resource such as configmaps, or of one subresource such as pods/eviction; a wildcard is not allowed"
	// +kubebuilder:validation:XValidation:rule="!self.endsWith('/status') && !self.endsWith('/log')",message="must not have the subresource status, which spec.field watches, nor log, which is never written"
	Resource string `json:"resource"`

	// The kind of the resource, such as Deployment. Events of subresources name it. Default: the
	// kind of a resource of Kubernetes. Events of scale name the kind Scale if it is not known.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Z][a-z0-9]*)+$')",message="must be a kind in upper camel case such as Deployment"
	Kind string `json:"kind,omitempty"`
}

// MatchCondition is a CEL expression that must be true for a change to count.
type MatchCondition struct {
	// Name of the condition in messages: a DNS-1123 label. The names persisted and changed are
	// reserved.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue() && !(self in ['persisted', 'changed'])",message="must be a DNS-1123 label, and neither persisted nor changed"
	Name string `json:"name"`

	// The expression. It has the variables object, oldObject and request.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Expression string `json:"expression"`
}

// NamespaceSelector selects namespaces by their labels. Its JSON form is the form of a
// metav1.LabelSelector.
type NamespaceSelector struct {
	// Labels that a namespace must all have.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(key, !format.qualifiedName().validate(key).hasValue())",message="has a key that is no label key: [<DNS-1123 subdomain>/]<name>, the name with at most 63 characters"
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// Requirements that the labels of a namespace must all meet.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []LabelRequirement `json:"matchExpressions,omitempty"`
}

// Service is a service in the control plane and its port.
type Service struct {
	// The port of the service, 1 to 65535.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int64 `json:"port"`

	// The name of the service.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="must be the name of a service: lower case letters, digits and '-', beginning and ending with a letter or digit"
	Name string `json:"name"`

	// The namespace of the service.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="must be the name of a namespace: lower case letters, digits and '-', beginning and ending with a letter or digit"
	Namespace string `json:"namespace"`
}

// GatewayConfig selects the gateways through which the events arrive.
type GatewayConfig struct {
	// The labels of the gateways, in any namespace.
	LabelSelector GatewaySelector `json:"selector"`
}

// GatewaySelector selects gateways by their labels. Its JSON form is the form of a
// metav1.LabelSelector. The bounds allow an API server to validate its content.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)",message="must have at least one label or expression: an empty selector would select every gateway"
type GatewaySelector struct {
	// Labels that a gateway must all have.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(key, !format.qualifiedName().validate(key).hasValue())",message="has a key that is no label key: [<DNS-1123 subdomain>/]<name>, the name with at most 63 characters"
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// Requirements that the labels of a gateway must all meet.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	MatchExpressions []LabelRequirement `json:"matchExpressions,omitempty"`
}

// LabelRequirement is a requirement that the labels of an object must meet.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",fieldPath=".values",message="must have values for the operators In and NotIn, and none for Exists and DoesNotExist"
type LabelRequirement struct {
	// The key of the label.
	//
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="!format.qualifiedName().validate(self).hasValue()",message="must be a label key: [<DNS-1123 subdomain>/]<name>, the name with at most 63 characters"
	Key string `json:"key"`

	// How the label's value relates to the values: In, NotIn, Exists or DoesNotExist.
	//
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`

	// The values, for In and NotIn.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Values []LabelValue `json:"values,omitempty"`
}

// WatcherStatus is the status of a Watcher in the control plane.
type WatcherStatus struct {
	// The summary in one word.
	//
	// +kubebuilder:validation:Enum=Processing;Deleting;Ready;Error;Warning;Unmanaged;""
	// +optional
	State State `json:"state,omitempty"`

	// The conditions, with reasons.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// The generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}
