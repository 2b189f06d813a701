package installation

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// A program of the platform changes all webhooks, again after each of our writes, for four hours with a reconcile each 10
// minutes. Only what a Watcher loses by the change is a fault.
func TestAPlatformChangesTheWebhooks(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	rig.NoError(t, plane.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "tenant", Labels: map[string]string{"control-plane": "controller-manager"},
	}}))
	rig.NoError(t, plane.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "gatekeeper-system", Labels: map[string]string{"platform": "yes"},
	}}))
	exclude := func(key string, values ...string) func(*webhook) {
		added := metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: values}
		if len(values) == 0 {
			added.Operator = metav1.LabelSelectorOpDoesNotExist
		}
		return func(w *webhook) {
			has := func(e metav1.LabelSelectorRequirement) bool { return e.Key == key }
			if !slices.ContainsFunc(w.NamespaceSelector.MatchExpressions, has) {
				w.NamespaceSelector.MatchExpressions = append(w.NamespaceSelector.MatchExpressions, added)
			}
		}
	}
	reverse := func(w *webhook) {
		slices.Reverse(w.NamespaceSelector.MatchExpressions)
		for n := range w.NamespaceSelector.MatchExpressions {
			slices.Reverse(w.NamespaceSelector.MatchExpressions[n].Values)
		}
		slices.Reverse(w.Rules[0].Operations)
	}
	for name, test := range map[string]struct {
		edits    []func(*webhook)
		state    installation.State
		restarts int
		says     []string // in the notice or the message
	}{
		"control": {nil, installation.Ready, 0, nil},
		"aks": {
			[]func(*webhook){exclude("kubernetes.azure.com/managedby", "aks"), exclude("control-plane", "true"), reverse},
			installation.Ready, 0,
			[]string{`"admissionsenforcer"`, "kubernetes.azure.com/managedby notin (aks)", "control-plane notin (true)"},
		},
		"reorder":            {[]func(*webhook){reverse}, installation.Ready, 0, nil},
		"platform-namespace": {[]func(*webhook){exclude("platform", "yes")}, installation.Ready, 0, []string{"platform notin (yes)"}},
		"timeouts": {[]func(*webhook){func(w *webhook) {
			w.TimeoutSeconds = new(int32(1))
		}}, installation.Ready, 0, nil},
		// The former enforcer of AKS: it excludes the namespaces of all operators that kubebuilder has scaffolded.
		"wanted-namespace": {
			[]func(*webhook){exclude("control-plane")},
			installation.Failed, 1,
			[]string{"!control-plane", `"admissionsenforcer"`, "1 namespaces, tenant"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, plane, "platform-"+name)
			w.runtime.Watches[0].NamespaceSelector.Requirements = nil
			w.keep()
			writes := 0
			restarts := 0
			before := w.template()
			last := installation.Status{}
			platform := func() {
				c := w.configuration()
				changed := c.DeepCopy()
				for n := range changed.Webhooks {
					for _, edit := range test.edits {
						edit(&changed.Webhooks[n])
					}
				}
				rig.NoError(t, w.plane.Client.Update(t.Context(), changed, client.FieldOwner("admissionsenforcer")))
			}
			for range 4 * 6 {
				platform()
				w.install()
				platform()
				w.available(1)
				last = w.install()
				w.available(1)
				if now := w.template(); now != before {
					restarts++
					before = now
				}
				for _, write := range w.since() {
					if write == "patch ValidatingWebhookConfiguration " {
						writes++
					}
				}
				w.now = w.now.Add(10 * time.Minute)
			}
			rig.Same(t, "state", test.state, last.State)
			rig.Same(t, "restarts in 4 h", test.restarts, restarts)
			if writes > 2 {
				t.Errorf("%d corrections of the webhooks, which the platform undoes again", writes)
			}
			for _, part := range test.says {
				if !strings.Contains(last.Notice+last.Message, part) {
					t.Errorf("status %+v, want it to name %s", last, part)
				}
			}
			if test.says == nil && last.Notice != "" {
				t.Errorf("notice %q without an exclusion", last.Notice)
			}
			rig.Same(t, "opt-out of the enforcer", "true", w.configuration().Labels["admissions.enforcer/disabled"])
		})
	}
	t.Run("labels", func(t *testing.T) {
		w := newWorld(t, plane, "platform-labels")
		w.opts.Webhooks.Labels = map[string]string{"team": "fleet"}
		w.installed()
		rig.Same(t, "labels", map[string]string{
			"team": "fleet", "app.kubernetes.io/name": installation.Name, "admissions.enforcer/disabled": "true",
		}, w.configuration().Labels)
	})
}
