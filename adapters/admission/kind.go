package admission

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// builtin describes a resource of Kubernetes that has subresources.
type builtin struct {
	kind   string
	scales bool
}

// builtins returns the resources of Kubernetes that have other subresources than the status, as
// discovery lists them.
func builtins() map[schema.GroupResource]builtin {
	return map[schema.GroupResource]builtin{
		{Resource: "namespaces"}:             {kind: "Namespace"},
		{Resource: "nodes"}:                  {kind: "Node"},
		{Resource: "pods"}:                   {kind: "Pod"},
		{Resource: "replicationcontrollers"}: {kind: "ReplicationController", scales: true},
		{Resource: "serviceaccounts"}:        {kind: "ServiceAccount"},
		{Resource: "services"}:               {kind: "Service"},

		{Group: "apps", Resource: "deployments"}:  {kind: "Deployment", scales: true},
		{Group: "apps", Resource: "replicasets"}:  {kind: "ReplicaSet", scales: true},
		{Group: "apps", Resource: "statefulsets"}: {kind: "StatefulSet", scales: true},

		{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: {kind: "CertificateSigningRequest"},
	}
}

// mayScale reports whether a resource may have a scale subresource. A custom resource, which has a
// dot in its group, may have one.
func mayScale(resource schema.GroupResource) bool {
	return builtins()[resource].scales || strings.Contains(resource.Group, ".")
}

// kindPattern matches the kinds that a path can carry.
var kindPattern = regexp.MustCompile(`^([A-Z][a-z0-9]*)+$`)

// kindSegment returns a kind as a segment of a path, such as "stateful.set" for StatefulSet. An API
// server allows only lower case there. It is empty for a kind in another notation.
func kindSegment(kind string) string {
	if !kindPattern.MatchString(kind) {
		return ""
	}
	var segment strings.Builder
	for i, letter := range kind {
		if i > 0 && letter >= 'A' && letter <= 'Z' {
			segment.WriteByte('.')
		}
		segment.WriteRune(letter)
	}
	return strings.ToLower(segment.String())
}

// kindOf returns the kind of a [kindSegment], and "" for any other text.
func kindOf(segment string) string {
	var kind strings.Builder
	for word := range strings.SplitSeq(segment, ".") {
		if word != "" {
			kind.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	if text := kind.String(); kindSegment(text) == segment {
		return text
	}
	return ""
}
