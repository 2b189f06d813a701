package installation

import (
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

// A canary does not see that one of the other webhooks was changed or removed. The agents that start
// after its correction send the resync that stands in for the writes that it has missed. Each call is
// of a new installer, as after a restart of the operator.
func TestACorrectedWebhookRestartsTheAgents(t *testing.T) {
	w := newWorld(t, rig.SharedAPIServer(t, apiserver.Options{}), "corrected")
	w.opts.NoCanary = false
	w.runtime.Watches = []watch.Watch{watchFor("first"), watchFor("second")}
	w.installed()
	for name, test := range map[string]struct {
		change   func(all *webhooks, first *webhook)
		restarts bool
	}{
		"nothing": {func(*webhooks, *webhook) {}, false},
		"timeout": {func(_ *webhooks, first *webhook) { first.TimeoutSeconds = new(int32(30)) }, false},
		"another webhook": {func(all *webhooks, first *webhook) {
			added := *first.DeepCopy()
			added.Name = "by-hand.example.com"
			*all = append(*all, added)
		}, false},
		"canary":     {func(all *webhooks, _ *webhook) { all.remove("canary.operator.kyma-project.io") }, true},
		"webhook":    {func(all *webhooks, first *webhook) { all.remove(first.Name) }, true},
		"rules":      {otherRules, true},
		"address":    {func(_ *webhooks, first *webhook) { first.ClientConfig.Service.Name = "other" }, true},
		"trust":      {func(_ *webhooks, first *webhook) { first.ClientConfig.CABundle = nil }, true},
		"namespaces": {func(_ *webhooks, first *webhook) { first.NamespaceSelector.MatchLabels = unwatched }, true},
		"objects":    {func(_ *webhooks, first *webhook) { first.ObjectSelector.MatchLabels = unwatched }, true},
		"condition":  {func(_ *webhooks, first *webhook) { first.MatchConditions[0].Expression = "false" }, true},
		"another condition": {func(_ *webhooks, first *webhook) {
			first.MatchConditions = append(first.MatchConditions, admissionregistrationv1.MatchCondition{Name: "other", Expression: "false"})
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := w.configuration().Webhooks
			w.drift(t, test.change)
			restarted := w.corrects(t, w.template())
			rig.Same(t, "webhooks", before, w.configuration().Webhooks)
			if restarted != test.restarts {
				t.Errorf("restarted: %t, want %t", restarted, test.restarts)
			}
		})
	}
	for n, killed := 1, true; killed; n++ {
		before := w.template()
		w.drift(t, otherRules)
		w.fail = n
		_, err := w.installer().Install(t.Context(), w.runtime)
		w.fail = 0
		killed = err != nil
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

// An older copy of the configuration, as of a backup, has the annotation of that time. The first call fails at each of
// its writes in turn, and then at none.
func TestARestoredConfigurationRestartsTheAgents(t *testing.T) {
	w := newWorld(t, rig.SharedAPIServer(t, apiserver.Options{}), "restored")
	w.keep()
	older := w.configuration()
	w.runtime.Watches = append(w.runtime.Watches, watchFor("second"))
	w.installed()
	for n, failed := 1, true; failed; n++ {
		w.now = w.now.Add(2 * time.Hour)
		before := w.template()
		older.ResourceVersion = w.configuration().ResourceVersion
		rig.NoError(t, w.client.Update(t.Context(), older.DeepCopy()))
		w.since()
		w.fail = n
		_, err := w.kept.Install(t.Context(), w.runtime)
		w.fail = 0
		failed = err != nil
		if n > 30 {
			t.Fatalf("still failing without a failing write: %v", err)
		}
		if !w.corrects(t, before) {
			t.Errorf("write %d fails: no restart after the webhook of the second manager was missing", n)
		}
	}
}

// Another controller undoes each correction at once. In four hours the agents restart after 0, 10, 20, 30, 50, 90, 150
// and 210 min, for the writes that were missed until then, and also after the last correction.
func TestAContestOfWebhooksRestartsTheAgentsSeldom(t *testing.T) {
	w := newWorld(t, rig.SharedAPIServer(t, apiserver.Options{}), "contested")
	w.keep()
	restarts := 0
	before := w.template()
	last := installation.Status{}
	for range 4 * 6 {
		w.drift(t, otherRules)
		w.install()
		w.available(1)
		last = w.install()
		if now := w.template(); now != before {
			restarts++
			before = now
		}
		w.now = w.now.Add(10 * time.Minute)
	}
	rig.Same(t, "restarts", 8, restarts)
	w.is(last, installation.Failed, "another program repeatedly changes the webhooks")
	rig.Same(t, "reason", "WebhooksContested", last.Reason)
	w.now = w.now.Add(time.Hour)
	if !w.corrects(t, before) {
		t.Error("no restart after the last correction")
	}
	w.is(w.install(), installation.Ready)
}

type webhook = admissionregistrationv1.ValidatingWebhook

type webhooks []webhook

func (w *webhooks) remove(name string) {
	*w = slices.DeleteFunc(*w, func(w webhook) bool { return w.Name == name })
}

var unwatched = map[string]string{"watched": "no"}

func otherRules(_ *webhooks, first *webhook) { first.Rules[0].Resources[0] = "secrets" }

// drift changes the webhooks by hand. The first one is that of the first manager.
func (w *world) drift(t *testing.T, change func(all *webhooks, first *webhook)) {
	t.Helper()
	configuration := w.configuration()
	n := slices.IndexFunc(configuration.Webhooks, func(w webhook) bool { return w.Name == "default.first.operator.kyma-project.io" })
	change((*webhooks)(&configuration.Webhooks), &configuration.Webhooks[n])
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
		configuration := slices.Index(writes, "patch ValidatingWebhookConfiguration ")
		agents := slices.Index(writes, "apply Deployment ")
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

const brokenConversion = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.conversion.example.com}
spec:
  group: conversion.example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  versions:
  - {name: v1, served: true, storage: true, schema: &any {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v1beta1, served: true, storage: false, schema: *any}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:1/convert"}}
`

// The conversion webhook of a custom resource is away. Writes in the stored version need none, and
// a Watcher of another version must not stop them.
func TestABrokenConversionStopsNoWrite(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	rig.NoError(t, plane.Client.Create(t.Context(), manifests.Object(t, brokenConversion)))
	write := func() error {
		thing := manifests.Object(t, "{apiVersion: conversion.example.com/v1, kind: Thing, metadata: {generateName: thing-}}")
		thing.SetNamespace("default")
		return plane.Client.Create(t.Context(), thing)
	}
	rig.Eventually(t, rig.Patience, "things are served", func() bool { return write() == nil })
	watched := watchFor("conversion")
	watched.Resource = schema.GroupVersionResource{Group: "conversion.example.com", Version: "v1beta1", Resource: "things"}
	configuration := rig.Must(admission.WebhookConfiguration("conversion", admission.Endpoint{
		URL: "https://127.0.0.1:1", CABundle: testpki.Bundle(rig.NewPKI(t).CA),
	}, []watch.Watch{watched}, admission.ConfigurationOptions{}))
	rig.NoError(t, plane.Client.Create(t.Context(), configuration))
	rig.Eventually(t, rig.Patience, "the webhook is called, and away", func() bool {
		rig.NoError(t, write())
		return rig.Sum(rig.ScrapeAPIServer(t, plane), "apiserver_admission_webhook_fail_open_count", `name="default.conversion.`) > 0
	})
}
