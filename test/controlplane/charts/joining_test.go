package charts

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

const (
	joins     = core.RuntimeID("runtime-1")
	joiner    = core.Manager("my-operator")
	joining   = "joining" // namespace
	agentHost = "listener.example"
)

// joined is a runtime with an agent that one command has installed.
type joined struct {
	t       *testing.T
	runtime *apiserver.ControlPlane
	node    *node.Node
	fleet   *fleet.Fleet
	changes rig.Arrivals
	resyncs atomic.Int64
}

// join installs the chart in a new runtime, with an issuer of cert-manager and nothing else.
func join(t *testing.T, values ...string) *joined {
	t.Helper()
	pki := rig.NewPKI(t)
	j := newJoined(t, pki, map[string]string{agentImage: rig.Build(t, "cmd/agent")}, func(plane string) map[string]string {
		return map[string]string{agentHost + ":443": plane}
	})
	certmanager.StartT(t, j.runtime.Kubeconfig, certmanager.Options{})
	j.addIssuer(pki.CA)
	j.helm(append([]string{
		"install", "agent", agent, "--set", imageSettings,
		"--set", "tls.issuerRef.name=runtimes,tls.runtime=" + string(joins) + ",tls.domain=" + rig.RuntimeDomain(joins),
		"--set", joiningSettings, "--set-json", joiningWatchers("configmaps"),
	}, values...)...)
	return j
}

const (
	agentImage      = "agent.example/agent:test"
	imageSettings   = "image.repository=agent.example/agent,image.tag=test"
	joiningSettings = "controlPlane.address=" + agentHost + ":443,env.CONTROL_PLANE_SERVER_NAME=localhost,env.HEARTBEAT_INTERVAL=2s," +
		"env.SETTLE=10ms,env.RESEND_AFTER=0s,env.CANARY_INTERVAL=5s"
)

// newJoined starts a control plane, and a runtime with a namespace for the agent. Pods run these
// images, and reach the hosts that are made from the address of the control plane.
func newJoined(t *testing.T, pki *rig.PKI, images map[string]string, hosts func(plane string) map[string]string) *joined {
	t.Helper()
	rig.SkipShort(t)
	j := &joined{t: t, fleet: rig.Must(fleet.New(fleet.Options{}))}
	plane := rig.StartPlane(t, pki, rig.PlaneOptions{
		Listener: listener.Options{Fleet: j.fleet},
		Handler: core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
			if d.Event.Resync {
				j.resyncs.Add(1)
			}
			j.changes.Note(rig.Arrival{Runtime: d.Runtime, Manager: d.Manager, Object: d.Event.Watched.Name}, d.Event.Resync)
			return nil
		}),
	}, joiner)
	j.node = node.New(t, node.Options{Images: images, Hosts: hosts(plane.Addr)})
	j.runtime = apiserver.StartT(t, apiserver.Options{APIServerArgs: j.node.APIServerArgs()})
	j.node.Start(j.runtime)
	rig.Kubectl(t, "--kubeconfig", j.runtime.Kubeconfig, "create", "namespace", joining)
	return j
}

// addIssuer makes an issuer with an intermediate authority. The control plane trusts its root.
func (j *joined) addIssuer(root *testpki.CA) {
	j.t.Helper()
	authority := rig.Must(root.Client("runtimes", testpki.Options{Usages: rig.BothUsages(), Edit: func(template *x509.Certificate) {
		template.IsCA = true
		template.KeyUsage = x509.KeyUsageCertSign
	}}))
	rig.NoError(j.t, j.runtime.Client.Create(j.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: joining, Name: "runtimes"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.TLSCertKey: slices.Concat(authority.CertPEM, root.PEM), corev1.TLSPrivateKeyKey: authority.KeyPEM,
		},
	}))
	issuer := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": map[string]any{"namespace": joining, "name": "runtimes"},
		"spec": map[string]any{"ca": map[string]any{"secretName": "runtimes"}},
	}}
	rig.NoError(j.t, j.runtime.Client.Create(j.t.Context(), issuer))
}

// renews makes cert-manager issue the certificate again, as cmctl does. The agents use it without a restart.
func (j *joined) renews() {
	j.t.Helper()
	before := j.fingerprints()
	rig.NoError(j.t, j.runtime.Client.Get(j.t.Context(), client.ObjectKey{Namespace: joining, Name: "runtime-watcher"}, certificate()))
	patch := client.RawPatch(types.MergePatchType, rig.Must(json.Marshal(map[string]any{"status": map[string]any{
		"conditions": []any{map[string]any{
			"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by a test",
			"lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339),
		}},
	}})))
	rig.NoError(j.t, j.runtime.Client.Status().Patch(j.t.Context(), certificate(), patch))
	rig.Eventually(j.t, rig.Patience, "the agents use the new certificate", func() bool {
		now := j.fingerprints()
		return len(now) == len(before) && !slices.ContainsFunc(now, func(one string) bool { return slices.Contains(before, one) })
	})
	j.is(fleet.Fresh)
	j.reaches("renewed")
}

func certificate() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cert-manager.io/v1", "kind": "Certificate",
		"metadata": map[string]any{"namespace": joining, "name": "runtime-watcher"},
	}}
}

// fingerprints returns those of the client certificates that the replicas use.
func (j *joined) fingerprints() (all []string) {
	for _, replica := range j.fleet.Get(joins, joiner).Replicas {
		if replica.Heartbeat != nil {
			all = append(all, replica.Heartbeat.CertificateFingerprint)
		}
	}
	return all
}

func joiningWatchers(resources ...string) string {
	var all []map[string]any
	for _, resource := range resources {
		all = append(all, map[string]any{
			"metadata": map[string]any{"name": resource, "namespace": "kcp-system"},
			"spec": map[string]any{
				"manager": string(joiner), "resourceToWatch": map[string]any{"group": "", "version": "v1", "resource": resource},
				"labelsToWatch": map[string]any{"watched": "true"},
			},
		})
	}
	return "webhooks.watchers=" + string(rig.Must(json.Marshal(all)))
}

func (j *joined) helm(args ...string) string {
	j.t.Helper()
	out, err := rig.Helm(j.t, append(args, "--namespace", joining, "--kubeconfig", j.runtime.Kubeconfig)...)
	if err != nil {
		j.t.Fatalf("helm %v: %v: %s", args, err, out)
	}
	return out
}

// configuration returns the webhook configuration, nil if there is none.
func (j *joined) configuration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	j.t.Helper()
	live := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	err := j.runtime.Client.Get(j.t.Context(), client.ObjectKey{Name: "runtime-watcher"}, live)
	if apierrors.IsNotFound(err) {
		return nil
	}
	rig.NoError(j.t, err)
	return live
}

// reaches writes objects until one of them arrives: a configuration takes effect after a moment.
func (j *joined) reaches(prefix string) {
	j.t.Helper()
	n := 0
	rig.Eventually(j.t, rig.Patience, "a change of "+prefix+" arrives", func() bool {
		n++
		j.createWatched(fmt.Sprintf("%s-%d", prefix, n))
		return j.arrived(prefix, n)
	})
}

// createWatched creates an object that the agent watches, and returns how long the write took.
func (j *joined) createWatched(name string) time.Duration {
	j.t.Helper()
	begun := time.Now()
	rig.NoError(j.t, j.runtime.Client.Create(j.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{"watched": "true"},
	}}))
	return time.Since(begun)
}

func (j *joined) arrived(prefix string, most int) bool {
	for n := range most {
		if j.hasArrived(fmt.Sprintf("%s-%d", prefix, n+1)) {
			return true
		}
	}
	return false
}

func (j *joined) hasArrived(object string) bool {
	return j.changes.Count(rig.Arrival{Runtime: joins, Manager: joiner, Object: object}) > 0
}

func (j *joined) isWhole() bool {
	live := j.configuration()
	return live != nil && len(admission.Differences(live)) == 0
}

// asAgent returns a client with the rights of the agent's account.
func (j *joined) asAgent() client.Client {
	j.t.Helper()
	config := rest.CopyConfig(j.runtime.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + joining + ":runtime-watcher",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + joining, "system:authenticated"},
	}
	return rig.Must(client.New(config, client.Options{}))
}

// TestARuntimeJoinsByItself installs the chart with one command. cert-manager issues the key material there, and renews it.
// The agent makes its webhook configuration, keeps it against others, and the uninstallation leaves nothing.
func TestARuntimeJoinsByItself(t *testing.T) {
	j := join(t)
	j.reaches("first")
	rig.Eventually(t, rig.Patience, "the runtime is fresh", func() bool { return j.fleet.Get(joins, joiner).State == fleet.Fresh })
	j.renews()

	for _, change := range []struct {
		name string
		do   func(*admissionregistrationv1.ValidatingWebhookConfiguration) error
	}{
		{"deleted", func(live *admissionregistrationv1.ValidatingWebhookConfiguration) error {
			return j.runtime.Client.Delete(t.Context(), live)
		}},
		{"emptied", func(live *admissionregistrationv1.ValidatingWebhookConfiguration) error {
			live.Webhooks = nil
			return j.runtime.Client.Update(t.Context(), live)
		}},
		{"narrowed by a field that server-side apply keeps", func(live *admissionregistrationv1.ValidatingWebhookConfiguration) error {
			for n := range live.Webhooks {
				live.Webhooks[n].MatchConditions = append(live.Webhooks[n].MatchConditions,
					admissionregistrationv1.MatchCondition{Name: "never", Expression: "false"})
			}
			return j.runtime.Client.Update(t.Context(), live)
		}},
	} {
		j.is(fleet.Fresh) // The change before is over.
		before := j.resyncs.Load()
		rig.Eventually(t, rig.Patience, "the change is made: "+change.name, func() bool {
			live := j.configuration()
			return live != nil && change.do(live) == nil
		})
		begun := time.Now()
		var back, known time.Duration // Either may come first.
		rig.Eventually(t, rig.Patience, "the webhooks are back, and the fleet knows of it: "+change.name, func() bool {
			if back == 0 && j.isWhole() {
				back = time.Since(begun)
			}
			if known == 0 && j.fleet.Get(joins, joiner).Reason == fleet.ReasonWebhookChanged {
				known = time.Since(begun)
			}
			return back > 0 && known > 0
		})
		t.Logf("%s: back after at most %.1f s, and known to the fleet after %.1f s", change.name, back.Seconds(), known.Seconds())
		rig.Eventually(t, rig.Patience, "a resync follows: "+change.name, func() bool { return j.resyncs.Load() > before })
		j.reaches(strings.Fields(change.name)[0])
	}
	for _, pod := range j.node.Pods(deployed) {
		rig.Same(t, "restarts of "+pod.Name, 0, pod.Restarts)
	}

	j.refusals()
	j.switchesOffAndOn()

	// New Watchers replace the webhooks of the old replicas.
	j.helm("upgrade", "agent", agent, "--reuse-values", "--set-json", joiningWatchers("secrets"))
	rig.Eventually(t, rig.Patience, "the webhooks are those of the new Watchers", func() bool {
		live := j.configuration()
		return live != nil && len(live.Webhooks) == 2 && strings.HasPrefix(live.Webhooks[1].Name, "kcp-system.secrets.")
	})
	j.leaves()
}

// refusals: who has the token of the agent cannot read more by it.
func (j *joined) refusals() {
	j.t.Helper()
	as := j.asAgent()
	for name, edit := range map[string]func(*admissionregistrationv1.ValidatingWebhookConfiguration){
		"its own Service": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.Service.Name = "other"
		},
		"to its own Service": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.Service = nil
			c.Webhooks[0].ClientConfig.URL = new("https://attacker.example")
		},
		"let writes pass": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			c.Webhooks[0].FailurePolicy = new(admissionregistrationv1.Fail)
		},
		"may watch the resources": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			c.Webhooks[1].Rules[0].Resources = []string{"secrets"}
		},
		"webhooks.watchers only": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			c.Webhooks[1].Rules[0].APIGroups = []string{"*"}
		},
	} {
		live := j.configuration()
		before := live.DeepCopy()
		edit(live)
		rig.Fails(j.t, name, as.Patch(j.t.Context(), live, client.MergeFrom(before), client.DryRunAll), name)
	}

	// An edit that the policy allows passes: the attack arrives.
	live := j.configuration()
	before := live.DeepCopy()
	live.Webhooks[1].ObjectSelector.MatchLabels = nil
	rig.NoError(j.t, as.Patch(j.t.Context(), live, client.MergeFrom(before), client.DryRunAll))

	other := j.configuration()
	other.ObjectMeta = metav1.ObjectMeta{Name: "other"}
	rig.Fails(j.t, "another name", as.Create(j.t.Context(), other.DeepCopy(), client.DryRunAll), "forbidden")
	other.TypeMeta = metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration"}
	rig.Fails(j.t, "an apply with another name", as.Patch(j.t.Context(), other, client.RawPatch(types.ApplyPatchType,
		rig.Must(json.Marshal(other))), client.FieldOwner("attacker"), client.DryRunAll), "forbidden")
	rig.Fails(j.t, "all of them", as.List(j.t.Context(), &admissionregistrationv1.ValidatingWebhookConfigurationList{}), "forbidden")
}

// switchesOffAndOn walks the runbook for an agent that keeps its configuration.
func (j *joined) switchesOffAndOn() {
	j.t.Helper()
	functions := rig.ShortKubectl(j.t, "skr", j.runtime.Kubeconfig, joining)
	endpoint, _, _ := strings.Cut(rig.Runbook(j.t, "### Switch the watcher off in one runtime")[0], "\n")
	rig.Same(j.t, "first command, which tells the procedure", joining+"/runtime-watcher", rig.Shell(j.t, functions, endpoint))

	// A configuration that comes back within the wait fails the commands.
	functions += "fleet() { :; }\ncd " + j.t.TempDir() + "\n" // The second block reads a file of the first one.
	blocks := rig.Runbook(j.t, "#### An agent that keeps its configuration")
	rig.Shell(j.t, functions, strings.Replace(blocks[0], "--timeout=30s", "--timeout=3s && exit 9 || true", 1))
	rig.Eventually(j.t, rig.Patience, "no pod is left", func() bool { return len(j.node.Pods(deployed)) == 0 })
	rig.Same(j.t, "configuration", nil, j.configuration())

	rig.Says(j.t, "wait", rig.Shell(j.t, functions, blocks[1]), "condition met")
	rig.Eventually(j.t, rig.Patience, "the webhooks are back", j.isWhole)
	j.is(fleet.Fresh)
	j.reaches("on")
}

// leaves uninstalls the chart while objects are written. No write waits for an agent that has gone. A busy machine may
// keep an agent from its answer, at most for one of 50 writes.
func (j *joined) leaves() {
	j.t.Helper()
	before := rig.FailedOpen(j.t, j.runtime)
	var longest time.Duration
	written := 0
	stop := rig.Run(j.t, "writes", func(ctx context.Context) error {
		for n := 0; ctx.Err() == nil; n++ {
			begun := time.Now()
			err := j.runtime.Client.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("leaving-%d", n), Labels: map[string]string{"watched": "true"},
			}})
			if err != nil && ctx.Err() == nil {
				return err
			}
			longest = max(longest, time.Since(begun))
			written++
		}
		return nil
	})
	j.helm("uninstall", "agent")
	rig.Eventually(j.t, rig.Patience, "all pods are gone", func() bool { return len(j.node.Pods(deployed)) == 0 })
	stop()
	unanswered := rig.FailedOpen(j.t, j.runtime) - before
	j.t.Logf("%d writes during the uninstallation, the longest took %s; %d were admitted without an answer", written, longest, unanswered)
	if unanswered > written/50 {
		j.t.Errorf("%d of %d writes were admitted without an answer", unanswered, written)
	}

	left := rig.Left(j.t, j.runtime, func(o *metav1.PartialObjectMetadata) bool {
		isOfTest := o.Name == "runtime-watcher-tls" || o.Name == "runtimes" || o.Name == joining || strings.HasPrefix(o.Name, "kube-root-ca")
		return !isOfTest && (strings.HasPrefix(o.Name, "runtime-watcher") || o.Namespace == joining)
	})
	slices.Sort(left)
	// Without garbage collection, objects with an owner stay: endpoint slices, and requests of the certificate.
	left = slices.DeleteFunc(left, func(name string) bool {
		return strings.HasPrefix(name, "EndpointSlice ") || strings.HasPrefix(name, "CertificateRequest ")
	})
	rig.Same(j.t, "left objects", nil, left)
}

// An owner is asked before its configuration is replaced or removed.
func TestAConfigurationOfAnotherOwnerStopsTheInstallation(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	of := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{
		Name: "of-another", Annotations: map[string]string{"operator.kyma-project.io/installed-by": "an operator"},
	}}
	rig.NoError(t, plane.Client.Create(t.Context(), of))
	out, err := rig.Helm(t, "install", "agent", agent, "--namespace", "stopped", "--create-namespace", "--kubeconfig", plane.Kubeconfig,
		"--set", strings.Join(exampleValues(), ","), "--set", "canary.configuration=of-another", "--set-json", joiningWatchers("configmaps"))
	rig.Fails(t, "install", err)
	rig.Says(t, "message", out, `has the owner "an operator"`, "agent/stopped/runtime-watcher", "canary.configuration")
}
