package installation

import (
	"context"
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
	"k8s.io/apimachinery/pkg/api/resource"
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
	for name, test := range map[string]func(*world){
		"unchanged": whatIsUnchangedCostsThreeReads, "managers": aNewManagerRestartsNothing,
		"removed":        aRemovedManagerRestarts,
		"two-installers": theSecondInstallerIsRefused, "names": allNamesAreSet,
		"proxy": theCredentialsOfAProxyComeAndGo,
		"order": inOrder, "secret": aNewSecretRestartsNothing, "settings": newSettingsRestart, "watches": newWatchesWait,
		"room":         aStalledRolloutServesNewWatches,
		"host-network": theNodesHaveTheirPorts,
		"drift":        driftIsCorrected, "exclusion": fieldsThatExcludeOursAreRemoved,
		"two-runtimes": aClusterHasOneRuntime, "canary": theCanaryComesAndGoes, "killed": killedAnywhere,
		"kyma-system": todaysNamespaceIsWatched, "one-pair": oneSecretWithTheKnownKeys,
		"uninstall": nothingIsLeft, "held": theWebhookGoesFirst, "invalid": wrongRuntimesAreRefused,
		"source":         theSourceChanges,
		"informer":       anInformerThatIsUnchangedCostsTwoReads,
		"informer-names": anInformerHasTheNamesOfTheOptions, "role-race": oneRoleHasOneInstaller, "race": oneOfTwoInstallersWins,
	} {
		t.Run(name, func(t *testing.T) { test(newWorld(t, plane, name)) })
	}
}

func inOrder(w *world) {
	w.opts.NoCanary = false
	want := []string{
		"create Namespace ", "create ConfigMap -managers",
		// At the same time.
		"apply ClusterRole -webhooks", "apply ConfigMap -managers", "apply Lease -canary", "apply NetworkPolicy ", "apply NetworkPolicy -canary",
		"apply PodDisruptionBudget ", "apply Role -canary", "apply Secret -tls", "apply Service ", "apply ServiceAccount ",
		// At the same time.
		"apply ClusterRoleBinding -webhooks", "apply Deployment ", "apply RoleBinding -canary",
	}
	status := w.install()
	writes := w.since()
	if len(writes) == len(want) {
		slices.Sort(writes[2:12])
		slices.Sort(writes[12:])
	}
	rig.Same(w.t, "writes", want, writes)
	rig.Same(w.t, "without a replica", installation.Status{State: installation.Progressing, Replicas: 2}, status,
		cmpopts.IgnoreFields(installation.Status{}, "Reason", "Message"))
	w.available(1)
	w.is(w.install(), installation.Progressing, "Service")
	rig.Same(w.t, "webhooks before the agent answers", []string(nil), w.webhooks())
	w.endpoint()
	rig.Same(w.t, "available", 1, int(w.is(w.install(), installation.Ready).Available))
	writes = w.since()
	rig.Same(w.t, "last write", "create ValidatingWebhookConfiguration ", writes[len(writes)-1])
	rig.Same(w.t, "webhooks", []string{"canary", "default.first"}, w.webhooks())
	before := w.versions()
	w.install()
	rig.Same(w.t, "a second time changes something", before, w.versions())
	egress := get(w, installation.Name, &networkingv1.NetworkPolicy{}).Spec.Egress
	rig.Same(w.t, "port of the control plane", 8443, egress[1].Ports[0].Port.IntValue())
}

// The new bundle comes first: an API server that trusts too much loses nothing.
func aNewSecretRestartsNothing(w *world) {
	w.installed()
	before := w.deployment().Generation
	w.runtime.Secret = w.newSecret("secret")
	w.install()
	writes := w.since()
	configuration := slices.Index(writes, "patch ValidatingWebhookConfiguration ")
	if secret := slices.Index(writes, "apply Secret -tls"); configuration < 0 || configuration > secret {
		w.t.Errorf("the agent gets its certificate before the API server trusts it: %v", writes)
	}
	rig.Same(w.t, "bundle", w.runtime.Secret["ca.crt"], w.configuration().Webhooks[0].ClientConfig.CABundle)
	rig.Same(w.t, "Secret", w.runtime.Secret, get(w, secretName, &corev1.Secret{}).Data)
	rig.Same(w.t, "generation of the Deployment", before, w.deployment().Generation)
}

func newSettingsRestart(w *world) {
	w.installed()
	before := w.deployment().Spec.Template
	w.opts.Settings = map[string]string{"MANAGERS": "by-hand", "SETTLE": "2s", "LOG_LEVEL": "$(POD_NAME)"}
	w.install()
	after := w.deployment().Spec.Template
	env := w.environment()
	if _, set := env["MANAGERS"]; set {
		w.t.Error("managers are in the environment, so that a new one restarts the agents")
	}
	if cmp.Equal(before, after) || env["SETTLE"] != "2s" || w.managers() != "by-hand\nfirst\n" ||
		env["LOG_LEVEL"] != "$$(POD_NAME)" {
		w.t.Errorf("the pods have the environment %v", env)
	}
}

// With the network of nodes, a rollout needs no surplus pod, and the namespace of the installer allows the pods.
func theNodesHaveTheirPorts(w *world) {
	w.opts.HostNetwork = true
	w.opts.WebhookPort = 10260
	w.opts.MetricsPort = 10261
	w.installed()
	pod, container := w.pod()
	rig.Same(w.t, "network", []any{true, corev1.DNSClusterFirstWithHostNet}, []any{pod.HostNetwork, pod.DNSPolicy})
	ports := map[string]int32{}
	for _, port := range container.Ports {
		ports[port.Name] = port.ContainerPort
	}
	rig.Same(w.t, "ports", map[string]int32{"webhook": 10260, "metrics": 10261}, ports)
	rig.Same(w.t, "ports of the agent", []string{"10260", "10261"}, []string{w.environment()["WEBHOOK_PORT"], w.environment()["METRICS_PORT"]})
	rolling := w.deployment().Spec.Strategy.RollingUpdate
	rig.Same(w.t, "maxSurge and maxUnavailable", "0 1", rolling.MaxSurge.String()+" "+rolling.MaxUnavailable.String())
	judged := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "judged"}, Spec: pod}
	rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), judged, client.DryRunAll))

	w.opts.HostNetwork = false
	w.opts.WebhookPort = 0
	w.install()
	pod, container = w.pod()
	rig.Same(w.t, "the network of pods again", false, pod.HostNetwork)
	rig.Same(w.t, "port", "8443", w.environment()["WEBHOOK_PORT"])
	for _, port := range container.Ports {
		rig.Same(w.t, "port of the node for "+port.Name, 0, int(port.HostPort))
	}
}

// Existing webhooks are updated, and none is added, while no agent answers.
func newWatchesWait(w *world) {
	w.runtime.Watches = []watch.Watch{watchFor("first"), watchFor("second")}
	w.installed()
	w.available(0)
	w.runtime.Watches = []watch.Watch{watchFor("second"), watchFor("third")}
	w.formerly("first")
	rig.Same(w.t, "webhooks while no agent answers", []string{"default.second"}, w.webhooks())
	w.available(2)
	w.formerly() // They are reported once.
	rig.Same(w.t, "webhooks", []string{"default.second", "default.third"}, w.webhooks())
}

// Where one pod fits, no pod with new settings ever starts. The former replica serves a new watch, also
// when the webhook configuration was deleted meanwhile.
func aStalledRolloutServesNewWatches(w *world) {
	w.installed()
	w.opts.Settings = map[string]string{"SETTLE": "2s"}
	w.runtime.Watches = []watch.Watch{watchFor("first"), watchFor("second")}
	w.install()
	w.rollout(stalled())
	status := w.is(w.install(), installation.Failed)
	rig.Same(w.t, "reason", "RolloutStalled", status.Reason)
	rig.Same(w.t, "replicas that answer", 1, int(status.Available))
	want := []string{"default.first", "default.second"}
	rig.Same(w.t, "webhooks", want, w.webhooks())
	rig.NoError(w.t, w.client.Delete(w.t.Context(), w.configuration()))
	w.install()
	rig.Same(w.t, "webhooks after their removal", want, w.webhooks())
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

// driftIsCorrected: immediately if it ends watching, and otherwise within an hour.
func driftIsCorrected(w *world) {
	w.keep()
	configuration := w.configuration()
	want := configuration.DeepCopy().Webhooks
	configuration.Webhooks[1].FailurePolicy = new(admissionregistrationv1.Fail)
	configuration.Webhooks[1].ClientConfig.CABundle = nil
	configuration.Webhooks[1].TimeoutSeconds = new(int32(30))
	w.drifts(configuration)
	rig.Same(w.t, "webhooks", want, w.configuration().Webhooks)
	deployment := w.deployment()
	deployment.Spec.Replicas = new(int32(0))
	deployment.Spec.Template.Spec.Containers[0].Image = "another/image"
	w.drifts(deployment)
	rig.Same(w.t, "replicas", 2, int(*w.deployment().Spec.Replicas))
	_, container := w.pod()
	rig.Same(w.t, "image", "agent.example.com/agent:v1", container.Image)
	w.answer(1)
	w.install()
	policy := get(w, installation.Name, &networkingv1.NetworkPolicy{})
	secret := get(w, secretName, &corev1.Secret{})
	policy.Spec.Ingress = nil
	w.now = w.now.Add(time.Hour)
	// It has our mark, and can neither be changed nor become one of another type.
	immutable := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: secretName, Annotations: secret.Annotations}, Immutable: new(true),
	}
	rig.NoError(w.t, errors.Join(w.client.Delete(w.t.Context(), secret),
		w.client.Create(w.t.Context(), immutable),
		w.client.Delete(w.t.Context(), get(w, installation.Name, &corev1.Service{}))))
	w.drifts(policy)
	get(w, installation.Name, &corev1.Service{})
	rig.Same(w.t, "rules", 2, len(get(w, installation.Name, &networkingv1.NetworkPolicy{}).Spec.Ingress))
	rig.Same(w.t, "Secret", w.runtime.Secret, get(w, secretName, &corev1.Secret{}).Data)
}

// fieldsThatExcludeOursAreRemoved sets a field beside ours. An object may have only one of the two.
func fieldsThatExcludeOursAreRemoved(w *world) {
	w.keep()
	configuration := w.configuration()
	want := configuration.DeepCopy().Webhooks
	configuration.Webhooks[0].ClientConfig.Service = nil
	configuration.Webhooks[0].ClientConfig.URL = new("https://192.0.2.1/validate/first")
	w.drifts(configuration)
	rig.Same(w.t, "webhooks", want, w.configuration().Webhooks)
	deployment := w.deployment()
	variables := deployment.Spec.Template.Spec.Containers[0].Env
	wanted := variables[0]
	variables[0].Value = ""
	variables[0].ValueFrom = &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
	}
	w.drifts(deployment)
	_, container := w.pod()
	rig.Same(w.t, "variable", wanted, container.Env[0])
}

// aClusterHasOneRuntime: another one has the same kubeconfig, as after a mistake with a Secret.
func aClusterHasOneRuntime(w *world) {
	w.installed()
	w.runtime.ID, w.runtime.Secret = "another", w.newSecret("another")
	refused(w.t, "another runtime", w.installer(), w.runtime, "owned")
	w.is(w.uninstall(), installation.Removed)
	// Its keys are for another cluster, and nothing here is of it.
	rig.Same(w.t, "writes", []string(nil), w.since())

	// Somebody deletes the ConfigMap, and later also the webhook configuration. Other objects are
	// still those of the first runtime.
	lost := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: installation.Name + "-managers"}}
	configuration := w.configuration()
	for _, object := range []client.Object{lost, configuration} {
		rig.NoError(w.t, w.client.Delete(w.t.Context(), object))
		w.since()
		refused(w.t, "another runtime", w.installer(), w.runtime, "owned")
		w.is(w.uninstall(), installation.Removed)
		w.deployment()
	}
}

// drifts installs after a change by hand.
func (w *world) drifts(changed client.Object) {
	w.t.Helper()
	rig.NoError(w.t, w.client.Update(w.t.Context(), changed))
	w.install()
}

func theCanaryComesAndGoes(w *world) {
	w.installed()
	without := names(w.versions())
	pod, _ := w.pod()
	rig.Same(w.t, "the agent has a token that it does not need", false, *pod.AutomountServiceAccountToken)
	w.opts.NoCanary = false
	w.installed()
	rig.Same(w.t, "objects of the canary", 4, len(w.versions())-len(without))
	w.opts.NoCanary = true
	w.installed()
	rig.Same(w.t, "objects after the canary is turned off", without, names(w.versions()))
	rig.Same(w.t, "webhooks", []string{"default.first"}, w.webhooks())
}

func whatIsUnchangedCostsThreeReads(w *world) {
	w.keep()
	rig.Same(w.t, "available", 1, int(w.is(w.install(), installation.Ready).Available))
	rig.Same(w.t, "writes without a change", []string(nil), w.since())
	want := []string{"Deployment", "EndpointSliceList", "ValidatingWebhookConfiguration"}
	rig.Same(w.t, "reads", want, w.readSince())
	without := w.runtime
	without.Secret = nil
	status, unchanged, err := w.kept.Unchanged(w.t.Context(), without)
	rig.NoError(w.t, err)
	rig.Same(w.t, "unchanged without the Secret", true, unchanged)
	rig.Same(w.t, "available without the Secret", 1, int(status.Available))
	rig.Same(w.t, "reads without the Secret", want, w.readSince())
	without.Watches = append(without.Watches, watchFor("second"))
	_, unchanged, err = w.kept.Unchanged(w.t.Context(), without)
	rig.NoError(w.t, err)
	rig.Same(w.t, "unchanged with another watch", false, unchanged)
	w.runtime.Secret = w.newSecret(w.namespace)
	w.install()
	rig.Same(w.t, "new Secret", w.runtime.Secret, get(w, secretName, &corev1.Secret{}).Data)
}

func aNewManagerRestartsNothing(w *world) {
	w.keep()
	before := w.deployment()
	w.runtime.Watches = append(w.runtime.Watches, watchFor("second"))
	w.is(w.install(), installation.Ready)
	rig.Same(w.t, "Deployment", before.Spec, w.deployment().Spec)
	rig.Same(w.t, "managers", "first\nsecond\n", w.managers())
	rig.Same(w.t, "webhooks", []string{"canary", "default.first", "default.second"}, slices.Sorted(slices.Values(w.webhooks())))
	pod, container := w.pod()
	rig.Same(w.t, "file of the managers", container.VolumeMounts[1].MountPath+"/managers", w.environment()["MANAGERS_FILE"])
	rig.Same(w.t, "ConfigMap", "runtime-watcher-managers", pod.Volumes[1].ConfigMap.Name)
}

// A running agent would send heartbeats for a manager that is gone.
func aRemovedManagerRestarts(w *world) {
	w.keep()
	first := w.deployment().Generation
	w.runtime.Watches = []watch.Watch{watchFor("second")}
	w.install()
	second := w.deployment()
	if second.Generation == first || w.managers() != "second\n" {
		w.t.Errorf("the agents go on with a manager that is gone, and have %q", w.managers())
	}
	w.answer(1)
	for range 3 {
		w.install()
		w.now = w.now.Add(time.Hour)
	}
	w.kept = w.installer() // Another process, without memory.
	w.install()
	rig.Same(w.t, "they are restarted again", second.Spec, w.deployment().Spec)
	w.runtime.Watches = []watch.Watch{watchFor("third")}
	w.install()
	if again := w.deployment(); again.Generation == second.Generation {
		w.t.Error("they are not restarted a second time")
	}
}

// theCredentialsOfAProxyComeAndGo with the Secret of the agent. Only their coming and going restarts it.
func theCredentialsOfAProxyComeAndGo(w *world) {
	w.opts.Settings = map[string]string{"CONTROL_PLANE_PROXY": "http://proxy.example:3128"}
	w.keep()
	const setting, file = "CONTROL_PLANE_PROXY_CREDENTIALS", "/etc/runtime-watcher/tls/proxy-credentials"
	rig.Same(w.t, "setting without credentials", "", w.environment()[setting])
	var generation int64
	for _, credentials := range []string{"agent:one", "agent:two"} {
		w.runtime.ProxyCredentials = []byte(credentials)
		w.install()
		rig.Same(w.t, "setting", file, w.environment()[setting])
		secret := get(w, installation.Name+"-tls", &corev1.Secret{}).Data
		rig.Same(w.t, "credentials", credentials, string(secret["proxy-credentials"]))
		now := w.deployment().Generation
		if generation != 0 {
			rig.Same(w.t, "generation after a rotation", generation, now)
		}
		generation = now
	}
	broken := w.runtime
	broken.ProxyCredentials = []byte("secret")
	refused(w.t, "malformed credentials", w.kept, broken, "invalid_runtime", "ProxyCredentials: want one line, user:password")

	w.runtime.ProxyCredentials = nil
	w.install()
	rig.Same(w.t, "setting afterwards", "", w.environment()[setting])
	_, has := get(w, installation.Name+"-tls", &corev1.Secret{}).Data["proxy-credentials"]
	rig.Same(w.t, "the Secret has credentials afterwards", false, has)

	w.opts.Settings = map[string]string{"CONTROL_PLANE_PROXY": "direct"}
	useless := w.runtime
	useless.ProxyCredentials = []byte("agent:one") // With them, an agent does not start.
	refused(w.t, "credentials for no proxy", w.installer(), useless, "invalid_runtime", "ProxyCredentials: want none with CONTROL_PLANE_PROXY=direct")
}

// allNamesAreSet installs twice into one namespace, with all names and settings of a pod.
func allNamesAreSet(w *world) {
	w.keep()
	opts := w.opts
	opts.Name = "my-agent"
	opts.ConfigurationName = "my-webhooks"
	opts.Owner = "me"
	opts.PriorityClassName = "system-cluster-critical"
	opts.ImagePullSecrets = []string{"pull"}
	opts.Resources = &corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
	}
	installer := rig.Must(installation.New(installation.Parts{Image: "agent.example.com/agent:v1", ControlPlane: ""}, opts))
	r := w.runtime
	r.Secret = newSecretFor(w.t, "names", "my-agent", "names")
	r.ControlPlane = "gateway.example.com:9443"
	// copied installs with a pull secret, and returns its copy, nil for none.
	copied := func(text []byte) map[string][]byte {
		r.PullSecret = text
		_, err := installer.Install(w.t.Context(), r)
		rig.NoError(w.t, err)
		return w.pullSecret()
	}
	for _, text := range []string{`{"auths":{}}`, `{"auths":{"registry.example.com":{}}}`} {
		rig.Same(w.t, "pull secret", map[string][]byte{".dockerconfigjson": []byte(text)}, copied([]byte(text)))
	}
	for _, wrong := range []string{"no JSON", `"` + strings.Repeat("x", 64<<10) + `"`} {
		broken := r
		broken.PullSecret = []byte(wrong)
		refused(w.t, "a wrong pull secret", installer, broken, "invalid_runtime")
	}
	get(w, "my-agent-tls", &corev1.Secret{})
	get(w, "my-agent-managers", &corev1.ConfigMap{})
	pod := get(w, "my-agent", &appsv1.Deployment{}).Spec.Template
	rig.Same(w.t, "pod", corev1.PodSpec{
		PriorityClassName: "system-cluster-critical", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}, {Name: "my-agent-pull"}},
		ServiceAccountName: "my-agent",
	}, corev1.PodSpec{
		PriorityClassName: pod.Spec.PriorityClassName, ImagePullSecrets: pod.Spec.ImagePullSecrets,
		ServiceAccountName: pod.Spec.ServiceAccountName,
	})
	rig.Same(w.t, "memory limit", "128Mi", pod.Spec.Containers[0].Resources.Limits.Memory().String())
	selector := get(w, "my-agent", &corev1.Service{}).Spec.Selector
	for _, labels := range []map[string]string{selector, pod.Labels} {
		rig.Same(w.t, "name of the pods", "my-agent", labels["app.kubernetes.io/name"])
	}
	address := slices.IndexFunc(pod.Spec.Containers[0].Env, func(v corev1.EnvVar) bool { return v.Name == "CONTROL_PLANE_ADDRESS" })
	rig.Same(w.t, "address", "gateway.example.com:9443", pod.Spec.Containers[0].Env[address].Value)
	if copied(nil) != nil || copied([]byte("{}")) == nil {
		w.t.Error("the copy of a pull secret does not come and go with it")
	}
	if status := rig.Must(installer.Uninstall(w.t.Context(), r)); status.State != installation.Progressing {
		w.is(status, installation.Removed)
	}
	rig.Same(w.t, "pull secret", map[string][]byte(nil), w.pullSecret())
	w.deployment() // The other installation of the namespace stays.
}

// pullSecret returns the content of the copy of a pull secret, nil for none.
func (w *world) pullSecret() map[string][]byte {
	w.t.Helper()
	if stored := found(w, w.namespace, "my-agent-pull", &corev1.Secret{}); stored != nil {
		return stored.Data
	}
	return nil
}

func names(versions map[string]string) []string { return slices.Sorted(maps.Keys(versions)) }

// killedAnywhere ends the installer at each of its writes. It then removes the objects, or
// continues the installation.
func killedAnywhere(w *world) {
	w.opts.NoCanary = false
	w.createNamespace()
	n := 1
	for ; ; n++ {
		err := w.dies(n, (*installation.Installer).Install)
		if err == nil {
			break
		}
		if !errors.Is(err, errKilled) || w.webhooks() != nil {
			w.t.Fatalf("killed at write %d: %v, webhooks %v", n, err, w.webhooks())
		}
		w.gone()
		if n%4 == 0 {
			_, _ = w.installer().Install(w.t.Context(), w.runtime)
			w.installed()
			w.gone()
		}
	}
	if n <= 10 {
		w.t.Errorf("killed at %d writes: those of the objects are more", n)
	}
	w.installed()
	for n := 1; w.dies(n, (*installation.Installer).Uninstall) != nil; n++ {
		if n > 1 && w.webhooks() != nil {
			w.t.Errorf("killed at write %d: there are webhooks yet: %v", n, w.webhooks())
		}
	}
	w.gone()
}

// dies ends a call of an installer at one of its writes, and returns the error.
func (w *world) dies(
	at int, call func(*installation.Installer, context.Context, installation.Runtime) (installation.Status, error),
) error {
	w.fail = at
	_, err := call(w.installer(), w.t.Context(), w.runtime)
	w.fail = 0
	w.since()
	return err
}

// gone uninstalls, and wants nothing to be left but a namespace that ends.
func (w *world) gone() {
	w.t.Helper()
	w.is(w.uninstall(), installation.Removed)
	rig.Same(w.t, "left behind", map[string]string{}, w.versions())
	w.since()
}

func nothingIsLeft(w *world) {
	w.is(w.uninstall(), installation.Removed)
	w.installed()
	// No controller finalises namespaces here.
	w.is(w.uninstall(), installation.Progressing, "Namespace")
	order := []string{
		"delete ValidatingWebhookConfiguration ", "delete Deployment ", "delete Secret -tls", "delete PodDisruptionBudget ",
		"delete Service ", "delete NetworkPolicy ",
		"delete ServiceAccount ", "delete ConfigMap -managers", "delete Namespace ",
	}
	rig.Same(w.t, "removed objects", order, w.since())
	rig.Same(w.t, "left behind", map[string]string{}, w.versions())
	rig.Says(w.t, "into a namespace that ends", w.install().Message, "Namespace")
	w.finalise()
	w.is(w.uninstall(), installation.Removed)
}

// finalise ends the namespace, as the controller of namespaces does.
func (w *world) finalise() {
	w.t.Helper()
	namespace := rig.Stored(w.t, w.client, client.ObjectKey{Name: w.namespace}, &corev1.Namespace{})
	namespace.Spec.Finalizers = nil
	ended := w.client.SubResource("finalize") //nolint:misspell // Its name.
	rig.NoError(w.t, ended.Update(w.t.Context(), namespace))
}

// As long as the API server may call it, the agent stays.
func theWebhookGoesFirst(w *world) {
	w.createNamespace()
	w.installed()
	configuration := w.configuration()
	configuration.Finalizers = []string{"example.com/hold"}
	rig.NoError(w.t, w.client.Update(w.t.Context(), configuration))
	w.is(w.uninstall(), installation.Progressing, "ValidatingWebhookConfiguration")
	w.deployment()
	configuration = w.configuration()
	configuration.Finalizers = nil
	rig.NoError(w.t, w.client.Update(w.t.Context(), configuration))
	w.gone()
	rig.Stored(w.t, w.client, client.ObjectKey{Name: w.namespace}, &corev1.Namespace{}) // It is of others.
}

func wrongRuntimesAreRefused(w *world) {
	for name, change := range map[string]func(r *installation.Runtime){
		"another's certificate":     func(r *installation.Runtime) { r.Secret = w.newSecret("another") },
		"another's key":             func(r *installation.Runtime) { r.Secret["tls.key"] = w.newSecret("invalid")["tls.key"] },
		"another Service":           func(r *installation.Runtime) { r.Secret = newSecretFor(w.t, "invalid", installation.Name, "other") },
		"one pair, another Service": func(r *installation.Runtime) { r.Secret = newSecretOfOnePair(w.t, "invalid", "other") },
		"a CA that did not sign it": func(r *installation.Runtime) {
			other := w.newSecret("invalid")
			r.Secret["webhook.crt"] = other["webhook.crt"]
			r.Secret["webhook.key"] = other["webhook.key"]
		},
		"a client certificate that is served": func(r *installation.Runtime) {
			r.Secret["webhook.crt"], r.Secret["webhook.key"] = r.Secret["tls.crt"], r.Secret["tls.key"]
		},
		"half a pair":           func(r *installation.Runtime) { delete(r.Secret, "webhook.key") },
		"no Secret":             func(r *installation.Runtime) { r.Secret = nil },
		"no bundle":             func(r *installation.Runtime) { delete(r.Secret, "ca.crt") },
		"no client":             func(r *installation.Runtime) { r.Client = nil },
		"an address, no port":   func(r *installation.Runtime) { r.ControlPlane = "control-plane.example.com" },
		"a watch of everything": func(r *installation.Runtime) { r.Watches[0].Resource.Resource = "*" },
	} {
		w.t.Run(name, func(t *testing.T) {
			r := w.runtime
			r.Secret, r.Watches = w.newSecret("invalid"), []watch.Watch{watchFor("first")}
			change(&r)
			_, err := w.installer().Install(t.Context(), r)
			reason := core.ReasonOf(err)
			if !core.IsPermanent(err) || reason != "invalid_runtime" && reason != "invalid_configuration" {
				t.Errorf("got %v", err)
			}
			rig.Same(t, "writes", []string(nil), w.since())
		})
	}
	w.opts.Settings = map[string]string{"TRANSPORT": "nats"}
	for id, want := range map[core.RuntimeID]string{"invalid": "no DNS name", "operator": "another ID"} {
		r := w.runtime
		r.ID, r.Secret = id, w.newSecret(string(id))
		refused(w.t, "NATS", w.installer(), r, "invalid_runtime", want)
	}
}

// todaysNamespaceIsWatched installs into kyma-system, where the watched objects of today's fleet
// live. The namespace is older than the agent, or made by it and not marked as its own.
func todaysNamespaceIsWatched(w *world) {
	w.opts.ConfigurationName = "skr-webhook"
	w.createNamespace()
	w.installed()
	own := newWorld(w.t, w.plane, "own-namespace")
	early := newWorld(w.t, w.plane, "early")
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
		rig.Same(w.t, "installed in "+test.installed.namespace+": objects of "+test.namespace+" are watched", test.want,
			test.installed.watches(test.namespace))
	}
	early.is(early.uninstall(), installation.Removed) // The namespace is of others.
}

// watches reports whether the API server calls a webhook of the installation for objects of a
// namespace.
func (w *world) watches(namespace string) bool {
	w.t.Helper()
	stored := rig.Stored(w.t, w.client, client.ObjectKey{Name: namespace}, &corev1.Namespace{})
	selector := rig.Must(metav1.LabelSelectorAsSelector(w.configuration().Webhooks[0].NamespaceSelector))
	return selector.Matches(labels.Set(stored.Labels))
}

func oneSecretWithTheKnownKeys(w *world) {
	w.installed()
	rig.Same(w.t, "served", "/etc/runtime-watcher/tls/webhook.crt", w.environment()["WEBHOOK_TLS_CERT"])
	w.runtime.Secret = newSecretOfOnePair(w.t, "one-pair", "one-pair")
	w.install()
	if certificate, set := w.environment()["WEBHOOK_TLS_CERT"]; set {
		w.t.Errorf("the webhook serves %q, which the Secret does not have", certificate)
	}
	rig.Same(w.t, "Secret", w.runtime.Secret, get(w, secretName, &corev1.Secret{}).Data)
}
