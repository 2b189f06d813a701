package admission

import (
	"cmp"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	defaultDomain  = "kyma-project.io"
	defaultTimeout = 2 * time.Second
	maxTimeout     = 30 * time.Second // admissionregistration.k8s.io/v1
	// namespaceLabel is on every namespace, with its name (k8s.io/api/core/v1).
	namespaceLabel = "kubernetes.io/metadata.name"
)

// ConfigurationOptions are the optional settings of [WebhookConfiguration]. The zero value is the
// documented default.
type ConfigurationOptions struct {
	// Labels are labels of the configuration object, in addition to admissions.enforcer/disabled:
	// "true". With that label, AKS does not add exclusions to the webhooks. Labels may set that
	// label to another value. Default: none.
	Labels map[string]string
	// Timeout is how long an API server waits for an answer before it continues without one: 1 s to
	// 30 s, in whole seconds. Default: 2 s.
	Timeout time.Duration
	// Canary is the Lease in the runtime that the canary of the agent writes. Default: none, so
	// there is no canary.
	Canary types.NamespacedName
	// NoMatchConditions makes an API server call the handler for every write. Set it if the filter
	// of the handler accepts more than [core.Changed]. By default the API server itself skips dry
	// runs and updates that leave the watched field unchanged, which requires Kubernetes 1.28.
	// Conditions of a [watch.Watch] are always used.
	NoMatchConditions bool
	// WebhookDomain ends the names of all webhooks: <namespace>.<name>.operator.<WebhookDomain> for
	// a watch, with scale in place of operator for its scale subresource. API servers store the
	// names: with another domain, all webhooks get new names. Default: "kyma-project.io".
	WebhookDomain string
	// OwnerAnnotation is the annotation that names the owner of an object. A change of that
	// annotation counts. It must equal OwnerAnnotation of the handler's [Options]. Default:
	// [core.OwnerAnnotation].
	OwnerAnnotation string
	// ExcludedNamespaces are namespaces in which nothing is watched. Objects without a namespace
	// are watched, except the Namespace objects with these names. An empty list that is not nil
	// excludes no namespace. Set such a list if watched objects are in the namespace of the agent.
	// Default: kube-system and the namespace of the service, so that the agent's own objects cause
	// no events.
	ExcludedNamespaces []string
}

// labelNoEnforcer opts out of the admissions enforcer of AKS. Other platforms ignore it.
const labelNoEnforcer = "admissions.enforcer/disabled"

func (o ConfigurationOptions) allLabels() map[string]string {
	all := map[string]string{labelNoEnforcer: "true"}
	maps.Copy(all, o.Labels)
	return all
}

// withDefaults returns a copy with all defaults set, which depend on the endpoint.
func (o ConfigurationOptions) withDefaults(endpoint *Endpoint) ConfigurationOptions {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.WebhookDomain = cmp.Or(o.WebhookDomain, defaultDomain)
	o.OwnerAnnotation = cmp.Or(o.OwnerAnnotation, core.OwnerAnnotation)
	if o.ExcludedNamespaces == nil {
		o.ExcludedNamespaces = []string{metav1.NamespaceSystem}
		if endpoint.Service.Namespace != "" {
			o.ExcludedNamespaces = append(o.ExcludedNamespaces, endpoint.Service.Namespace)
		}
	}

	return o
}

// namespaceSelector selects by the label that Kubernetes adds to every namespace.
func (o ConfigurationOptions) namespaceSelector() *metav1.LabelSelector {
	if len(o.ExcludedNamespaces) == 0 {
		return &metav1.LabelSelector{}
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key:      namespaceLabel,
		Operator: metav1.LabelSelectorOpNotIn,
		Values:   slices.Compact(slices.Sorted(slices.Values(o.ExcludedNamespaces))),
	}}}
}
