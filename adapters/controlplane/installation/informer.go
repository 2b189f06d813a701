package installation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// informerName is that of the network policy of agents with [SourceInformer].
const informerName = "runtime-watcher-informer"

// watches reports whether the agents watch, and serve no webhook.
func (i *Installer) watches() bool { return i.opts.Source == SourceInformer }

// installInformer installs agents that watch. The webhook configuration goes first, because these
// agents do not answer. The resync of their start stands in for the changes in between.
func (i *Installer) installInformer(
	ctx context.Context, in *cluster, r *Runtime, namespace *unstructured.Unstructured, ownNamespace bool,
) (Status, error) {
	if err := validateWatches(r); err != nil {
		return Status{}, err
	}
	held, err := in.remove(ctx, []*unstructured.Unstructured{i.emptyConfiguration()})
	if err != nil {
		return Status{}, err
	}
	if len(held) > 0 {
		return awaitingEndOf(held), nil
	}
	former, err := i.formerManagers(ctx, in, r)
	if err != nil {
		return Status{}, err
	}
	status, err := i.installAgent(ctx, in, r, namespace, ownNamespace)
	if err == nil && status.State == Ready {
		err = i.prune(ctx, in)
	}
	return finished(status, former, err)
}

// validateWatches refuses watches that no source can have.
func validateWatches(r *Runtime) error {
	for n := range r.Watches {
		if err := r.Watches[n].Validate(); err != nil {
			return fmt.Errorf("installation: runtime %q: watch %s: %w", r.ID, r.Watches[n].Name, err)
		}
	}
	return nil
}

// formerManagers returns the managers of the present Deployment that the new one does not name.
func (i *Installer) formerManagers(ctx context.Context, in *cluster, r *Runtime) ([]core.Manager, error) {
	live, err := in.get(ctx, i.object("deployment.yaml"))
	if err != nil || live == nil {
		return nil, err
	}
	var deployment appsv1.Deployment
	if err := in.decode(live, &deployment); err != nil {
		return nil, err
	}
	return without(managersOf(&deployment), i.Managers(r.Watches)), nil
}

// managersOf returns the managers in the setting of an agent.
func managersOf(deployment *appsv1.Deployment) (managers []core.Manager) {
	for _, container := range deployment.Spec.Template.Spec.Containers {
		for _, variable := range container.Env {
			if variable.Name != settingManagers {
				continue
			}
			for name := range strings.SplitSeq(variable.Value, ",") {
				if manager, err := core.ParseManager(name); err == nil {
					managers = append(managers, manager)
				}
			}
		}
	}
	return managers
}

// informerObjects are the rights of the agents, and their way to the API server.
func (i *Installer) informerObjects(watches []admission.Watch) []*unstructured.Unstructured {
	policy := i.object("canary/networkpolicy.yaml")
	policy.SetName(informerName)
	objects := []*unstructured.Unstructured{policy, i.clusterRole(rulesOf(watches)), i.clusterRoleBinding()}
	for _, object := range objects {
		i.opts.Adjust(object)
	}
	return objects
}

// removeInformer removes the rights of the informer. An installer that may not remove them has not
// made them.
func (i *Installer) removeInformer(ctx context.Context, in *cluster) error {
	objects := i.informerObjects(nil)
	slices.Reverse(objects)
	_, err := in.remove(ctx, objects)
	if apierrors.IsForbidden(err) && !i.watches() {
		return nil
	}
	return err
}

// informerMeta has a name that is unique in the runtime, as that of the configuration is.
func (i *Installer) informerMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: i.opts.ConfigurationName + "-informer", Labels: map[string]string{"app.kubernetes.io/name": Name},
	}
}

func (i *Installer) clusterRole(rules []rbacv1.PolicyRule) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: content(&rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: i.informerMeta(), Rules: rules,
	})}
}

func (i *Installer) clusterRoleBinding() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: content(&rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: i.informerMeta(),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: i.informerMeta().Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: i.opts.Namespace, Name: Name}},
	})}
}

// rulesOf returns the least rights to watch: list and watch of each watched resource, and of
// namespaces if a watch selects them by labels. They are sorted.
func rulesOf(watches []admission.Watch) []rbacv1.PolicyRule {
	var resources []schema.GroupResource
	for n := range watches {
		w := &watches[n]
		resources = append(resources, schema.GroupResource{Group: w.Resource.Group, Resource: w.Resource.Resource})
		if w.NamespaceSelector != nil {
			resources = append(resources, schema.GroupResource{Resource: "namespaces"})
		}
	}
	slices.SortFunc(resources, func(a, b schema.GroupResource) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
	})
	rules := []rbacv1.PolicyRule{} // Not null, so that an apply removes former rules.
	for _, r := range slices.Compact(resources) {
		if strings.Contains(r.Resource, "/") {
			continue // The agent reports that a subresource cannot be watched.
		}
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: []string{"list", "watch"},
		})
	}
	return rules
}

// watchersSetting is the value of WATCHERS: a list of Watchers in JSON, sorted by name.
func watchersSetting(watches []admission.Watch) string {
	sorted := slices.Clone(watches)
	slices.SortFunc(sorted, func(a, b admission.Watch) int { return strings.Compare(a.Name.String(), b.Name.String()) })
	items := make([]map[string]any, len(sorted))
	for n := range sorted {
		items[n] = watcherOf(&sorted[n])
	}
	text, err := json.Marshal(map[string]any{"kind": "WatcherList", "items": items})
	if err != nil {
		panic(fmt.Sprintf("watches: %v", err)) // Texts, and maps of texts.
	}
	return string(text)
}

// watcherOf returns the fields of a Watcher that the agent reads. Conditions need an API server.
func watcherOf(w *admission.Watch) map[string]any {
	return map[string]any{
		"kind":     "Watcher",
		"metadata": map[string]any{"namespace": w.Name.Namespace, "name": w.Name.Name},
		"spec": map[string]any{
			"manager": string(w.Manager), "field": string(cmp.Or(w.Field, core.FieldSpec)),
			"resourceToWatch": map[string]any{
				"group": w.Resource.Group, "version": w.Resource.Version, "resource": w.Resource.Resource,
			},
			"labelsToWatch": w.Labels, "labelExpressionsToWatch": w.LabelExpressions,
			"namespaceSelector": w.NamespaceSelector,
		},
	}
}
