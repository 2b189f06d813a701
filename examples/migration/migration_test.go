package migration

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

// ourName begins the names of our objects in the runtimes.
const ourName = "watcher-agent"

// former names the Deployment of the former agent.
func (w *world) former() types.NamespacedName {
	return types.NamespacedName{Namespace: today.Namespace, Name: w.shape.Name()}
}

// TestMigration reads docs/platforms/migration.md aloud: forward to a new CA, back to where it began, and forward
// again to the end. Then it reads how a fleet takes the names of ADR 009. All the time objects change in three
// runtimes, 20 a second.
func TestMigration(t *testing.T) {
	w := newWorld(t, today.Today, "kyma-1", "kyma-2", "kyma-3")
	w.agentsAre(todaysImage)
	w.everywhereArrives("today")
	w.steps.Done("today: 3 runtimes report to an operator behind the gateway")
	for _, m := range w.members {
		w.startFlow(m)
	}
	w.aloud(7)
	w.backwards()
	w.nothingOfOursIsLeft()
	w.steps.Done("back:    nothing of ours is left in the runtimes, the control plane or the checkout")
	w.aloud(8)
	w.nothingOfTodayIsLeft()
	w.rename()
	w.steps.Done("renaming: kind, gateway and Secret have the names of ADR 009")
	w.settle(19.5, w.members...)
	w.noDoubles()
	w.steps.Done("end:     each write is one event, and nothing of today is left")
	w.resendsAreSpared()
	w.steps.Done("end:     a resend of a write that a reconcile has read starts none")
	w.steps.Log(t)
	w.allRan()
	w.checkRights(installation.RenamedSKRWebhook(today.Namespace))
}

// TestRenamedMigration begins with the names that ADR 009 of lifecycle-manager plans: those of its
// agent begin with runtime-watcher, the kind is RuntimeWatcher, and the Secrets have other names. The
// test has its own process, because the registry of metrics is one for a process. It follows
// TestMigration, because the API servers of both are too many for a small machine.
func TestRenamedMigration(t *testing.T) {
	rig.SkipShort(t)
	const inside = "RENAMED_MIGRATION"
	if os.Getenv(inside) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRenamedMigration$", "-test.v", "-test.timeout=20m")
		child.Env = append(os.Environ(), inside+"=true")
		out, err := child.CombinedOutput()
		t.Logf("%s", out)
		rig.NoError(t, err)
		return
	}

	w := newWorld(t, today.Next, "kyma-4")
	w.agentsAre(todaysImage)
	w.everywhereArrives("today")
	w.startFlow(w.members[0])
	w.aloud(6)
	w.settle(0, w.members...)
	w.noDoubles()
	w.steps.Done("end:     each write is one event, and nothing of the former agent is left")
	w.steps.Log(t)
	w.checkRights(installation.SKRWebhook(today.Namespace))
}

// setImage sets the image of one runtime first, which the former operator skips meanwhile. Another
// one was skipped before, on purpose, and still is.
func (w *world) setImage() {
	w.ours = newOurs(w)
	onPurpose := w.members[len(w.members)-1]
	w.replacing(func() {
		if len(w.members) > 1 {
			w.skip(onPurpose, "true")
		}
		shows(w, w.plane, w.members[0].kyma, "-n kcp-system get kymas -l '!operator.kyma-project.io/skip-reconciliation'")
		// A reconcile that runs meanwhile may set the former image again, as the guide says.
		w.eventually("the first Deployment keeps the image", func() bool {
			set := w.block("set image", "KYMA="+w.members[0].kyma)
			w.operator.Set(func(*today.Duties) {}) // after the reconcile
			return set && w.members[0].image(w.t, w.former()) == dropinImage
		})
		w.agentIs(w.members[0], dropinImage)
		w.operator.Set(func(d *today.Duties) { d.Image = dropinImage })
		w.mustBlock("watcher-agent/image-")
		if len(w.members) > 1 {
			if labels := w.kymaOf(onPurpose).GetLabels(); labels["operator.kyma-project.io/skip-reconciliation"] != "true" {
				w.t.Errorf("%s is no longer skipped: %v", onPurpose.kyma, labels)
			}
			w.skip(onPurpose, "")
		}
		w.agentsAre(dropinImage)
		w.everywhereArrives("image")
	})
	w.asToday()
}

// skip sets the label that keeps the operator away from a Kyma, or removes it.
func (w *world) skip(m *member, value string) {
	w.t.Helper()
	patch := `{"metadata": {"labels": {"operator.kyma-project.io/skip-reconciliation": null}}}`
	if value != "" {
		patch = strings.Replace(patch, "null", strconv.Quote(value), 1)
	}
	w.must(w.plane.Client.Patch(w.t.Context(), w.kymaOf(m), client.RawPatch(types.MergePatchType, []byte(patch))))
}

func (w *world) kymaOf(m *member) *unstructured.Unstructured {
	w.t.Helper()
	return w.object(today.Today.WatcherKind().GroupVersion().WithKind("Kyma"), m.kyma)
}

// returnImage ends with an agent that sends no resync when it starts: the next one of ours does.
func (w *world) returnImage() {
	w.replacing(func() {
		w.operator.Set(func(d *today.Duties) { d.Image = todaysImage })
		w.agentsAre(todaysImage)
		w.everywhereArrives("back-image")
	})
	w.leaveToToday()
}

func (w *world) setListener() {
	w.mustBlock("2-listener.patch")
	w.mustBlock("go mod edit")
	last := w.members[len(w.members)-1]
	w.ours.registers = true
	w.ours.release(2) // The operator starts although the names of the aliases are registered.
	w.ours.registers = false
	w.dryRun(last)
	w.mustBlock("2-pinning.patch")
	w.ours.release(2)
	w.ingress.Lead(today.Service, w.ours.addr)
	w.everywhereArrives("listener")
	w.refused(last)
}

// dryRun takes, counts and logs events by another gateway, and those of a runtime with a wrong
// domain. The commands of the guide list the Kyma of that runtime alone.
func (w *world) dryRun(m *member) {
	strict := w.ours.opts
	w.ours.opts.DryRun = true
	w.ours.opts.GatewayNames = []string{"spiffe://other.local/gateway"}
	w.domain(m, wrongDomain)
	w.ours.release(2)
	w.ours.opts = strict
	w.ingress.Lead(today.Service, w.ours.addr)
	w.everywhereArrives("dry-run")
	w.eventually("events that would be refused are counted, also with the name of today", func() bool {
		text := w.metrics()
		return rig.Sum(text, "watcher_listener_requests_total") > 0 && rig.Sum(text, "runtime_watcher_listener_requests_total",
			`code="200"`, `contract="v2"`, `manager="lifecycle-manager"`, `reason="untrusted_proxy"`) > 0
	})
	w.eventually("the Kyma with the wrong domain is listed", func() bool {
		return w.block("would be refused") && strings.Contains(w.last, m.kyma)
	})
	for _, other := range w.members {
		if other != m && strings.Contains(w.last, other.kyma) {
			w.t.Errorf("%s would not be refused, and is listed:\n%s", other.kyma, w.last)
		}
	}
	w.domain(m, m.domain())
}

// metrics are those of the operator.
func (w *world) metrics() []byte {
	families, err := metrics.Registry.Gather()
	w.must(err)
	var text bytes.Buffer
	for _, family := range families {
		_, err := expfmt.MetricFamilyToText(&text, family)
		w.must(err)
	}
	return text.Bytes()
}

func (w *world) returnListener() {
	w.mustBlock("apply -R")
	w.release()
	w.ingress.Lead(today.Service, w.formerAt)
	w.ours.stop()
	metrics.Registry = prom.NewRegistry() // It is another process.
	today.RegisterMetrics(metrics.Registry)
	w.everywhereArrives("back-listener")
	w.mustBlock("delete -f")
}

func (w *world) setWatchers() {
	w.operator.Set(func(d *today.Duties) { d.Watchers = false })
	if w.shape == today.Today {
		w.stored("v1beta1", "v1beta2")
	}
	w.mustBlock("3-config.patch")
	if w.shape == today.Next {
		w.renameDefinition()
	}
	w.ours.release(3)
	w.watcherIsOurs()
	w.everywhereArrives("watchers")
}

func (w *world) returnWatchers() {
	w.mustBlock("apply -R")
	w.ours.release(2)
	w.operator.Set(func(d *today.Duties) { d.Watchers = true })
	w.mustBlock("subresource=status")
	w.watcherIsTodays()
	w.everywhereArrives("back-watchers")
}

func (w *world) setCertificates() {
	shows(w, w.plane, "renewalTime", "-n istio-system get certificate "+w.shape.CACertificate()+" -o yaml")
	w.operator.Set(func(d *today.Duties) { d.Gateway = false })
	w.mustBlock("4-certificates.patch")
	w.ours.release(4)
	w.serverIsLeafOf("klm-watcher-selfsigned-ca")
	w.renewFormer()
	w.everywhereArrives("certificates")
}

// returnCertificates runs the check of the way back until it succeeds, as the guide says.
func (w *world) returnCertificates() {
	const check = "echo returned"
	w.mustBlock("apply -R")
	w.ours.release(3)
	w.operator.Set(func(d *today.Duties) { d.Gateway = true })
	if w.run(w.find(check)) {
		w.t.Error("the check of the way back of step 4 succeeds before anything is done")
	}
	w.mustBlock("touched=")
	w.mustBlock(check)
	w.mustBlock("touched-")
	if !w.certificateIn(w.shape.GatewaySecret()).IsCA {
		w.t.Error("the gateway does not serve the CA again")
	}
	// A garbage collector would do that, and there is none. Their owners are gone.
	w.must(w.plane.Client.DeleteAllOf(w.t.Context(), &certv1.CertificateRequest{}, client.InNamespace(today.PlaneNamespace)))
	w.everywhereArrives("back-gateway")
}

func (w *world) addAgents() {
	for _, m := range w.members {
		w.mustBlock("runtime.yaml", "RUNTIME="+m.Kubeconfig)
	}
	w.mustBlock("5-agents.patch")
	last := len(w.members) - 1
	wake := w.hibernate(w.members[last])
	w.ours.release(5)
	for _, awake := range w.members[:last] {
		w.configurationsOf(awake, w.both()...)
	}
	wake()
	w.configurationsAre(w.both()...)
	w.everywhereArrives("both")
	w.fresh()
}

// both are the webhook configurations of the former agent and of ours, as an API server lists them.
func (w *world) both() []string {
	names := []string{w.shape.Name(), ourName}
	slices.Sort(names)
	return names
}

func (w *world) removeAgents() {
	w.ours.opts.Leave = func(client.Object) bool { return true }
	w.ours.release(5)
	w.weLeft()
	w.mustBlock("apply -R")
	w.ours.opts.Leave = nil
	w.ours.release(4)
	for _, m := range w.members {
		w.mustBlock("delete -f", "RUNTIME="+m.Kubeconfig)
	}
	w.everywhereArrives("back-agents")
}

func (w *world) removeFormer() {
	w.operator.Set(func(d *today.Duties) { d.Image = "" })
	w.mustBlock("6-removal.patch")
	if w.shape == today.Next { // Both shapes have the same code for it, and agents wait between attempts.
		w.keepFormer()
	}
	w.ours.release(6)
	w.onlyOurs()
	w.nothingOfTodayIsInRuntimes()
	w.everywhereArrives("ours")
	w.fresh()
}

// keepFormer has a gateway that lets no event of contract v3 through, so that the runtimes are not
// fresh. The former agents stay.
func (w *world) keepFormer() {
	w.ingress.Refuse("/v3")
	w.ours.release(6)
	w.eventually("the former agents are needed", func() bool {
		return !slices.ContainsFunc(w.members, func(m *member) bool {
			status, _ := w.ours.states.Load(m.kyma)
			w.last = fmt.Sprintf("status of %s: %+v", m.kyma, status)
			last, _ := status.(installation.Status)
			return last.Reason != "FormerNeeded"
		})
	})
	w.configurationsAre(w.both()...)
	w.ingress.Refuse("")
}

func (w *world) addFormer() {
	w.mustBlock("apply -R")
	w.ours.release(5)
	w.operator.Set(func(d *today.Duties) { d.Image = dropinImage })
	w.agentsAre(dropinImage)
	w.configurationsAre(w.both()...)
	w.everywhereArrives("back-both")
}

// rotate replaces the CA of today by one of ours.
func (w *world) rotate() {
	w.mustBlock("rotate-ca")
	w.ours.release(6) // The operator reads the annotation every five minutes, and when it starts.
	w.serverIsLeafOf("watcher-ca-")
	w.everywhereArrives("rotated")
}

// cleanUp is the step without a way back.
func (w *world) cleanUp() {
	w.mustBlock("8-end.patch")
	w.ours.release(8)
	w.mustBlock("delete secrets")
	w.everywhereArrives("removed")
}

// everywhereArrives writes objects in each runtime until one arrives.
func (w *world) everywhereArrives(name string) {
	w.t.Helper()
	for _, m := range w.members {
		var written []string
		w.eventually(fmt.Sprintf("an object of step %s arrives from %s", name, m.kyma), func() bool {
			object := today.WatchedKyma(m.kyma, fmt.Sprintf("%s-%d-%d", name, w.steps.Len(), len(written)))
			written = append(written, object.GetName())
			w.must(m.Client.Create(w.t.Context(), object))
			for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
				if slices.ContainsFunc(written, func(object string) bool { return w.record.Count(arrival(m.id, object)) > 0 }) {
					return true
				}
			}
			return false
		})
	}
}

// agentsAre returns when each Deployment of today has one ready pod with that image.
func (w *world) agentsAre(image string) {
	w.t.Helper()
	for _, m := range w.members {
		w.agentIs(m, image)
	}
}

func (w *world) agentIs(m *member, image string) {
	w.t.Helper()
	w.eventually("the agent of "+m.kyma+" has the image "+image, func() bool {
		pods := m.node.Pods(w.former())
		return len(pods) == 1 && pods[0].Ready && !pods[0].Ending && m.image(w.t, w.former()) == image &&
			m.runsOurs(w.t, w.former()) == (image == dropinImage)
	})
}

// asToday wants our image to send the body of today to the path of today, in FIPS mode as the
// Deployment sets it, and to have the metrics of today.
func (w *world) asToday() {
	for _, m := range w.members {
		events := w.listener.Events()
		at := slices.IndexFunc(events, func(e today.Event) bool {
			return e.Runtime == m.id && strings.HasPrefix(e.Watched.Name, "image-")
		})
		if at < 0 {
			w.t.Fatalf("no event of %s has its runtime ID", m.kyma)
		}
		want := fmt.Sprintf(`{"watched":{"Namespace":"kyma-system","Name":%q},`+
			`"watchedGvk":{"group":"operator.kyma-project.io","version":"v1beta2","kind":"Kyma"}}`, events[at].Watched.Name)
		if events[at].Body != want || events[at].Path != "/v2/lifecycle-manager/event" {
			w.t.Errorf("%s: got %+v, want the body %s", m.kyma, events[at], want)
		}
		w.eventually(m.kyma+" has requests, and FIPS mode 2, in its metrics", func() bool {
			text, err := m.node.Get(w.t.Context(), w.former(), "metrics-port", "/metrics")
			return err == nil && rig.Sum(text, "watcher_kcp_requests_total") > 0 && rig.Sum(text, "watcher_fips_mode") == 2
		})
	}
}

// runsOurs asks the process itself. An agent of today serves no metrics here.
func (m *member) runsOurs(t *testing.T, key types.NamespacedName) bool {
	t.Helper()
	text, err := m.node.Get(t.Context(), key, "metrics-port", "/metrics")
	return err == nil && strings.Contains(string(text), "runtime_watcher_agent_build_info")
}

func (m *member) image(t *testing.T, key types.NamespacedName) string {
	t.Helper()
	deployment := &appsv1.Deployment{}
	if m.Client.Get(t.Context(), key, deployment) != nil {
		return ""
	}
	return deployment.Spec.Template.Spec.Containers[0].Image
}

// object reads one of the control plane.
func (w *world) object(kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
	w.t.Helper()
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(kind)
	w.must(w.plane.Client.Get(w.t.Context(), types.NamespacedName{Namespace: today.PlaneNamespace, Name: name}, stored))
	return stored
}

func (w *world) watcher() *unstructured.Unstructured {
	w.t.Helper()
	return w.object(w.shape.WatcherKind(), "klm-watcher")
}

func (w *world) route() string {
	w.t.Helper()
	return fmt.Sprint(w.object(today.RouteKind(), "klm-watcher").Object["spec"])
}

func (w *world) secret(key types.NamespacedName) *corev1.Secret {
	w.t.Helper()
	secret := &corev1.Secret{}
	w.must(w.plane.Client.Get(w.t.Context(), key, secret))
	return secret
}

func conditionsOf(w *unstructured.Unstructured) (names []string) {
	conditions, _, _ := unstructured.NestedSlice(w.Object, "status", "conditions")
	for _, condition := range conditions {
		fields, _ := condition.(map[string]any)
		names = append(names, fmt.Sprint(fields["type"]))
	}
	return names
}

// stored wants the definition of Watchers to have stored versions of today.
func (w *world) stored(versions ...string) {
	w.t.Helper()
	definition := today.Watchers(true)
	w.must(w.plane.Client.Get(w.t.Context(), client.ObjectKeyFromObject(definition), definition))
	have, _, _ := unstructured.NestedStringSlice(definition.Object, "status", "storedVersions")
	if !slices.Equal(have, versions) {
		w.t.Errorf("stored versions %v, want %v", have, versions)
	}
}

// watcherIsOurs wants the existing VirtualService to be taken over, and finalizer and condition to
// be gone.
func (w *world) watcherIsOurs() {
	w.eventually("our controller keeps the Watcher", func() bool {
		stored := w.watcher()
		return len(stored.GetFinalizers()) == 0 && slices.Equal(conditionsOf(stored), []string{"RouteReady", "Ready"}) &&
			strings.Contains(w.route(), "/v3/lifecycle-manager/")
	})
}

func (w *world) watcherIsTodays() {
	w.eventually("the controller of today keeps the Watcher", func() bool {
		stored := w.watcher()
		return slices.Equal(stored.GetFinalizers(), []string{today.Finalizer}) &&
			slices.Equal(conditionsOf(stored), []string{"VirtualService"}) &&
			!strings.Contains(w.route(), "/v3/")
	})
}

func (w *world) gatewaySecret() *corev1.Secret {
	w.t.Helper()
	return w.secret(w.shape.GatewaySecret())
}

// serverIsLeafOf wants the gateway to serve a certificate that a CA has signed, and is not. The name of
// the CA begins with ca.
func (w *world) serverIsLeafOf(ca string) {
	w.t.Helper()
	w.eventually("the gateway serves a certificate of "+ca, func() bool {
		certificate := w.certificateIn(w.shape.GatewaySecret())
		return !certificate.IsCA && strings.HasPrefix(certificate.Issuer.CommonName, ca)
	})
}

// renewFormer lets cert-manager renew the CA of today, with another key, and a certificate that it
// signs then.
func (w *world) renewFormer() {
	w.renew(w.shape.CACertificate(), w.shape.CA())
	w.ours.release(4) // It reads the CA every five minutes, and when it starts.
	issued := w.shape.RuntimeSecret(w.members[0].kyma)
	leaf := w.renew(issued.Name, issued)
	w.eventually("the gateway trusts a renewed certificate of today", func() bool {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(w.gatewaySecret().Data["ca.crt"])
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err == nil
	})
}

// renew returns the next certificate of the PKI of today in a Secret.
func (w *world) renew(name string, secret types.NamespacedName) *x509.Certificate {
	w.t.Helper()
	before := w.certificateIn(secret)
	w.eventually(name+" is to be renewed", func() bool {
		stored := &certv1.Certificate{}
		w.must(w.plane.Client.Get(w.t.Context(), types.NamespacedName{Namespace: secret.Namespace, Name: name}, stored))
		stored.Status.Conditions = append(stored.Status.Conditions, certv1.CertificateCondition{
			Type: certv1.CertificateConditionIssuing, Status: cmmeta.ConditionTrue, Reason: "Test", Message: "It is renewed",
		})
		return w.plane.Client.Status().Update(w.t.Context(), stored) == nil // Not while another one writes it.
	})
	w.eventually(name+" is renewed", func() bool { return !w.certificateIn(secret).Equal(before) })
	return w.certificateIn(secret)
}

func (w *world) certificateIn(key types.NamespacedName) *x509.Certificate {
	w.t.Helper()
	block, _ := pem.Decode(w.secret(key).Data["tls.crt"])
	certificate, err := x509.ParseCertificate(block.Bytes)
	w.must(err)
	return certificate
}

func (m *member) configurations(t *testing.T) (names []string) {
	t.Helper()
	var list admissionregistrationv1.ValidatingWebhookConfigurationList
	rig.NoError(t, m.Client.List(t.Context(), &list))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

func (w *world) configurationsAre(names ...string) {
	w.t.Helper()
	for _, m := range w.members {
		w.configurationsOf(m, names...)
	}
}

func (w *world) configurationsOf(m *member, names ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s has the webhook configurations %v", m.kyma, names), func() bool {
		return slices.Equal(m.configurations(w.t), names)
	})
}

// refused gives a runtime a wrong domain for a while. Its events wait, and those of others do not.
func (w *world) refused(m *member) {
	w.t.Helper()
	w.domain(m, wrongDomain)
	var name string
	n := 0
	w.eventually("our listener refuses "+m.kyma, func() bool {
		object := today.WatchedKyma(m.kyma, fmt.Sprintf("refused-%d-%d", w.steps.Len(), n))
		name = object.GetName()
		n++
		w.must(m.Client.Create(w.t.Context(), object))
		text, err := m.node.Get(w.t.Context(), w.former(), "metrics-port", "/metrics")
		return err == nil && strings.Contains(string(text), `result="forbidden"`) && w.record.Count(arrival(m.id, name)) == 0
	})
	w.domain(m, m.domain())
	w.eventually("the events that waited arrive", func() bool { return w.record.Count(arrival(m.id, name)) > 0 })
}

const wrongDomain = "other.kyma.example.com"

func (m *member) domain() string { return m.id + ".kyma.example.com" }

func (w *world) domain(m *member, domain string) {
	w.t.Helper()
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(today.Today.WatcherKind().GroupVersion().WithKind("Kyma"))
	object.SetNamespace(today.PlaneNamespace)
	object.SetName(m.kyma)
	patch := fmt.Sprintf(`{"metadata": {"annotations": {"skr-domain": %q}}}`, domain)
	w.must(w.plane.Client.Patch(w.t.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// hibernate puts an API server that does not answer into the kubeconfig of a runtime, until wake.
func (w *world) hibernate(m *member) (wake func()) {
	set := func(host string) {
		secret := w.secret(types.NamespacedName{Namespace: today.PlaneNamespace, Name: "kubeconfig-" + m.kyma})
		secret.Data["config"] = bytes.ReplaceAll(m.rights.kubeconfig(w.t), []byte(m.rights.config.Host), []byte(host))
		w.must(w.plane.Client.Update(w.t.Context(), secret))
	}
	set("https://" + rig.Address(rig.FreePort(w.t)))
	return func() { set(m.rights.config.Host) }
}

func (w *world) onlyOurs() {
	w.configurationsAre(ourName)
	for _, m := range w.members {
		w.eventually("no pod of today is left in "+m.kyma, func() bool {
			return len(m.node.Pods(w.former())) == 0
		})
		w.settled(m)
	}
}

// settled returns when both of our agents are ready.
func (w *world) settled(m *member) {
	w.eventually("both of our agents are ready in "+m.kyma, func() bool {
		pods := m.node.Pods(types.NamespacedName{Namespace: today.Namespace, Name: ourName})
		return len(pods) == 2 && !slices.ContainsFunc(pods, func(p node.Pod) bool { return !p.Ready || p.Ending })
	})
}

// fresh wants heartbeats of contract v3 through the gateway.
func (w *world) fresh() {
	w.t.Helper()
	for _, m := range w.members {
		w.eventually(m.kyma+" is fresh", func() bool {
			return w.ours.opts.Listener.Fleet.Get(core.RuntimeID(m.id), today.Manager).State == fleet.Fresh
		})
	}
}

// weLeft returns when nothing of ours is in the runtimes. The finalizer leaves at last, and a list of all objects is
// expensive.
func (w *world) weLeft() {
	w.configurationsAre(w.shape.Name())
	for _, m := range w.members {
		w.eventually("the finalizer of "+m.kyma+" is removed", func() bool {
			return len(w.object(today.Today.WatcherKind().GroupVersion().WithKind("Kyma"), m.kyma).GetFinalizers()) == 0
		})
		w.eventually("nothing of ours is left in "+m.kyma, func() bool { return len(leftIn(w.t, m.ControlPlane, ourName)) == 0 })
	}
}

// leftIn are all objects of a cluster with one of the prefixes of their names.
func leftIn(t *testing.T, plane *apiserver.ControlPlane, prefixes ...string) []string {
	t.Helper()
	return rig.Left(t, plane, func(o *metav1.PartialObjectMetadata) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(o.Name, p) })
	})
}

func (w *world) nothingOfOursIsLeft() {
	names := []string{"watcher-", "klm-runtime-watcher"}
	w.checkoutIsUnchanged()
	for _, m := range w.members {
		names = append(names, m.id)
		if left := leftIn(w.t, m.ControlPlane, ourName, "klm-runtime-watcher"); len(left) > 0 {
			w.t.Errorf("left in %s: %v", m.kyma, left)
		}
	}
	if left := leftIn(w.t, w.plane, names...); len(left) > 0 {
		w.t.Errorf("left in the control plane: %v", left)
	}
	kept := w.gatewaySecret()
	added, err := time.Parse(time.RFC3339, kept.Annotations["caAddedToBundleAt"])
	if err != nil || time.Since(added) > 24*time.Hour {
		w.t.Errorf("the time of the CA in the bundle is %v, %v, want that of the way back", added, err)
	}
	delete(kept.Annotations, "caAddedToBundleAt")
	for key := range w.secret(w.shape.CA()).Annotations {
		if !strings.HasPrefix(key, "cert-manager.io/") {
			w.t.Errorf("left at the Secret of the CA: %s", key)
		}
	}
	if len(kept.Labels)+len(kept.Annotations) > 0 {
		w.t.Errorf("left at the gateway's Secret: %v, %v", kept.Labels, kept.Annotations)
	}
}

// nothingOfTodayIsInRuntimes asks for the object that leaves at last, before it lists all.
func (w *world) nothingOfTodayIsInRuntimes() {
	w.t.Helper()
	former := installation.SKRWebhook(today.Namespace)
	if w.shape == today.Next {
		former = installation.RenamedSKRWebhook(today.Namespace)
	}
	last := former[len(former)-1]
	for _, m := range w.members {
		w.eventually("nothing of today is left in "+m.kyma, func() bool {
			status, _ := w.ours.states.Load(m.kyma)
			w.last = fmt.Sprintf("%s is there, status: %+v", last.GetName(), status)
			if err := m.Client.Get(w.t.Context(), client.ObjectKeyFromObject(last), last.DeepCopy()); !apierrors.IsNotFound(err) {
				return false
			}
			left := leftIn(w.t, m.ControlPlane, w.shape.Name(), "kyma-project.io--", "kyma-reader", "read-kymas")
			w.last = fmt.Sprintf("left: %v, status: %+v", left, status)
			return len(left) == 0
		})
	}
}

func (w *world) nothingOfTodayIsLeft() {
	w.nothingOfTodayIsInRuntimes()
	// The Watcher, its route and the Gateway go on, with their names. There is no garbage collector.
	stay := []string{"Watcher", "VirtualService", "Gateway", "Kyma", "CertificateRequest"}
	left := slices.DeleteFunc(leftIn(w.t, w.plane, "klm-watcher", "kyma-"), func(name string) bool {
		kind, _, _ := strings.Cut(name, " ")
		return slices.Contains(stay, kind)
	})
	if len(left) > 0 {
		w.t.Errorf("left in the control plane: %v", left)
	}
	if secret := w.gatewaySecret(); len(secret.Data["ca.crt"]) == 0 {
		w.t.Error("the gateway's Secret has no bundle")
	}
}

// resendsAreSpared turns resends on. A reconcile reads the object of the events through
// Source.Client, as the guide says.
func (w *world) resendsAreSpared() {
	name := "resent"
	w.ours.opts.Agent.Settings["RESEND_AFTER"] = "1s"
	w.ours.reads.Store(&name)
	w.ours.release(8)
	object := today.WatchedKyma(w.members[0].kyma, name)
	i := 0
	w.must(w.members[0].Client.Create(w.t.Context(), object))
	w.eventually("a resend starts no reconcile", func() bool {
		before := object.DeepCopy()
		i++
		w.must(unstructured.SetNestedField(object.Object, "regular-"+strconv.Itoa(i), "spec", "channel"))
		w.must(w.members[0].Client.Patch(w.t.Context(), object, client.MergeFrom(before)))
		<-time.After(2 * time.Second)
		return w.ours.spared.Load() > 0
	})
}

// noDoubles writes objects after the end. Each is one event, unless an answer comes too late. A second webhook would
// double each of them.
func (w *world) noDoubles() {
	const writes = 20
	for _, m := range w.members {
		for n := range writes {
			w.must(m.Client.Create(w.t.Context(), today.WatchedKyma(m.kyma, fmt.Sprintf("end-%d", n))))
		}
		w.eventually("all writes after the end arrive from "+m.kyma, func() bool {
			for n := range writes {
				if w.record.Count(arrival(m.id, fmt.Sprintf("end-%d", n))) == 0 {
					return false
				}
			}
			return true
		})
	}
	w.everywhereArrives("last") // What would come twice has had its time.
	for _, m := range w.members {
		all := 0
		for n := range writes {
			all += w.record.Count(arrival(m.id, fmt.Sprintf("end-%d", n)))
		}
		if all > writes+writes/2 {
			w.t.Errorf("%s: %d writes arrived %d times, want each once", m.kyma, writes, all)
		}
	}
}
