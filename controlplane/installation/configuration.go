package installation

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
)

// planConfiguration keeps the additions of a platform to the webhooks to apply, and finds other
// changes by a dry run in the runtime. Only planObjects calls it.
func (v *visit) planConfiguration(ctx context.Context) error {
	isIntact := v.isSameRecord()
	if !isIntact {
		v.memory.records.delete(v.id)
	}
	if v.found.configuration == nil || v.opts.Informer {
		return nil
	}

	if err := v.keepAdditions(ctx); err != nil {
		return err
	}

	inRuntime := v.found.configuration.GetAnnotations()[v.opts.key(annotationWhole)]
	v.want.allWebhooks = isIntact || inRuntime == v.want.record.whole
	if !v.want.allWebhooks {
		return nil
	}
	return v.compareByDryRun(ctx)
}

// isSameRecord reports whether the last complete installation had the same configuration. If so,
// and the present configuration differs, then others have replaced the configuration, for example
// by an older copy with the annotation of its time.
func (v *visit) isSameRecord() bool { return v.last.whole == v.want.record.whole }

// compareByDryRun compares the webhooks in the runtime with the webhooks that a correction would
// make of them. It notes in v.want whether calls were missed, and whether nothing would change.
func (v *visit) compareByDryRun(ctx context.Context) error {
	live := v.found.configuration
	ours := v.want.configuration
	corrected, err := v.putConfiguration(ctx, live, ours, client.DryRunAll)
	if err != nil {
		return err
	}

	v.want.callsMissed = missedCalls(live, corrected, ours)
	v.want.sameWebhooks = !v.want.callsMissed && hasMetadata(live, ours) && sameWebhooks(live, corrected)
	return nil
}

// keepAdditions adds the harmless additions of others to our webhooks. These are a shorter timeout,
// and requirements that exclude namespaces of the platform. An exclusion of other namespaces is
// removed once, and kept if it comes back: each further correction would restart the agents in
// vain. The status names such namespaces.
func (v *visit) keepAdditions(ctx context.Context) error {
	live := v.found.configuration
	keepShorterTimeouts(live, v.want.configuration)
	additions := findAdditions(live, v.want.configuration)
	if len(additions) == 0 {
		return nil
	}

	namespaces, err := v.listNamespaces(ctx)
	if err != nil {
		return err
	}
	kept := exclusions{by: make(map[string][]string)}
	kept.addAll(additions, live, namespaces)
	if len(kept.lost) > 0 && !v.isContested(kept.text()) {
		v.want.removedExclusions = kept.text()
		return nil
	}

	for n := range additions {
		additions[n].keepRequirements()
	}
	v.want.keptExclusions = kept
	if kept.text() != v.last.exclusions.text() {
		v.log.InfoContext(ctx, "other programs exclude namespaces from webhooks", "exclusions", kept.text())
	}
	return nil
}

// isContested reports whether an earlier visit has removed the same exclusions.
func (v *visit) isContested(text string) bool {
	removed, known := v.memory.contests.load(v.id)
	return known && removed == text
}

// namespacePage and namespacePages bound the list of namespaces. Namespaces beyond this bound count
// as not excluded.
const (
	namespacePage  = 500
	namespacePages = 20
)

func (v *visit) listNamespaces(ctx context.Context) (all []metav1.PartialObjectMetadata, err error) {
	next := ""
	for range namespacePages {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
		err := v.List(ctx, page, client.Limit(namespacePage), client.Continue(next))
		if err != nil {
			return nil, v.wrapRequest(err, "list", "the namespaces")
		}

		all = append(all, page.Items...)
		next = page.Continue
		if next == "" {
			break
		}
	}
	return all, nil
}

// renewConfiguration updates the webhooks that the API server has already. It removes unknown
// webhooks. New webhooks wait until the agent answers. Without a configuration, it returns nil.
func (v *visit) renewConfiguration(ctx context.Context) (*unstructured.Unstructured, error) {
	live := v.found.configuration
	if live == nil || v.want.sameWebhooks {
		return live, nil
	}

	first := v.want.configuration
	if !v.want.allWebhooks {
		all := webhooksOf(first)
		present := presentIn(live, all)
		v.want.allWebhooks = len(present) == len(all)
		if !v.want.allWebhooks {
			first = v.partOf(first, present)
		}
	}

	renewed, err := v.putConfiguration(ctx, live, first)
	if err != nil {
		return nil, err
	}
	if v.want.removedExclusions != "" {
		v.memory.contests.store(v.id, v.want.removedExclusions)
	}
	return renewed, nil
}

// partOf returns a copy of a configuration with some of its webhooks. The annotation shows that the
// others are missing.
func (v *visit) partOf(configuration *unstructured.Unstructured, webhooks []any) *unstructured.Unstructured {
	part := configuration.DeepCopy()
	part.Object["webhooks"] = webhooks
	annotate(part, v.opts.key(annotationWhole), "")
	annotate(part, admission.RecordAnnotation, recordOf(part))
	return part
}

// putConfiguration creates a webhook configuration, or replaces its webhooks. Those that others
// have added, and fields that others have added to ours, are removed: the API server may call no
// agent because of them. live is nil without a configuration.
func (v *visit) putConfiguration(
	ctx context.Context, live, wanted *unstructured.Unstructured, opts ...client.PatchOption,
) (*unstructured.Unstructured, error) {
	next := wanted.DeepCopy()
	if live == nil {
		// Create, not apply: an apply would take over a configuration that appeared since the
		// read.
		err := v.Create(ctx, next, client.FieldOwner(fieldOwner))
		return next, v.wrapRequest(err, "create "+wanted.GetKind(), wanted.GetName())
	}

	if webhooksOf(next) == nil {
		next.Object["webhooks"] = nil // Null removes all.
	}
	// An API server refuses another UID.
	next.SetUID(types.UID(remote.Token(string(live.GetUID()))))
	err := v.Patch(ctx, next, client.Merge, append(opts, client.FieldOwner(fieldOwner))...)
	return next, v.wrapRequest(err, "patch "+wanted.GetKind(), wanted.GetName())
}
