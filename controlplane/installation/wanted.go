package installation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// annotationWhole is on a configuration with all webhooks, and changes with them.
const annotationWhole = "whole"

// The struct is the plan of one visit: the objects to apply, and how the runtime differs from them.
// planObjects makes it. After that, only renewConfiguration writes to it (allWebhooks).
type wanted struct {
	// The objects, in the order of their application: early, then late and the deployment, which
	// need the early objects. The managers are among the early objects.
	managers    *unstructured.Unstructured
	early, late []*unstructured.Unstructured
	deployment  *unstructured.Unstructured

	// configuration is nil with an informer. planConfiguration compares it with the one in the
	// runtime, and sets the fields about its webhooks.
	configuration     *unstructured.Unstructured
	allWebhooks       bool       // The runtime has all webhooks: none of them waits for the agent.
	callsMissed       bool       // Others have changed webhooks, so calls may be missing.
	sameWebhooks      bool       // The webhooks are as they should be.
	keptExclusions    exclusions // By others, that the webhooks keep.
	removedExclusions string     // Exclusions by others, as text, that the webhooks lose now.

	// restartWaits means that a restart of the agents is booked, and that the pods follow later. It
	// is set by addObjects.
	restartWaits bool

	record record // of this installation, without the objects that are there
}

// appliedObjects are the objects that a visit applies, except the namespace and the webhook
// configuration.
func (w *wanted) appliedObjects() []*unstructured.Unstructured {
	return append(slices.Concat(w.early, w.late), w.deployment)
}

// renderConfiguration makes the webhook configuration and the record. The other objects depend on
// the comparison of the configuration, and addObjects adds them.
func (r *renderer) renderConfiguration() (*wanted, error) {
	w := &wanted{record: record{parameters: r.sumParameters(), secret: sumOf(r.runtime.Secret)}}
	if r.opts.Informer {
		// Without conditions, which need an API server, the watches report more than they should.
		if err := watch.Validate(r.runtime.Watches); err != nil {
			return nil, fmt.Errorf("installation: runtime %q: %w", r.runtime.ID, err)
		}
		return w, nil
	}

	configuration, err := r.renderWebhooks()
	if err != nil {
		return nil, err
	}
	w.configuration = r.finishObject(&unstructured.Unstructured{Object: contentOf(configuration)})
	w.record.whole = shortSum(sumOf(w.configuration))
	annotate(w.configuration, r.opts.key(annotationWhole), w.record.whole)
	annotate(w.configuration, r.opts.key(annotationRuntime), string(r.runtime.ID))
	return w, nil
}

// restart has the values of annotationRestart.
type restart struct {
	booked string // in the ConfigMap of the managers.
	inPods string // in the pods, which may follow later.
}

// addObjects adds all objects to w, except the namespace and the webhook configuration.
func (r *renderer) addObjects(w *wanted, agents restart) {
	w.restartWaits = agents.inPods != agents.booked
	w.managers = r.renderManagers(agents.booked)
	w.deployment = r.renderDeployment(agents.inPods)
	w.early = append(w.early, w.managers, r.renderSecret())
	if r.runtime.PullSecret != nil {
		w.early = append(w.early, r.renderPullSecret())
	}

	for part, names := range files() {
		if !r.hasPart(part) {
			continue
		}
		for _, file := range names {
			object := r.fillManifest(file)
			if strings.HasSuffix(object.GetKind(), "Binding") {
				w.late = append(w.late, object)
			} else {
				w.early = append(w.early, object)
			}
		}
	}

	for _, object := range w.appliedObjects() {
		annotate(object, r.opts.key(annotationRuntime), string(r.runtime.ID))
	}
}

func (r *renderer) hasPart(part int) bool {
	switch part {
	case partCanary:
		return !r.opts.NoCanary
	case partInformer:
		return r.opts.Informer
	default:
		return true
	}
}

// fillManifest adds the parameters of the runtime to a manifest that has some.
func (r *renderer) fillManifest(file string) *unstructured.Unstructured {
	object := r.manifests.copyOf(file)

	switch file {
	case roleFile:
		var role rbacv1.ClusterRole
		editAs(object, &role, func() { role.Rules = rulesOf(r.runtime.Watches) })
	case policyFile:
		var policy networkingv1.NetworkPolicy
		editAs(object, &policy, func() { openPorts(&policy, r.opts.settings().wayOut(r.address)) })
	}
	return r.finishObject(object)
}

// openPorts opens the way to the control plane, which is the last rule.
func openPorts(policy *networkingv1.NetworkPolicy, ports []int32) {
	last := &policy.Spec.Egress[len(policy.Spec.Egress)-1]
	one := last.Ports[0]
	last.Ports = nil
	for _, port := range ports {
		one.Port = new(intstr.FromInt32(port))
		last.Ports = append(last.Ports, *one.DeepCopy())
	}
}

// rulesOf includes namespaces if a watch selects them by labels.
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
