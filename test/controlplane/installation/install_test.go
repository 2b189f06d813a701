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
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const secretName = "runtime-watcher-tls"

// TestInstallation shares one API server, as each of them has a namespace and a webhook
// configuration of its own. They run one after the other, because it calls the webhooks of all.
func TestInstallation(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	for name, test := range map[string]func(*testing.T, *apiserver.ControlPlane){
		"unchanged": whatIsUnchangedCostsThreeReads, "managers": aNewManagerRestartsNothing,
		"removed":        aRemovedManagerRestarts,
		"two installers": theSecondInstallerIsRefused, "options": allNamesAreSet,
		"order": inOrder, "secret": aNewSecretRestartsNothing, "settings": newSettingsRestart, "watches": newWatchesWait,
		"by hand": webhooksByHandStay, "room": aStalledRolloutServesNewWatches,
		"drift": driftIsCorrected, "exclusion": fieldsThatExcludeOursAreRemoved,
		"two runtimes": aClusterHasOneRuntime, "canary": theCanaryComesAndGoes, "killed": killedAnywhere,
		"today": todaysNamespaceIsWatched, "one pair": oneSecretWithTheKnownKeys,
		"uninstall": nothingIsLeft, "held": theWebhookGoesFirst, "invalid": wrongRuntimesAreRefused,
		"source":         theSourceChanges,
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
	same(t, "writes", want, writes)
	same(t, "without a replica", installation.Status{State: installation.Progressing, Replicas: 2}, status,
		cmpopts.IgnoreFields(installation.Status{}, "Reason", "Message"))
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
	same(t, "webhooks", []string{"canary", "default.first"}, w.webhooks())
	before := w.versions()
	w.install()
	same(t, "a second time changes something", before, w.versions())
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
	same(t, "bundle", w.runtime.Secret["ca.crt"], w.configuration().Webhooks[0].ClientConfig.CABundle)
	var stored corev1.Secret
	w.get(secretName, &stored)
	same(t, "Secret", w.runtime.Secret, stored.Data)
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
	same(t, "webhooks while no agent answers", []string{"default.second"}, w.webhooks())
	w.available(2)
	if former := w.install().Former; len(former) > 0 {
		t.Errorf("former managers: %v, want them reported once", former)
	}
	same(t, "webhooks", []string{"default.second", "default.third"}, w.webhooks())
}

// Where one pod fits, no pod with new settings ever starts. The former replica serves a new watch, also
// when the webhook configuration was deleted meanwhile.
func aStalledRolloutServesNewWatches(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "room")
	w.installed()
	w.opts.Settings = map[string]string{"SETTLE": "2s"}
	w.runtime.Watches = []watch.Watch{watchFor("first"), watchFor("second")}
	w.install()
	w.rollout(stalled())
	if status := w.install(); status.Reason != "RolloutStalled" || status.State != installation.Failed || status.Available != 1 {
		t.Errorf("got %+v, want a stalled rollout and one replica that answers", status)
	}
	want := []string{"default.first", "default.second"}
	same(t, "webhooks", want, w.webhooks())
	rig.NoError(t, w.client.Delete(t.Context(), w.configuration()))
	w.install()
	same(t, "webhooks after their removal", want, w.webhooks())
}

// stalled is the status of a Deployment with a pod that does not start, beside a former one.
func stalled() appsv1.DeploymentStatus {
	return appsv1.DeploymentStatus{
		Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{{
			Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded",
		}},
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
	rig.NoError(t, w.client.Update(t.Context(), configuration))
	w.runtime.Watches = []watch.Watch{watchFor("second")}
	if former := w.install().Former; !slices.Equal(former, []core.Manager{"first"}) {
		t.Errorf("former managers: %v, want the first", former)
	}
	same(t, "webhooks", []string{"default.by-hand", "default.second"}, slices.Sorted(slices.Values(w.webhooks())))
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
	same(t, "webhooks", want, k.configuration().Webhooks)
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

// fieldsThatExcludeOursAreRemoved sets a field beside ours. An object may have only one of the two.
func fieldsThatExcludeOursAreRemoved(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	k := newKept(t, plane, "exclusion", func(*installation.Options) {})
	configuration := k.configuration()
	want := configuration.DeepCopy().Webhooks
	configuration.Webhooks[0].ClientConfig.Service = nil
	configuration.Webhooks[0].ClientConfig.URL = new("https://192.0.2.1/validate/first")
	k.drifts(k.client.Update(t.Context(), configuration))
	same(t, "webhooks", want, k.configuration().Webhooks)
	deployment := k.deployment()
	variables := deployment.Spec.Template.Spec.Containers[0].Env
	wanted := variables[0]
	variables[0].Value, variables[0].ValueFrom = "", &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
	}
	k.drifts(k.client.Update(t.Context(), deployment))
	same(t, "variable", wanted, k.deployment().Spec.Template.Spec.Containers[0].Env[0])
}

// aClusterHasOneRuntime: another one has the same kubeconfig, as after a mistake with a Secret.
func aClusterHasOneRuntime(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "one-runtime")
	w.installed()
	w.runtime.ID, w.runtime.Secret = "another", newSecret(t, "another", "one-runtime")
	if _, err := w.installer().Install(t.Context(), w.runtime); core.Reason(err) != "owned" {
		t.Errorf("got %v, want the reason owned", err)
	}
	if status := w.uninstall(); status.State != installation.Removed {
		t.Errorf("its end: %+v", status)
	}
	if writes := w.since(); len(writes) > 0 {
		t.Errorf("its keys are for another cluster, and nothing here is of it: %v", writes)
	}
}

// drifts installs after a change by hand, which must have succeeded.
func (k *kept) drifts(err error) {
	k.t.Helper()
	rig.NoError(k.t, err)
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
	same(t, "objects after the canary is turned off", without, names(w.versions()))
	same(t, "webhooks", []string{"default.first"}, w.webhooks())
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
	same(t, "removed objects", order, writes)
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
	rig.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Name: w.namespace}, namespace))
	namespace.Spec.Finalizers = nil
	ended := w.client.SubResource("finalize") //nolint:misspell // Its name.
	rig.NoError(w.t, ended.Update(w.t.Context(), namespace))
}

// As long as the API server may call it, the agent stays.
func theWebhookGoesFirst(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "held")
	w.createNamespace()
	w.installed()
	configuration := w.configuration()
	configuration.Finalizers = []string{"example.com/hold"}
	rig.NoError(t, w.client.Update(t.Context(), configuration))
	if status := w.uninstall(); status.State != installation.Progressing ||
		!strings.Contains(status.Message, "ValidatingWebhookConfiguration") {
		t.Errorf("got %+v, want it to wait for the webhook configuration", status)
	}
	w.deployment()
	configuration = w.configuration()
	configuration.Finalizers = nil
	rig.NoError(t, w.client.Update(t.Context(), configuration))
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
			r.Secret["tls.key"] = newSecret(t, "invalid", "invalid")["tls.key"]
		},
		"another Service": func(r *installation.Runtime) { r.Secret = newSecret(t, "invalid", "runtime-watcher") },
		"one pair, another Service": func(r *installation.Runtime) {
			r.Secret = newSecretOfOnePair(t, "invalid", "runtime-watcher")
		},
		"a CA that did not sign it": func(r *installation.Runtime) {
			other := newSecret(t, "invalid", "invalid")
			r.Secret["webhook.crt"], r.Secret["webhook.key"] = other["webhook.crt"], other["webhook.key"]
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
// live. The namespace is older than the agent, or made by it and not marked as its own.
func todaysNamespaceIsWatched(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "kyma-system")
	w.opts.ConfigurationName = "skr-webhook"
	w.createNamespace()
	w.installed()
	own, early := newWorld(t, plane, "own-namespace"), newWorld(t, plane, "early")
	own.installed()
	early.opts.Adjust = func(object *unstructured.Unstructured) {
		if object.GetKind() == "Namespace" {
			object.SetAnnotations(nil)
		}
	}
	early.installed()
	for _, test := range []struct {
		installed *world
		namespace string
		want      bool
	}{
		{w, "kyma-system", true},
		{w, "default", true},
		{w, "kube-system", false},
		{early, "early", true},
		{own, "own-namespace", false},
		{own, "kyma-system", true},
		{own, "kube-system", false},
	} {
		if have := test.installed.watches(test.namespace); have != test.want {
			t.Errorf("installed in %s: objects of %s are watched: %t, want %t", test.installed.namespace, test.namespace, have,
				test.want)
		}
	}
	if status := early.uninstall(); status.State != installation.Removed {
		t.Errorf("the namespace of others is not left: %+v", status)
	}
}

// watches reports whether the API server calls a webhook of the installation for objects of a
// namespace.
func (w *world) watches(namespace string) bool {
	w.t.Helper()
	var stored corev1.Namespace
	rig.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Name: namespace}, &stored))
	selector := rig.Must(metav1.LabelSelectorAsSelector(w.configuration().Webhooks[0].NamespaceSelector))
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
	same(t, "Secret", w.runtime.Secret, stored.Data)
}
