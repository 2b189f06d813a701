package admission

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission/selector"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

// RecordAnnotation is the annotation of a webhook configuration that contains the record of its
// webhooks. [WebhookConfiguration] sets it, and [Differences] compares the webhooks with it.
const RecordAnnotation = "runtime-watcher/applied-webhooks"

// record describes the applied webhooks. The webhooks of one configuration share a few namespace
// selectors, so each selector is written once.
type record struct {
	Selectors []*metav1.LabelSelector `json:"namespaceSelectors"`
	Webhooks  map[string]recorded     `json:"webhooks"`
}

// recorded are the parts of one webhook that decide which writes the API server calls the agent
// for. Selector is an index in the selectors of the record, the other parts are sums.
type recorded struct {
	Selector   int    `json:"n"`
	Rules      string `json:"r"`
	Objects    string `json:"o"`
	Conditions string `json:"c,omitempty"`
	Policies   string `json:"p"`
	Client     string `json:"s"`
}

// Record returns the value of [RecordAnnotation] for webhooks that are about to be applied.
func Record(webhooks []admissionregistrationv1.ValidatingWebhook) string {
	whole := record{Webhooks: make(map[string]recorded, len(webhooks))}
	known := make(map[string]int)

	for n := range webhooks {
		own := recordedOf(&webhooks[n])

		meaning, _ := selector.Meaning(webhooks[n].NamespaceSelector)
		index, has := known[meaning]
		if !has {
			index = len(whole.Selectors)
			known[meaning] = index
			whole.Selectors = append(whole.Selectors, webhooks[n].NamespaceSelector)
		}

		own.Selector = index
		whole.Webhooks[webhooks[n].Name] = own
	}

	text, err := json.Marshal(whole)
	if err != nil {
		panic(fmt.Sprintf("k8s.io/api: %v", err)) // A selector has texts only.
	}

	return string(text)
}

func recordedOf(webhook *admissionregistrationv1.ValidatingWebhook) recorded {
	objects, _ := selector.Meaning(webhook.ObjectSelector)
	own := recorded{
		Rules:   sumOf(rulesText(webhook.Rules)),
		Objects: sumOf(objects),
		Policies: sumOf(fmt.Sprintf("%q %q %q", valueOf(webhook.FailurePolicy), valueOf(webhook.MatchPolicy),
			webhook.AdmissionReviewVersions)),
		Client: sumOf(clientText(&webhook.ClientConfig)),
	}

	if len(webhook.MatchConditions) > 0 {
		own.Conditions = sumOf(conditionsText(webhook.MatchConditions))
	}
	return own
}

// Differences compares the webhooks of a configuration in an API server with the webhooks that were
// applied. Each text names a webhook and its difference. Additions by a platform are not
// differences. Such an addition is a shorter timeout, or an exclusion by a label that the watch
// does not select by. An exclusion that names a namespace of the user is a difference. The
// exclusions that AKS adds are never differences. A configuration that is nil or has no record is a
// difference.
//
// The texts come from the runtime and are not bounded.
func Differences(live *admissionregistrationv1.ValidatingWebhookConfiguration) []string {
	if live == nil {
		return []string{"the webhook configuration is missing"}
	}

	var applied record
	if json.Unmarshal([]byte(live.Annotations[RecordAnnotation]), &applied) != nil {
		return []string{"the webhook configuration has no valid record of its webhooks: apply it again"}
	}

	present := make(map[string]*admissionregistrationv1.ValidatingWebhook, len(live.Webhooks))
	var proved []byte // The CA bundle that the canary proves.

	for n := range live.Webhooks {
		webhook := &live.Webhooks[n]
		present[webhook.Name] = webhook
		if strings.HasSuffix(pathIn(&webhook.ClientConfig), canary.Path) {
			proved = webhook.ClientConfig.CABundle
		}
	}

	var differences []string
	for _, name := range slices.Sorted(maps.Keys(applied.Webhooks)) {
		webhook := present[name]
		if webhook == nil {
			differences = append(differences, name+" is missing")
			continue
		}

		changed := applied.changedParts(webhook)
		if proved != nil && !bytes.Equal(proved, webhook.ClientConfig.CABundle) {
			changed = append(changed, "caBundle differs from the caBundle of the canary")
		}
		if len(changed) > 0 {
			differences = append(differences, name+": "+strings.Join(changed, ", "))
		}
	}

	return differences
}

// Unrecorded returns, in order, the names of the webhooks of a configuration that are missing in
// its record. Without a valid record it returns all names.
func Unrecorded(live *admissionregistrationv1.ValidatingWebhookConfiguration) (names []string) {
	var applied record
	// Differences names a record that is wrong.
	_ = json.Unmarshal([]byte(live.Annotations[RecordAnnotation]), &applied)

	for n := range live.Webhooks {
		name := live.Webhooks[n].Name
		if _, has := applied.Webhooks[name]; !has {
			names = append(names, name)
		}
	}

	return names
}

// changedParts returns the parts of a webhook that are not as they were applied. Without the match
// conditions, as an old API server stores it, the agent only gets more calls.
func (r *record) changedParts(live *admissionregistrationv1.ValidatingWebhook) (changed []string) {
	want := r.Webhooks[live.Name]
	have := recordedOf(live)
	note := func(isChanged bool, part string) {
		if isChanged {
			changed = append(changed, part)
		}
	}

	note(have.Rules != want.Rules, "rules changed")
	if want.Selector >= 0 && want.Selector < len(r.Selectors) {
		note(!selectsAlike(r.Selectors[want.Selector], live.NamespaceSelector), "namespaceSelector changed")
	}

	note(have.Objects != want.Objects, "objectSelector changed")
	note(have.Conditions != want.Conditions && have.Conditions != "", "matchConditions changed")
	note(have.Policies != want.Policies, "failurePolicy, matchPolicy or admissionReviewVersions changed")
	note(have.Client != want.Client, "clientConfig changed")

	return changed
}

// selectsAlike reports whether a namespace selector selects the namespaces of ours, except for the
// namespaces of a platform.
func selectsAlike(ours, live *metav1.LabelSelector) bool {
	beyond, ok := selector.ExclusionsBeyond(ours, live)
	isNarrower := func(exclusion metav1.LabelSelectorRequirement) bool {
		isOfUser := func(name string) bool { return !IsPlatformNamespace(name) }
		switch {
		case selectsOnly(ours, exclusion.Key):
			return true
		case isOfEnforcer(exclusion):
			return false
		case exclusion.Key == namespaceLabel:
			return exclusion.Operator != metav1.LabelSelectorOpNotIn || slices.ContainsFunc(exclusion.Values, isOfUser)
		default:
			return mentions(ours, exclusion.Key)
		}
	}

	return ok && !slices.ContainsFunc(beyond, isNarrower)
}

// isOfEnforcer reports whether an exclusion is one that the admissions enforcer of AKS adds to each
// webhook.
func isOfEnforcer(exclusion metav1.LabelSelectorRequirement) bool {
	switch exclusion.Key {
	case "kubernetes.azure.com/managedby":
		return slices.Equal(exclusion.Values, []string{"aks"})
	case "control-plane":
		isFormer := exclusion.Operator == metav1.LabelSelectorOpDoesNotExist
		return isFormer || slices.Equal(exclusion.Values, []string{"true"})
	default:
		return false
	}
}

// selectsOnly reports whether a selector selects only objects with a certain label.
func selectsOnly(own *metav1.LabelSelector, key string) bool {
	return mentionsBy(own, key, func(operator metav1.LabelSelectorOperator) bool {
		return operator == metav1.LabelSelectorOpIn || operator == metav1.LabelSelectorOpExists
	})
}

// mentions reports whether a selector has a requirement for a label. No platform adds one for a
// label that a watch selects by or excludes.
func mentions(own *metav1.LabelSelector, key string) bool {
	return mentionsBy(own, key, func(metav1.LabelSelectorOperator) bool { return true })
}

// mentionsBy reports whether a selector has a label with a value, or a requirement for it with an
// operator that counts.
func mentionsBy(
	own *metav1.LabelSelector, key string, counts func(metav1.LabelSelectorOperator) bool,
) bool {
	if own == nil {
		return false
	}

	if _, has := own.MatchLabels[key]; has {
		return true
	}
	return slices.ContainsFunc(own.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return r.Key == key && counts(r.Operator)
	})
}

// rulesText is the same for rules of the same meaning. Neither the order of the rules nor the order
// of their lists matters.
func rulesText(rules []admissionregistrationv1.RuleWithOperations) string {
	texts := make([]string, 0, len(rules))
	for n := range rules {
		rule := &rules[n]
		texts = append(texts, fmt.Sprintf("%q %q %q %q %q", sorted(rule.APIGroups), sorted(rule.APIVersions),
			sorted(rule.Resources), sorted(rule.Operations), valueOf(rule.Scope)))
	}
	return fmt.Sprint(sorted(texts))
}

func conditionsText(conditions []admissionregistrationv1.MatchCondition) string {
	texts := make([]string, 0, len(conditions))
	for _, condition := range conditions {
		texts = append(texts, fmt.Sprintf("%q %q", condition.Name, condition.Expression))
	}
	return fmt.Sprint(sorted(texts))
}

func clientText(client *admissionregistrationv1.WebhookClientConfig) string {
	if client.Service == nil {
		return valueOf(client.URL)
	}

	port := int32(defaultPort)
	if client.Service.Port != nil {
		port = *client.Service.Port
	}
	return fmt.Sprintf("%q %q %q %d", client.Service.Namespace, client.Service.Name, valueOf(client.Service.Path), port)
}

func pathIn(client *admissionregistrationv1.WebhookClientConfig) string {
	if client.Service == nil {
		return valueOf(client.URL)
	}
	return valueOf(client.Service.Path)
}

func sorted[T ~string](list []T) []T { return slices.Compact(slices.Sorted(slices.Values(list))) }

func valueOf[T ~string](pointer *T) string {
	if pointer == nil {
		return ""
	}
	return string(*pointer)
}

// sumOf is short, because an object with many watches has many sums. A collision gives no
// right: a program that may write the webhooks may also write the record.
func sumOf(text string) string {
	const length = 6
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:length])
}
