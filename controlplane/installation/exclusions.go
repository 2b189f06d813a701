package installation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/admission/selector"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
)

// exclusions are the requirements that others have added to the namespace selectors of our
// webhooks. Platforms exclude their own namespaces from every webhook, and do so again after each
// correction.
type exclusions struct {
	// by contains the requirements of each field manager, as texts.
	by map[string][]string
	// lost are the excluded namespaces that belong to no platform: the API server calls no agent
	// for writes there.
	lost []string
}

// addition is the difference between a webhook of ours and the one that is there.
type addition struct {
	webhook map[string]any // ours
	ours    *metav1.LabelSelector
	more    []metav1.LabelSelectorRequirement
}

// findAdditions returns the exclusions that the configuration in the runtime has beyond the one to
// apply.
func findAdditions(live, want *unstructured.Unstructured) (additions []addition) {
	present := fieldsByName(live)
	for _, webhook := range webhooksOf(want) {
		fields, _ := webhook.(map[string]any)
		others := present[nameOf(webhook)]
		if fields == nil || others == nil {
			continue
		}

		ours := selectorOf(fields["namespaceSelector"])
		more, ok := selector.ExclusionsBeyond(ours, selectorOf(others["namespaceSelector"]))
		if ok && len(more) > 0 {
			additions = append(additions, addition{webhook: fields, ours: ours, more: more})
		}
	}
	return additions
}

// keepShorterTimeouts copies the timeouts of others to the webhooks to apply, where they are
// shorter. An agent answers within milliseconds.
func keepShorterTimeouts(live, want *unstructured.Unstructured) {
	present := fieldsByName(live)
	for _, webhook := range webhooksOf(want) {
		fields, _ := webhook.(map[string]any)
		ours, _ := fields["timeoutSeconds"].(int64)

		others, isNumber := present[nameOf(webhook)]["timeoutSeconds"].(int64)
		if isNumber && others > 0 && others < ours {
			fields["timeoutSeconds"] = others
		}
	}
}

func fieldsByName(configuration *unstructured.Unstructured) map[string]map[string]any {
	all := make(map[string]map[string]any)
	for _, webhook := range webhooksOf(configuration) {
		fields, _ := webhook.(map[string]any)
		all[nameOf(webhook)] = fields
	}
	return all
}

// keepRequirements adds the requirements to our webhook.
func (a *addition) keepRequirements() {
	whole := selector.With(a.ours, a.more)
	a.webhook["namespaceSelector"] = contentOf(whole)
}

// addAll adds the additions, with their field managers and the namespaces that they exclude.
func (e *exclusions) addAll(
	additions []addition, live *unstructured.Unstructured, namespaces []metav1.PartialObjectMetadata,
) {
	for n := range additions {
		e.addOne(&additions[n], live, namespaces)
	}

	for manager, texts := range e.by {
		slices.Sort(texts)
		e.by[manager] = slices.Compact(texts)
	}
	slices.Sort(e.lost)
	e.lost = slices.Compact(e.lost)
}

func (e *exclusions) addOne(a *addition, live *unstructured.Unstructured, namespaces []metav1.PartialObjectMetadata) {
	manager := managerOf(live, nameOf(a.webhook))
	for _, requirement := range a.more {
		e.by[manager] = append(e.by[manager], remote.TextOf(selector.Text(requirement), remote.MaxNote))
	}

	ours, err := metav1.LabelSelectorAsSelector(a.ours)
	if err != nil {
		return // The API server takes valid selectors only.
	}
	excluding, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: a.more})
	if err != nil {
		return
	}
	for n := range namespaces {
		own := labels.Set(namespaces[n].Labels)
		isLost := ours.Matches(own) && !excluding.Matches(own)
		if isLost && !admission.IsPlatformNamespace(namespaces[n].Name) {
			e.lost = append(e.lost, namespaces[n].Name)
		}
	}
}

// text names the requirements and their managers. Without requirements, it is empty.
func (e *exclusions) text() string {
	var parts []string
	for _, manager := range slices.Sorted(maps.Keys(e.by)) {
		parts = append(parts, fmt.Sprintf("field manager %q adds %s", manager, strings.Join(e.by[manager], ", ")))
	}
	return strings.Join(parts, "; ")
}

// mostNamed is the number of namespaces in a message.
const mostNamed = 10

// judgeReady adds the exclusions to the status of an installation that is ready.
func (e *exclusions) judgeReady(status Status) Status {
	if status.State != Ready || len(e.by) == 0 {
		return status
	}

	status.Notice = "other programs exclude namespaces from the webhooks: " + e.text()
	if len(e.lost) == 0 {
		return status
	}

	shown := e.lost
	if len(shown) > mostNamed {
		shown = append(slices.Clone(shown[:mostNamed]), "…")
	}
	message := fmt.Sprintf("%s; no agent is called for writes in %d namespaces, %s",
		status.Notice, len(e.lost), strings.Join(shown, ", "))
	return status.withFailure(ReasonWebhooksContested, message)
}
