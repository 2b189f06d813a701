package installation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// informerMemory is the limit of config/agent/informer.
const informerMemory = "128Mi"

// installInformer installs agents that watch. The webhook configuration goes first, because these
// agents do not answer. The resync of their start stands in for the changes in between. former are
// the managers that the ConfigMap loses.
func (i *Installer) installInformer(
	ctx context.Context, in *cluster, found existing, want *wanted, former []core.Manager,
) (Status, error) {
	if found.configuration != nil {
		held, err := in.remove(ctx, i.bareConfiguration())
		if err != nil || len(held) > 0 {
			return awaitingEndOf(held), err
		}
		found.configuration = nil
	}
	live, status, err := i.installAgent(ctx, in, found, want)
	if err == nil && status.State == Ready {
		status, err = i.complete(ctx, in, status, i.lookOf(want, found.role, live))
	}
	status.Former = former
	return status, err
}

// roleInto returns a task that gets the role of agents that watch. An installer of webhooks that
// may not read roles has not made one.
func (i *Installer) roleInto(ctx context.Context, in *cluster, into **unstructured.Unstructured) func() error {
	return func() error {
		err := in.getInto(ctx, i.object(roleFile), into)()
		if apierrors.IsForbidden(err) && !i.opts.Informer {
			return nil
		}
		return err
	}
}

// rulesOf returns the least rights to watch: list and watch of each watched resource, and of
// namespaces if a watch selects them by labels. They are sorted.
func rulesOf(watches []watch.Watch) []rbacv1.PolicyRule {
	var resources []schema.GroupResource
	for n := range watches {
		w := &watches[n]
		// The agent reports that a subresource cannot be watched.
		if !strings.Contains(w.Resource.Resource, "/") {
			resources = append(resources, schema.GroupResource{Group: w.Resource.Group, Resource: w.Resource.Resource})
		}
		if !w.NamespaceSelector.IsZero() {
			resources = append(resources, schema.GroupResource{Resource: "namespaces"})
		}
	}
	slices.SortFunc(resources, func(a, b schema.GroupResource) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
	})
	rules := []rbacv1.PolicyRule{} // Not null, so that an apply removes former rules.
	for _, r := range slices.Compact(resources) {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: []string{"list", "watch"},
		})
	}
	return rules
}

// watchersSetting is the value of WATCHERS. Conditions need an API server.
func watchersSetting(watches []watch.Watch) string {
	watches = slices.Clone(watches)
	for n := range watches {
		watches[n].Conditions = nil
	}
	text, err := json.Marshal(watch.DocumentOf(watches))
	if err != nil {
		panic(fmt.Sprintf("watches: %v", err)) // Texts, and maps of texts.
	}
	return string(text)
}
