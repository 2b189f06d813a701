package admission_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

type (
	configuration = admissionregistrationv1.ValidatingWebhookConfiguration
	webhook       = admissionregistrationv1.ValidatingWebhook
)

// stored returns what an API server has after an apply of two watches and a canary.
func stored(t *testing.T) *configuration {
	t.Helper()

	kyma := kymaWatch()
	kyma.NamespaceSelector = watch.Selector{
		Labels: map[string]string{"team": "a"}, Requirements: []watch.Requirement{
			{Key: "env", Operator: "NotIn", Values: []string{"dev"}},
			{Key: "control-plane", Operator: "NotIn", Values: []string{"mine"}},
		},
	}

	made := configure(t, admission.Endpoint{Service: types.NamespacedName{Namespace: "kyma-system", Name: "agent"}},
		admission.ConfigurationOptions{Canary: types.NamespacedName{Namespace: "kyma-system", Name: "agent"}},
		kyma, moduleWatch())

	text, err := json.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}

	live := &configuration{}
	if err := json.Unmarshal(text, live); err != nil {
		t.Fatal(err)
	}

	return live
}

const (
	kymaWebhook   = "kcp-system.kyma.operator.kyma-project.io"
	moduleWebhook = "kcp-system.btp.operator.kyma-project.io"
)

func edit(name string, change func(*webhook)) func(*configuration) {
	return func(live *configuration) {
		at := slices.IndexFunc(live.Webhooks, func(w webhook) bool { return w.Name == name })
		change(&live.Webhooks[at])
	}
}

// narrow adds a requirement to the namespace selector of a webhook.
func narrow(name, key string, operator metav1.LabelSelectorOperator, values ...string) func(*configuration) {
	return edit(name, func(w *webhook) {
		w.NamespaceSelector.MatchExpressions = append(w.NamespaceSelector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values})
	})
}

// A change after which the API server calls the agent for other writes is a difference, and an
// addition by a platform is not.
func TestDifferences(t *testing.T) {
	t.Parallel()

	const nameLabel = "kubernetes.io/metadata.name"
	for title, test := range map[string]struct {
		change func(*configuration)
		want   string // empty: none
	}{
		"nothing": {func(*configuration) {}, ""},
		"a webhook is missing": {func(live *configuration) {
			live.Webhooks = slices.DeleteFunc(live.Webhooks, func(w webhook) bool { return w.Name == moduleWebhook })
		}, moduleWebhook + " is missing"},
		"all webhooks are missing": {func(live *configuration) { live.Webhooks = nil }, kymaWebhook + " is missing"},
		"only certain namespaces": {
			narrow(moduleWebhook, "tier", metav1.LabelSelectorOpIn, "gold"),
			moduleWebhook + ": namespaceSelector changed",
		},
		"a namespace of the user is excluded": {
			narrow(moduleWebhook, nameLabel, metav1.LabelSelectorOpNotIn, "shop"),
			moduleWebhook + ": namespaceSelector changed",
		},
		"less of what the watch selects by": {
			narrow(kymaWebhook, "team", metav1.LabelSelectorOpNotIn, "a"),
			kymaWebhook + ": namespaceSelector changed",
		},
		"more of what the watch excludes": {
			narrow(kymaWebhook, "env", metav1.LabelSelectorOpNotIn, "prod"),
			kymaWebhook + ": namespaceSelector changed",
		},
		"the whole label that the watch excludes by": {
			narrow(kymaWebhook, "env", metav1.LabelSelectorOpDoesNotExist),
			kymaWebhook + ": namespaceSelector changed",
		},
		"other objects": {edit(moduleWebhook, func(w *webhook) {
			w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"watched": "yes"}}
		}), moduleWebhook + ": objectSelector changed"},
		"fewer operations": {edit(kymaWebhook, func(w *webhook) {
			w.Rules[0].Operations = w.Rules[0].Operations[:1]
		}), kymaWebhook + ": rules changed"},
		"another condition": {edit(kymaWebhook, func(w *webhook) {
			w.MatchConditions = append(w.MatchConditions, admissionregistrationv1.MatchCondition{Name: "no", Expression: "false"})
		}), kymaWebhook + ": matchConditions changed"},
		"a failure policy": {edit(kymaWebhook, func(w *webhook) {
			w.FailurePolicy = new(admissionregistrationv1.Fail)
		}), kymaWebhook + ": failurePolicy"},
		"a match policy": {edit(kymaWebhook, func(w *webhook) {
			w.MatchPolicy = new(admissionregistrationv1.Exact)
		}), kymaWebhook + ": failurePolicy"},
		"another path": {edit(kymaWebhook, func(w *webhook) {
			w.ClientConfig.Service.Path = new("/elsewhere")
		}), kymaWebhook + ": clientConfig changed"},
		"another CA": {edit(kymaWebhook, func(w *webhook) {
			w.ClientConfig.CABundle = []byte("other")
		}), kymaWebhook + ": caBundle differs"},
		"no record": {func(live *configuration) { live.Annotations = nil }, "no valid record"},
		"two changes": {edit(kymaWebhook, func(w *webhook) {
			w.Rules = nil
			w.ObjectSelector = nil
		}), "rules changed, objectSelector changed"},

		"a shorter timeout": {edit(kymaWebhook, func(w *webhook) { w.TimeoutSeconds = new(int32(1)) }), ""},
		"a new CA in all": {func(live *configuration) {
			for n := range live.Webhooks {
				live.Webhooks[n].ClientConfig.CABundle = []byte("rotated")
			}
		}, ""},
		"the enforcer of AKS": {narrow(moduleWebhook, "control-plane", metav1.LabelSelectorOpDoesNotExist), ""},
		"its newer form":      {narrow(moduleWebhook, "kubernetes.azure.com/managedby", metav1.LabelSelectorOpNotIn, "aks"), ""},
		"the enforcer, beside an exclusion of the watch": {
			narrow(kymaWebhook, "control-plane", metav1.LabelSelectorOpNotIn, "true"), "",
		},
		"the namespaces of a platform": {narrow(moduleWebhook, nameLabel, metav1.LabelSelectorOpNotIn, "kube-public", "gke-managed"), ""},
		"an API server without match conditions": {func(live *configuration) {
			for n := range live.Webhooks {
				live.Webhooks[n].MatchConditions = nil
			}
		}, ""},
		"another order": {func(live *configuration) {
			slices.Reverse(live.Webhooks)
			for n := range live.Webhooks {
				slices.Reverse(live.Webhooks[n].Rules[0].Operations)
				slices.Reverse(live.Webhooks[n].MatchConditions)
			}
		}, ""},
		"a webhook of others": {func(live *configuration) {
			live.Webhooks = append(live.Webhooks, webhook{Name: "guest.example.com"})
		}, ""},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()

			live := stored(t)
			test.change(live)
			found := strings.Join(admission.Differences(live), "; ")
			if (found == "") != (test.want == "") || !strings.Contains(found, test.want) {
				t.Errorf("differences %q, want %q", found, test.want)
			}
		})
	}

	if found := admission.Differences(nil); len(found) != 1 || !strings.Contains(found[0], "missing") {
		t.Errorf("without a configuration: %q", found)
	}
}

// The record belongs to the administrator of the runtime: no text of it may break the agent.
func TestUnrecorded(t *testing.T) {
	t.Parallel()

	live := stored(t)
	if names := admission.Unrecorded(live); len(names) > 0 {
		t.Errorf("unrecorded in an applied configuration: %q", names)
	}

	live.Webhooks = append(live.Webhooks, webhook{Name: "guest"})
	if names := admission.Unrecorded(live); !slices.Equal(names, []string{"guest"}) {
		t.Errorf("unrecorded beside a webhook of another program: %q", names)
	}

	delete(live.Annotations, admission.RecordAnnotation)
	if names := admission.Unrecorded(live); len(names) != len(live.Webhooks) {
		t.Errorf("unrecorded without a record: %q, want all of %d", names, len(live.Webhooks))
	}
}

func FuzzDifferences(f *testing.F) {
	f.Add(`{"namespaceSelectors":[null],"webhooks":{"a":{"n":7}}}`)
	f.Add(`{"webhooks":null}`)
	f.Add(`[]`)
	f.Fuzz(func(_ *testing.T, record string) {
		live := &configuration{Webhooks: []webhook{{Name: "a"}}}
		live.Annotations = map[string]string{admission.RecordAnnotation: record}
		_ = admission.Differences(live)
	})
}
