package installation

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/admission/selector"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
)

// exclusions are the requirements that others have added to the namespace selectors of our
// webhooks. Platforms exclude their own namespaces from every webhook, and do so again after each
// correction.
type exclusions struct {
	// by has the requirements of each field manager, as texts.
	by map[string][]string
	// lost are the excluded namespaces that are of no platform: the API server calls no agent for
	// writes there.
	lost []string
}

// addition is the difference between a webhook of ours and the one that is there.
type addition struct {
	webhook map[string]any // ours
	ours    *metav1.LabelSelector
	more    []metav1.LabelSelectorRequirement
}

// keepAdditions adds the harmless additions of others to our webhooks. These are a shorter timeout,
// and requirements that exclude namespaces of the platform. An exclusion of other namespaces is
// removed once, and kept if it comes back: each further correction would restart the agents in
// vain. The status names such namespaces.
func (v *visit) keepAdditions(ctx context.Context) error {
	additions := v.findAdditions()
	if len(additions) == 0 {
		return nil
	}
	namespaces, err := v.listNamespaces(ctx)
	if err != nil {
		return err
	}

	kept := exclusions{by: make(map[string][]string)}
	for n := range additions {
		kept.note(&additions[n], v.found.configuration, namespaces)
	}
	kept.sort()
	if len(kept.lost) > 0 && !v.isContested(kept.text()) {
		v.want.removed = kept.text()
		return nil
	}

	for n := range additions {
		whole := selector.With(additions[n].ours, additions[n].more)
		additions[n].webhook["namespaceSelector"] = content(whole)
	}
	v.want.exclusions = kept
	if kept.text() != v.last.exclusions.text() {
		v.log.InfoContext(ctx, "others exclude namespaces from webhooks", "exclusions", kept.text())
	}
	return nil
}

func (v *visit) isContested(text string) bool {
	known, _ := v.contests.Load(v.id)
	return known == text
}

// findAdditions keeps the timeouts of others that are shorter. An agent answers within
// milliseconds.
func (v *visit) findAdditions() (additions []addition) {
	present := make(map[any]map[string]any)
	for _, webhook := range webhooksOf(v.found.configuration) {
		fields, _ := webhook.(map[string]any)
		present[nameOf(webhook)] = fields
	}
	for _, webhook := range webhooksOf(v.want.configuration) {
		fields, _ := webhook.(map[string]any)
		live := present[nameOf(webhook)]
		if fields == nil || live == nil {
			continue
		}

		shorter, isNumber := live["timeoutSeconds"].(int64)
		if timeout, _ := fields["timeoutSeconds"].(int64); isNumber && shorter > 0 && shorter < timeout {
			fields["timeoutSeconds"] = shorter
		}
		ours := selectorOf(fields["namespaceSelector"])
		more, ok := selector.ExclusionsBeyond(ours, selectorOf(live["namespaceSelector"]))
		if ok && len(more) > 0 {
			additions = append(additions, addition{webhook: fields, ours: ours, more: more})
		}
	}
	return additions
}

// selectorOf returns nil for a value that is no selector.
func selectorOf(fields any) *metav1.LabelSelector {
	parsed := &metav1.LabelSelector{}
	object, _ := fields.(map[string]any)
	if runtime.DefaultUnstructuredConverter.FromUnstructured(object, parsed) != nil {
		return nil
	}
	return parsed
}

// namespacePage and namespacePages bound the list of namespaces. Those beyond count as not
// excluded.
const namespacePage, namespacePages = 500, 20

func (v *visit) listNamespaces(ctx context.Context) (all []metav1.PartialObjectMetadata, err error) {
	next := ""
	for range namespacePages {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
		err := v.List(ctx, page, client.Limit(namespacePage), client.Continue(next))
		if err != nil {
			return nil, v.wrap(err, "list", "the namespaces")
		}
		all = append(all, page.Items...)
		if next = page.Continue; next == "" {
			break
		}
	}
	return all, nil
}

// note adds an addition, with its field manager and the namespaces that it excludes.
func (e *exclusions) note(a *addition, live *unstructured.Unstructured, namespaces []metav1.PartialObjectMetadata) {
	manager := managerOf(live, nameOf(a.webhook))
	for _, requirement := range a.more {
		e.by[manager] = append(e.by[manager], remote.TextOf(selector.Text(requirement), remote.MaxNote))
	}

	ours, err := metav1.LabelSelectorAsSelector(a.ours)
	excluding, wrong := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: a.more})
	if err != nil || wrong != nil {
		return // The API server takes valid selectors only.
	}
	for n := range namespaces {
		own := labels.Set(namespaces[n].Labels)
		if ours.Matches(own) && !excluding.Matches(own) && !admission.IsPlatformNamespace(namespaces[n].Name) {
			e.lost = append(e.lost, namespaces[n].Name)
		}
	}
}

func (e *exclusions) sort() {
	for manager, texts := range e.by {
		slices.Sort(texts)
		e.by[manager] = slices.Compact(texts)
	}
	slices.Sort(e.lost)
	e.lost = slices.Compact(e.lost)
}

// text names the requirements and their managers, "" if there are none.
func (e *exclusions) text() string {
	var parts []string
	for _, manager := range slices.Sorted(maps.Keys(e.by)) {
		parts = append(parts, fmt.Sprintf("field manager %q adds %s", manager, strings.Join(e.by[manager], ", ")))
	}
	return strings.Join(parts, "; ")
}

// mostNamed is the number of namespaces in a message.
const mostNamed = 10

// judge adds the exclusions to the status of an installation that is ready.
func (e *exclusions) judge(status Status) Status {
	if status.State != Ready || len(e.by) == 0 {
		return status
	}
	status.Notice = "others exclude namespaces from the webhooks: " + e.text()
	if len(e.lost) == 0 {
		return status
	}

	shown := e.lost
	if len(shown) > mostNamed {
		shown = append(slices.Clone(shown[:mostNamed]), "…")
	}
	status.State = Failed
	status.Reason = ReasonWebhooksContested
	status.Message = fmt.Sprintf("%s; no agent is called for writes in %d namespaces, %s",
		status.Notice, len(e.lost), strings.Join(shown, ", "))
	return status
}

// managerOf returns the field manager that has set the namespace selector of a webhook last,
// beside ours.
func managerOf(live *unstructured.Unstructured, webhook any) string {
	key, _ := json.Marshal(map[string]any{"name": webhook}) //nolint:errchkjson // Decoded JSON, as in managedFields.
	for _, entry := range slices.Backward(live.GetManagedFields()) {
		var fields struct {
			Webhooks map[string]map[string]json.RawMessage `json:"f:webhooks"`
		}
		if entry.Manager == fieldOwner || entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, has := fields.Webhooks["k:"+string(key)]["f:namespaceSelector"]; has {
			return remote.Token(entry.Manager)
		}
	}
	return "unknown"
}
