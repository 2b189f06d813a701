package installation

import (
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// A canary does not see that one of the other webhooks was changed or removed. The agents that start
// after its correction send the resync that stands in for the writes that it has missed. Each call is
// of a new installer, as after a restart of the operator.
func TestACorrectedWebhookRestartsTheAgents(t *testing.T) {
	w := newWorld(t, rig.SharedAPIServer(t, apiserver.Options{}), "corrected")
	w.opts.NoCanary = false
	w.runtime.Watches = []watch.Watch{watchFor("first"), watchFor("second")}
	w.installed()
	first := func(c *admissionregistrationv1.ValidatingWebhookConfiguration) *admissionregistrationv1.ValidatingWebhook {
		n := slices.IndexFunc(c.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
			return w.Name == "default.first.operator.kyma-project.io"
		})
		return &c.Webhooks[n]
	}
	for name, test := range map[string]struct {
		change   func(*admissionregistrationv1.ValidatingWebhookConfiguration)
		restarts bool
	}{
		"nothing": {func(*admissionregistrationv1.ValidatingWebhookConfiguration) {}, false},
		"timeout": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			first(c).TimeoutSeconds = new(int32(30))
		}, false},
		"canary": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			c.Webhooks = slices.DeleteFunc(c.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
				return w.Name == "canary.operator.kyma-project.io"
			})
		}, false},
		"webhook": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			c.Webhooks = slices.DeleteFunc(c.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
				return w.Name == first(c).Name
			})
		}, true},
		"rules": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			first(c).Rules[0].Resources[0] = "secrets"
		}, true},
		"address": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			first(c).ClientConfig.Service.Name = "other"
		}, true},
		"trust": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration) { first(c).ClientConfig.CABundle = nil }, true},
		"namespaces": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			first(c).NamespaceSelector.MatchLabels = map[string]string{"watched": "no"}
		}, true},
		"objects": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			first(c).ObjectSelector.MatchLabels = map[string]string{"watched": "no"}
		}, true},
		"condition": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			first(c).MatchConditions[0].Expression = "false"
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w.drift(t, test.change)
			if restarted := w.corrects(t, w.template()); restarted != test.restarts {
				t.Errorf("restarted: %t, want %t", restarted, test.restarts)
			}
		})
	}
	for n, killed := 1, true; killed; n++ {
		before := w.template()
		w.drift(t, func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			first(c).Rules[0].Resources[0] = "secrets"
		})
		w.fail = n
		_, err := w.installer().Install(t.Context(), w.runtime)
		w.fail, killed = 0, err != nil
		if !w.corrects(t, before) {
			t.Errorf("killed at write %d: no restart", n)
		}
	}
	before := w.template()
	w.runtime.Watches = append(w.runtime.Watches, watchFor("third"))
	w.runtime.Secret = w.newSecret(w.namespace)
	if w.corrects(t, before) {
		t.Error("a new watch and a new bundle restart the agents")
	}
}

func (w *world) drift(t *testing.T, change func(*admissionregistrationv1.ValidatingWebhookConfiguration)) {
	t.Helper()
	configuration := w.configuration()
	change(configuration)
	rig.NoError(t, w.client.Update(t.Context(), configuration))
	w.since()
}

// template is empty, or differs after each restart.
func (w *world) template() string {
	return w.deployment().Spec.Template.Annotations["operator.kyma-project.io/managers-removed"]
}

// corrects wants all webhooks as they should be before any agent restarts, and reports whether they restart, at most
// once.
func (w *world) corrects(t *testing.T, before string) bool {
	t.Helper()
	want := []string{"canary"}
	for _, watched := range w.runtime.Watches {
		want = append(want, "default."+string(watched.Manager))
	}
	w.install()
	restarted := w.template()
	if writes := w.since(); restarted != before {
		configuration, agents := slices.Index(writes, "apply ValidatingWebhookConfiguration "), slices.Index(writes, "apply Deployment ")
		if configuration < 0 || configuration > agents {
			t.Errorf("agents restart before the correction, so their resync comes too early: %v", writes)
		}
		rig.Same(t, "webhooks at the restart", want, slices.Sorted(slices.Values(w.webhooks())))
	}
	for range 2 {
		w.available(1)
		w.install()
	}
	rig.Same(t, "webhooks", want, slices.Sorted(slices.Values(w.webhooks())))
	if again := w.template(); again != restarted {
		t.Errorf("restarted again: %q after %q", again, restarted)
	}
	return restarted != before
}
