package installation

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const secretName = "runtime-watcher-tls"

// TestInstallation shares one API server, as each of them has a namespace and a webhook
// configuration of its own.
func TestInstallation(t *testing.T) {
	plane := startRuntime(t)
	for name, test := range map[string]func(*testing.T, *apiserver.ControlPlane){
		"unchanged": whatIsUnchangedCostsThreeReads, "managers": aNewManagerRestartsNothing,
		"removed":        aRemovedManagerRestarts,
		"two installers": theSecondInstallerIsRefused, "options": allNamesAreSet,
		"order": inOrder, "secret": aNewSecretRestartsNothing, "settings": newSettingsRestart, "watches": newWatchesWait,
		"by hand": webhooksByHandStay,
		"drift":   driftIsCorrected, "canary": theCanaryComesAndGoes, "killed": killedAnywhere,
		"today": todaysNamespaceIsWatched, "one pair": oneSecretWithTheKnownKeys,
		"uninstall": nothingIsLeft, "held": theWebhookGoesFirst, "invalid": wrongRuntimesAreRefused,
		"former": aFormerAgentIsReplaced, "source": theSourceChanges,
		"informer":       anInformerThatIsUnchangedCostsTwoReads,
		"informer names": anInformerHasTheNamesOfTheOptions, "race": oneOfTwoInstallersWins,
	} {
		t.Run(name, func(t *testing.T) { test(t, plane) })
	}
}

func inOrder(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "in-order")
	w.opts.NoCanary = false
	want := []string{
		"create Namespace ", "create ConfigMap -managers",
		// At the same time.
		"apply ConfigMap -managers", "apply Lease -canary", "apply NetworkPolicy ", "apply NetworkPolicy -canary",
		"apply PodDisruptionBudget ", "apply Role -canary", "apply Secret -tls", "apply Service ", "apply ServiceAccount ",
		// At the same time.
		"apply Deployment ", "apply RoleBinding -canary",
	}
	status, writes := w.install(), w.since()
	if len(writes) == len(want) {
		slices.Sort(writes[2:11])
		slices.Sort(writes[11:])
	}
	if diff := cmp.Diff(want, writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(installation.Status{State: installation.Progressing, Replicas: 2}, status,
		cmpopts.IgnoreFields(installation.Status{}, "Reason", "Message")); diff != "" {
		t.Errorf("without a replica (-want +got):\n%s", diff)
	}
	w.available(1)
	if status := w.install(); status.State != installation.Progressing || !strings.Contains(status.Message, "Service") {
		t.Errorf("got %+v, want it to wait for the Service", status)
	}
	if hooks := w.webhooks(); hooks != nil {
		t.Fatalf("the API server calls %v, before the agent answers", hooks)
	}
	w.endpoint()
	if status := w.install(); status.State != installation.Ready || status.Available != 1 {
		t.Errorf("got %+v, want it ready", status)
	}
	if writes := w.since(); writes[len(writes)-1] != "apply ValidatingWebhookConfiguration " {
		t.Errorf("the webhook configuration is not the last: %v", writes)
	}
	if diff := cmp.Diff([]string{"canary", "default.first"}, w.webhooks()); diff != "" {
		t.Errorf("webhooks (-want +got):\n%s", diff)
	}
	before := w.versions()
	w.install()
	if diff := cmp.Diff(before, w.versions()); diff != "" {
		t.Errorf("a second time changes something (-before +after):\n%s", diff)
	}
	var policy networkingv1.NetworkPolicy
	w.get(installation.Name, &policy)
	if port := policy.Spec.Egress[1].Ports[0].Port.IntValue(); port != 8443 {
		t.Errorf("the agent may reach port %d of the control plane, want that of its address", port)
	}
}

// The new bundle comes first: an API server that trusts too much loses nothing.
func aNewSecretRestartsNothing(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "secret")
	w.installed()
	before := w.deployment().Generation
	w.runtime.Secret = newSecret(t, "secret", "secret")
	w.install()
	writes := w.since()
	configuration, secret := slices.Index(writes, "apply ValidatingWebhookConfiguration "), slices.Index(writes,
		"apply Secret -tls")
	if configuration < 0 || configuration > secret {
		t.Errorf("the agent gets its certificate before the API server trusts it: %v", writes)
	}
	if diff := cmp.Diff(w.runtime.Secret["ca.crt"], w.configuration().Webhooks[0].ClientConfig.CABundle); diff != "" {
		t.Errorf("bundle (-want +got):\n%s", diff)
	}
	var stored corev1.Secret
	w.get(secretName, &stored)
	if diff := cmp.Diff(w.runtime.Secret, stored.Data); diff != "" {
		t.Errorf("Secret (-want +got):\n%s", diff)
	}
	if after := w.deployment().Generation; after != before {
		t.Errorf("the Deployment was changed: generation %d became %d", before, after)
	}
}

// environment returns the settings of the agent.
func (w *world) environment() map[string]string {
	env := map[string]string{}
	for _, variable := range w.deployment().Spec.Template.Spec.Containers[0].Env {
		env[variable.Name] = variable.Value
	}
	return env
}

func newSettingsRestart(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "settings")
	w.installed()
	before := w.deployment().Spec.Template
	w.opts.Settings = map[string]string{"MANAGERS": "by-hand", "SETTLE": "2s", "LOG_LEVEL": "$(POD_NAME)"}
	w.install()
	after, env := w.deployment().Spec.Template, w.environment()
	if _, set := env["MANAGERS"]; set {
		t.Error("managers are in the environment, so that a new one restarts the agents")
	}
	if cmp.Equal(before, after) || env["SETTLE"] != "2s" || w.managers() != "by-hand\nfirst\n" ||
		env["LOG_LEVEL"] != "$$(POD_NAME)" {
		t.Errorf("the pods have the environment %v", env)
	}
}

// Existing webhooks are updated, and none is added, while no agent answers.
func newWatchesWait(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "watches")
	w.runtime.Watches = []watch.Watch{watchFor("first"), watchFor("second")}
	w.installed()
	w.available(0)
	w.runtime.Watches = []watch.Watch{watchFor("second"), watchFor("third")}
	if former := w.install().Former; !slices.Equal(former, []core.Manager{"first"}) {
		t.Errorf("former managers: %v, want the first", former)
	}
	if diff := cmp.Diff([]string{"default.second"}, w.webhooks()); diff != "" {
		t.Errorf("webhooks while no agent answers (-want +got):\n%s", diff)
	}
	w.available(2)
	if former := w.install().Former; len(former) > 0 {
		t.Errorf("former managers: %v, want them reported once", former)
	}
	if diff := cmp.Diff([]string{"default.second", "default.third"}, w.webhooks()); diff != "" {
		t.Errorf("webhooks (-want +got):\n%s", diff)
	}
}

// A webhook that was added by hand stays.
func webhooksByHandStay(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "by-hand")
	w.runtime.Watches = []watch.Watch{watchFor("first"), watchFor("second")}
	w.installed()
	configuration := w.configuration()
	added := *configuration.Webhooks[0].DeepCopy()
	added.Name, added.ClientConfig.Service.Path = "default.by-hand.operator.kyma-project.io",
		new("/validate/by-hand")
	configuration.Webhooks = append(configuration.Webhooks, added)
	if err := w.client.Update(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
	w.runtime.Watches = []watch.Watch{watchFor("second")}
	if former := w.install().Former; !slices.Equal(former, []core.Manager{"first"}) {
		t.Errorf("former managers: %v, want the first", former)
	}
	if diff := cmp.Diff([]string{"default.by-hand", "default.second"},
		slices.Sorted(slices.Values(w.webhooks()))); diff != "" {
		t.Errorf("webhooks (-want +got):\n%s", diff)
	}
}

// driftIsCorrected: at once if it ends watching, and otherwise within an hour.
func driftIsCorrected(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	k := newKept(t, plane, "drift", func(*installation.Options) {})
	configuration := k.configuration()
	want := configuration.DeepCopy().Webhooks
	configuration.Webhooks[1].FailurePolicy = new(admissionregistrationv1.Fail)
	configuration.Webhooks[1].ClientConfig.CABundle = nil
	configuration.Webhooks[1].TimeoutSeconds = new(int32(30))
	k.drifts(k.client.Update(t.Context(), configuration))
	if diff := cmp.Diff(want, k.configuration().Webhooks); diff != "" {
		t.Errorf("webhooks (-want +got):\n%s", diff)
	}
	deployment := k.deployment()
	deployment.Spec.Replicas = new(int32(0))
	deployment.Spec.Template.Spec.Containers[0].Image = "another/image"
	k.drifts(k.client.Update(t.Context(), deployment))
	spec := k.deployment().Spec
	if *spec.Replicas != 2 || spec.Template.Spec.Containers[0].Image != "agent.example.com/agent:v1" {
		t.Errorf("still drifted: %+v", spec)
	}
	k.answer(1)
	k.look()
	policy, secret := &networkingv1.NetworkPolicy{}, &corev1.Secret{}
	k.get(installation.Name, policy)
	policy.Spec.Ingress = nil
	k.get(secretName, secret)
	k.now = k.now.Add(time.Hour)
	k.drifts(errors.Join(k.client.Update(t.Context(), policy), k.client.Delete(t.Context(), secret),
		// It can neither be changed nor become one of another type.
		k.client.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: secretName}, Immutable: new(true),
		}),
		k.client.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: k.namespace, Name: installation.Name,
		}})))
	k.get(installation.Name, &corev1.Service{})
	k.get(installation.Name, policy)
	k.get(secretName, secret)
	if diff := cmp.Diff(k.runtime.Secret, secret.Data); diff != "" || len(policy.Spec.Ingress) != 2 {
		t.Errorf("rules %+v, Secret (-want +got):\n%s", policy.Spec.Ingress, diff)
	}
}

// drifts installs after a change by hand, which must have succeeded.
func (k *kept) drifts(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
	k.look()
}

func theCanaryComesAndGoes(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "canary")
	w.installed()
	without := names(w.versions())
	if pod := w.deployment().Spec.Template.Spec; *pod.AutomountServiceAccountToken {
		t.Error("the agent has a token that it does not need")
	}
	w.opts.NoCanary = false
	w.install()
	w.available(1)
	w.install()
	if with := names(w.versions()); len(with) != len(without)+4 {
		t.Errorf("with the canary there are %v, without %v", with, without)
	}
	w.opts.NoCanary = true
	w.install()
	w.available(1)
	w.install()
	if diff := cmp.Diff(without, names(w.versions())); diff != "" {
		t.Errorf("objects after the canary is turned off (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"default.first"}, w.webhooks()); diff != "" {
		t.Errorf("webhooks (-want +got):\n%s", diff)
	}
}

func names(versions map[string]string) []string { return slices.Sorted(maps.Keys(versions)) }

// killedAnywhere ends the installer at each of its writes. It then removes the objects, or
// continues the installation.
func killedAnywhere(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "killed")
	w.opts.NoCanary = false
	w.createNamespace()
	var complete int
	for n := 1; ; n++ {
		w.fail = n
		_, err := w.installer().Install(t.Context(), w.runtime)
		w.fail = 0
		w.since()
		if err == nil {
			complete = n - 1
			break
		}
		if !errors.Is(err, errKilled) || w.webhooks() != nil {
			t.Fatalf("killed at write %d: %v, webhooks %v", n, err, w.webhooks())
		}
		w.gone()
		if n%4 == 0 {
			_, _ = w.installer().Install(t.Context(), w.runtime)
			w.installed()
			w.gone()
		}
	}
	if complete < 10 {
		t.Errorf("installed with %d writes: those of the objects are more", complete)
	}
	w.installed()
	for n := 1; ; n++ {
		w.fail = n
		_, err := w.installer().Uninstall(t.Context(), w.runtime)
		w.fail = 0
		w.since()
		if err == nil {
			break
		}
		if n > 1 && w.webhooks() != nil {
			t.Errorf("killed at write %d: there are webhooks yet: %v", n, w.webhooks())
		}
	}
	w.gone()
}

// gone uninstalls.
func (w *world) gone() {
	w.t.Helper()
	if status := w.uninstall(); status.State != installation.Removed {
		w.t.Errorf("got %+v, want it removed", status)
	}
	if left := w.versions(); len(left) > 0 {
		w.t.Errorf("left behind: %v", left)
	}
	w.since()
}

func nothingIsLeft(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "uninstall")
	if status := w.uninstall(); status.State != installation.Removed {
		t.Errorf("without an installation: got %+v", status)
	}
	w.installed()
	// No controller finalises namespaces here.
	if status := w.uninstall(); status.State != installation.Progressing ||
		!strings.Contains(status.Message, "Namespace") {
		t.Errorf("got %+v, want it to wait for the namespace", status)
	}
	writes := w.since()
	order := []string{
		"delete ValidatingWebhookConfiguration ", "delete Deployment ", "delete Secret -tls", "delete PodDisruptionBudget ",
		"delete Service ",
		"delete RoleBinding -canary", "delete Role -canary", "delete Lease -canary", "delete NetworkPolicy -canary",
		"delete NetworkPolicy ",
		"delete ServiceAccount ", "delete ConfigMap -managers", "delete Namespace ",
	}
	if diff := cmp.Diff(order, writes); diff != "" {
		t.Errorf("removed objects (-want +got):\n%s", diff)
	}
	if left := w.versions(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if status := w.install(); !strings.Contains(status.Message, "Namespace") {
		t.Errorf("into a namespace that ends: got %+v", status)
	}
	w.finalise()
	if status := w.uninstall(); status.State != installation.Removed {
		t.Errorf("got %+v, want it removed", status)
	}
	w.runtime.Client = nil
	if status := w.uninstall(); status.State != installation.Removed {
		t.Errorf("a runtime that is gone: got %+v", status)
	}
}

// finalise ends the namespace, as the controller of namespaces does.
func (w *world) finalise() {
	w.t.Helper()
	namespace := &corev1.Namespace{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: w.namespace}, namespace); err != nil {
		w.t.Fatal(err)
	}
	namespace.Spec.Finalizers = nil
	ended := w.client.SubResource("finalize") //nolint:misspell // Its name.
	if err := ended.Update(w.t.Context(), namespace); err != nil {
		w.t.Fatal(err)
	}
}

// As long as the API server may call it, the agent stays.
func theWebhookGoesFirst(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "held")
	w.createNamespace()
	w.installed()
	configuration := w.configuration()
	configuration.Finalizers = []string{"example.com/hold"}
	if err := w.client.Update(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
	if status := w.uninstall(); status.State != installation.Progressing ||
		!strings.Contains(status.Message, "ValidatingWebhookConfiguration") {
		t.Errorf("got %+v, want it to wait for the webhook configuration", status)
	}
	w.deployment()
	configuration = w.configuration()
	configuration.Finalizers = nil
	if err := w.client.Update(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
	w.gone()
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: w.namespace}, &corev1.Namespace{}); err != nil {
		t.Errorf("namespace of others: %v", err)
	}
}

func wrongRuntimesAreRefused(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "invalid")
	for name, change := range map[string]func(r *installation.Runtime){
		"another's certificate": func(r *installation.Runtime) { r.Secret = newSecret(t, "another", "invalid") },
		"another's key": func(r *installation.Runtime) {
			r.Secret["tls.key"] = newSecret(t, "invalid",
				"invalid")["tls.key"]
		},
		"another Service": func(r *installation.Runtime) { r.Secret = newSecret(t, "invalid", "runtime-watcher") },
		"one pair, another Service": func(r *installation.Runtime) {
			r.Secret = newSecretOfOnePair(t, "invalid", "runtime-watcher")
		},
		"a CA that did not sign it": func(r *installation.Runtime) {
			r.Secret = withServing(r.Secret, newSecret(t, "invalid", "invalid"))
		},
		"a client certificate that is served": func(r *installation.Runtime) {
			r.Secret["webhook.crt"], r.Secret["webhook.key"] = r.Secret["tls.crt"], r.Secret["tls.key"]
		},
		"half a pair":           func(r *installation.Runtime) { delete(r.Secret, "webhook.key") },
		"no Secret":             func(r *installation.Runtime) { r.Secret = nil },
		"no bundle":             func(r *installation.Runtime) { delete(r.Secret, "ca.crt") },
		"no client":             func(r *installation.Runtime) { r.Client = nil },
		"a watch of everything": func(r *installation.Runtime) { r.Watches[0].Resource.Resource = "*" },
	} {
		t.Run(name, func(t *testing.T) {
			r := w.runtime
			r.Secret, r.Watches = newSecret(t, "invalid", "invalid"), []watch.Watch{watchFor("first")}
			change(&r)
			_, err := w.installer().Install(t.Context(), r)
			reason := core.Reason(err)
			if !core.IsPermanent(err) || reason != "invalid_runtime" && reason != "invalid_configuration" {
				t.Errorf("got %v", err)
			}
			if writes := w.since(); writes != nil {
				t.Errorf("written nevertheless: %v", writes)
			}
		})
	}
	w.opts.Settings = map[string]string{"TRANSPORT": "nats"}
	for id, want := range map[core.RuntimeID]string{"invalid": "no DNS name", "operator": "another ID"} {
		r := w.runtime
		r.ID, r.Secret = id, newSecret(t, string(id), "invalid")
		if _, err := w.installer().Install(t.Context(), r); core.Reason(err) != "invalid_runtime" ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("NATS: got %v, want %s", err, want)
		}
	}
}

// todaysNamespaceIsWatched installs into kyma-system, where the watched objects of today's fleet
// live. The namespace is older than the agent.
func todaysNamespaceIsWatched(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "kyma-system")
	w.opts.ConfigurationName = "skr-webhook"
	w.createNamespace()
	w.installed()
	own := newWorld(t, plane, "own-namespace")
	own.installed()
	for _, test := range []struct {
		installed *world
		namespace string
		want      bool
	}{
		{w, "kyma-system", true},
		{w, "default", true},
		{w, "kube-system", false},
		{own, "own-namespace", false},
		{own, "kyma-system", true},
		{own, "kube-system", false},
	} {
		if have := test.installed.watches(test.namespace); have != test.want {
			t.Errorf("installed in %s: objects of %s are watched: %t, want %t", test.installed.namespace, test.namespace, have,
				test.want)
		}
	}
}

// watches reports whether the API server calls a webhook of the installation for objects of a
// namespace.
func (w *world) watches(namespace string) bool {
	w.t.Helper()
	var stored corev1.Namespace
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: namespace}, &stored); err != nil {
		w.t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(w.configuration().Webhooks[0].NamespaceSelector)
	if err != nil {
		w.t.Fatal(err)
	}
	return selector.Matches(labels.Set(stored.Labels))
}

func oneSecretWithTheKnownKeys(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "one-pair")
	w.installed()
	if certificate := w.environment()["WEBHOOK_TLS_CERT"]; certificate != "/etc/runtime-watcher/tls/webhook.crt" {
		t.Errorf("the webhook serves %q, want the serving certificate", certificate)
	}
	w.runtime.Secret = newSecretOfOnePair(t, "one-pair", "one-pair")
	w.install()
	if certificate, set := w.environment()["WEBHOOK_TLS_CERT"]; set {
		t.Errorf("the webhook serves %q, which the Secret does not have", certificate)
	}
	var stored corev1.Secret
	w.get(secretName, &stored)
	if diff := cmp.Diff(w.runtime.Secret, stored.Data); diff != "" {
		t.Errorf("Secret (-want +got):\n%s", diff)
	}
}
