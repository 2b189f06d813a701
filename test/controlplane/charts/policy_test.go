package charts

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const installedBy = "operator.kyma-project.io/installed-by"

// policyWatches have each kind of webhook: of a resource, of its status, of a subresource, and of a custom resource.
func policyWatches() []watch.Watch {
	of := func(group, resource string, field core.Field) watch.Watch {
		return watch.Watch{
			Name:    types.NamespacedName{Namespace: "kcp-system", Name: strings.ReplaceAll(resource, "/", "-") + "-" + string(field)},
			Manager: "my-operator", Field: field, Resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource},
			NamespaceSelector: watch.Selector{Labels: map[string]string{"team": "a"}, Requirements: []watch.Requirement{
				{Key: "env", Operator: "NotIn", Values: []string{"test", "dev"}}, {Key: "tier", Operator: "Exists"},
			}},
		}
	}
	return []watch.Watch{
		of("apps", "deployments", core.FieldSpec), of("apps", "statefulsets", core.FieldStatus),
		of("", "pods/eviction", core.FieldSpec), of("shop.example.com", "orders", core.FieldSpec),
	}
}

type ownWebhooks = admissionregistrationv1.ValidatingWebhookConfiguration

// policed applies the policy of a release, and returns the webhooks that its agent makes, a write of the agent, and the end of all.
func policed(t *testing.T) (made *ownWebhooks, write func(*ownWebhooks, ...client.PatchOption) error, clean func()) {
	t.Helper()
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	watches := policyWatches()
	values := append(exampleValues(), "managers=null",
		"webhooks.watchers="+string(rig.Must(json.Marshal(watch.DocumentOf(watches).Items))))
	var parts []string
	for name, object := range objects(t, render(t, agent, values...)) {
		isHook := object.GetAnnotations()["helm.sh/hook"] != ""
		if strings.HasSuffix(name, " runtime-watcher-webhooks") && !isHook {
			parts = append(parts, string(rig.Must(yaml.Marshal(object))))
		}
	}
	kinds := "validatingadmissionpolicybinding,validatingadmissionpolicy,clusterrolebinding,clusterrole"
	clean = func() {
		rig.Kubectl(t, "--kubeconfig", plane.Kubeconfig, "delete", kinds, "runtime-watcher-webhooks", "--ignore-not-found")
		rig.Kubectl(t, "--kubeconfig", plane.Kubeconfig, "delete", "validatingwebhookconfiguration", "runtime-watcher", "--ignore-not-found")
	}
	clean()
	apply(t, plane.Kubeconfig, "policy", strings.Join(parts, "\n---\n")+"\n---\n"+binding)

	config := rest.CopyConfig(plane.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":runtime-watcher"}
	as := rig.Must(client.New(config, client.Options{}))

	pki := rig.NewPKI(t)
	made = rig.Must(admission.WebhookConfiguration("runtime-watcher", admission.Endpoint{
		Service: types.NamespacedName{Namespace: namespace, Name: "runtime-watcher"}, CABundle: pki.CA.PEM,
	}, watches, admission.ConfigurationOptions{Canary: types.NamespacedName{Namespace: namespace, Name: "runtime-watcher-canary"}}))
	made.Annotations[installedBy] = "agent/" + namespace + "/runtime-watcher"
	write = func(next *ownWebhooks, opts ...client.PatchOption) error {
		text := rig.Must(json.Marshal(next))
		opts = append(opts, client.FieldOwner("runtime-watcher-agent"), client.ForceOwnership)
		return as.Patch(t.Context(), next.DeepCopy(), client.RawPatch(types.ApplyPatchType, text), opts...)
	}
	return made, write, clean
}

// binding replaces that of the chart, whose hook has the same name.
const binding = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: runtime-watcher-webhooks}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: runtime-watcher-webhooks}
subjects: [{kind: User, name: "system:serviceaccount:runtime-watcher:runtime-watcher"}]
`

// The policy lets an agent write what it makes of any Watcher, and nothing by which the token reaches further or stays for longer.
func TestThePolicyOfAnAgent(t *testing.T) {
	made, write, clean := policed(t)
	defer clean()
	at := func(text string) int {
		for n := range made.Webhooks {
			if strings.Contains(made.Webhooks[n].Name, text) {
				return n
			}
		}
		t.Fatalf("no webhook %s", text)
		return 0
	}
	canaryAt := at("canary.")
	definitionsAt := at(".definitions.")
	deployments := at("deployments-spec.operator")
	refusals := map[string]struct {
		want string
		edit func(*ownWebhooks)
	}{
		"all leases": {"webhooks.watchers only", func(c *ownWebhooks) { c.Webhooks[canaryAt].NamespaceSelector = &metav1.LabelSelector{} }},
		"leases of another namespace": {"webhooks.watchers only", func(c *ownWebhooks) {
			c.Webhooks[canaryAt].NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] = "kube-node-lease"
		}},
		"each lease of the namespace": {"webhooks.watchers only", func(c *ownWebhooks) { c.Webhooks[canaryAt].MatchConditions = nil }},
		"new definitions": {"webhooks.watchers only", func(c *ownWebhooks) {
			c.Webhooks[definitionsAt].Rules[0].Operations = []admissionregistrationv1.OperationType{"CREATE", "DELETE"}
		}},
		"the resource of a status": {"webhooks.watchers only", func(c *ownWebhooks) {
			c.Webhooks[at("statefulsets-status")].Rules[0].Resources = []string{"statefulsets"}
		}},
		"many webhooks": {"at most", func(c *ownWebhooks) {
			for n := range 3 {
				more := *c.Webhooks[deployments].DeepCopy()
				more.Name = fmt.Sprintf("more-%d.example.com", n)
				c.Webhooks = append(c.Webhooks, more)
			}
		}},
		"slow webhooks":                         {"after 2 s", func(c *ownWebhooks) { c.Webhooks[deployments].TimeoutSeconds = new(int32(3)) }},
		"hasty webhooks":                        {"after 2 s", func(c *ownWebhooks) { c.Webhooks[deployments].TimeoutSeconds = new(int32(1)) }},
		"another mark":                          {"keep its mark", func(c *ownWebhooks) { c.Annotations[installedBy] = "attacker" }},
		"no mark":                               {"keep its mark", func(c *ownWebhooks) { delete(c.Annotations, installedBy) }},
		"a finalizer":                           {"no finalizer", func(c *ownWebhooks) { c.Finalizers = []string{"example.com/stay"} }},
		"an owner":                              {"no owner", func(c *ownWebhooks) { c.OwnerReferences = anOwner() }},
		"namespaces by a label":                 {"select namespaces", func(c *ownWebhooks) { exclude(c, deployments, "pod-security.kubernetes.io/enforce") }},
		"namespaces by a label of the Watchers": {"select namespaces", func(c *ownWebhooks) { exclude(c, deployments, "env", "test", "dev", "prod") }},
		"namespaces without a label of theirs":  {"select namespaces", func(c *ownWebhooks) { exclude(c, deployments, "env") }},
		"namespaces like those of a platform":   {"select namespaces", func(c *ownWebhooks) { exclude(c, deployments, "kubernetes.io/metadata.name", "kube-shop") }},
		"namespaces with another value":         {"select namespaces", func(c *ownWebhooks) { c.Webhooks[deployments].NamespaceSelector.MatchLabels["team"] = "b" }},
		"an annotation":                         {"no annotation", func(c *ownWebhooks) { c.Annotations["cert-manager.io/inject-apiserver-ca"] = "true" }},
		"a label":                               {"no annotation", func(c *ownWebhooks) { c.Labels["example.com/managed"] = "true" }},
		"no opt-out of the enforcer":            {"no annotation", func(c *ownWebhooks) { c.Labels["admissions.enforcer/disabled"] = "false" }},
	}
	refused := func(when string) {
		for name, refusal := range refusals {
			next := made.DeepCopy()
			refusal.edit(next)
			rig.Fails(t, when+name, write(next, client.DryRunAll), refusal.want)
		}
	}
	rig.Eventually(t, rig.Patience, "the policy and the role are in effect", func() bool {
		next := made.DeepCopy()
		refusals["another mark"].edit(next)
		err := write(next, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "keep its mark")
	})
	refused("new: ")
	rig.NoError(t, write(made))
	refused("there: ")

	// Annotations and labels of others, such as those of a GitOps tool, hinder no repair.
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	rig.Kubectl(t, "--kubeconfig", plane.Kubeconfig, "annotate", "validatingwebhookconfiguration", "runtime-watcher", "example.com/by=other")
	rig.Kubectl(t, "--kubeconfig", plane.Kubeconfig, "label", "validatingwebhookconfiguration", "runtime-watcher", "example.com/by=other")
	rig.NoError(t, write(made, client.DryRunAll))
}

func anOwner() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: "default", UID: "1"}}
}

// exclude excludes all values of a label, or some.
func exclude(c *ownWebhooks, at int, label string, values ...string) {
	requirement := metav1.LabelSelectorRequirement{Key: label, Operator: metav1.LabelSelectorOpDoesNotExist}
	if len(values) > 0 {
		requirement.Operator = metav1.LabelSelectorOpNotIn
		requirement.Values = values
	}
	selector := c.Webhooks[at].NamespaceSelector
	selector.MatchExpressions = append(selector.MatchExpressions, requirement)
}
