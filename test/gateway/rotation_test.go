package gateway_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// rotates is how long each form of the test takes. `make rotation` asks for more.
var rotates = flag.Duration("rotation", 0, "how long certificates rotate, in each form of TestRotation")

// TestRotation rotates every leaf and every CA, once a second, at all ends, while the webhook is
// called. Every call is answered, and every object is handled after its last write. No process
// restarts. The short form has fewer calls, and a special case in each form.
//
// An end takes a leaf of a CA only one rotation after all ends trust that CA. No rotation begins
// before each end uses the one before: that is the use of heartbeats and fleet.WithoutCA.
func TestRotation(t *testing.T) {
	lab.SkipShort(t)
	for name, behindNginx := range map[string]bool{"natively": false, "through nginx": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // It waits for ends that read their files again.
			newRotation(t, behindNginx).run(t, *rotates)
		})
	}
}

// rotation is a runtime and its control plane, both of CAs that follow one another.
type rotation struct {
	t            *testing.T
	cas          []*testpki.CA
	now          int // the CA of the leaves in use
	agent        *runtimeAgent
	controlPlane *controlPlane
	writes       *direct
	rotations    int
}

// newRotation starts both ends.
func newRotation(t *testing.T, behindNginx bool) *rotation {
	t.Helper()
	r := &rotation{t: t, now: 1}
	r.controlPlane = startControlPlane(t, behindNginx, r.ca(1), r.span(0, 2)...)
	r.agent = startAgent(t, "runtime-1", r.controlPlane.addr, nil, r.ca(1), r.span(0, 2)...)
	r.writes = newDirect(t, lab.Address(r.agent.WebhookPort))
	r.writes.trust(testpki.Bundle(r.span(0, 2)...))
	return r
}

// ca returns the n-th CA.
func (r *rotation) ca(n int) *testpki.CA {
	for len(r.cas) <= n {
		r.cas = append(r.cas, lab.Must(testpki.NewCA(fmt.Sprint("ca-", len(r.cas)), testpki.Options{})))
	}
	return r.cas[n]
}

// span returns the CAs from one to another.
func (r *rotation) span(from, to int) []*testpki.CA {
	r.ca(to)
	return r.cas[from : to+1]
}

func (r *rotation) run(t *testing.T, lasts time.Duration) {
	t.Helper()
	agent := r.agent.Pid()
	every := 10 * time.Millisecond
	if lasts > 0 {
		every /= 5
	}
	writes := lab.StartFlow(t, &r.controlPlane.arrivals, r.agent.id, component, every, r.writes.write)
	turns := []func(){r.agentSkips, r.controlPlaneSkips, r.step}
	if r.controlPlane.nginx != nil {
		slices.Reverse(turns[:2])
	}
	for n, end := 0, time.Now().Add(lasts); n == 0 || time.Now().Before(end); n++ {
		began := time.Now()
		turns[min(n, 2)]()
		<-time.After(time.Second - time.Since(began))
	}
	writes.Settle(patience)
	r.writes.client.Load().CloseIdleConnections()
	r.check(t, writes.Count())
	if r.agent.Pid() != agent || !strings.Contains(r.agent.ready(), `"ready":true`) {
		t.Error("the agent did not live through it")
	}
	t.Logf("%d rotations", r.rotations)
}

// step is one rotation: a new leaf everywhere, by a CA that every end already knows, and the
// announcement of the next. The CA of the leaf before the last is trusted until then, as a request
// with it may be on its way, or a worker of nginx that is about to end.
func (r *rotation) step() { r.stepFrom(r.now - 1) }

// stepFrom is step for ends with leaves in use, or on their way, of the CA oldest and later ones.
func (r *rotation) stepFrom(oldest int) {
	r.now++
	r.writes.trust(testpki.Bundle(r.span(oldest, r.now+1)...))
	r.controlPlane.write(r.ca(r.now), r.span(oldest, r.now+1)...)
	r.agent.secret.write(r.ca(r.now), r.span(oldest, r.now+1)...)
	r.await()
}

func (r *rotation) await() {
	r.controlPlane.awaitWritten()
	r.awaitAgent()
	r.rotations++
}

// awaitAgent waits until the agent uses the written files, and makes new calls verify them.
func (r *rotation) awaitAgent() {
	r.agent.awaitWritten()
	r.writes.reconnect()
}

// agentSkips leaves the agent as it is for two generations, in which the control plane keeps a
// certificate that the agent can verify. Then the agent gets all at once.
func (r *rotation) agentSkips() {
	held := r.now
	for ahead := 1; ahead <= 2; ahead++ {
		r.controlPlane.write(r.ca(held), r.span(held-1, held+ahead+1)...)
		r.controlPlane.awaitWritten()
	}
	r.now = held + 2
	r.writes.trust(testpki.Bundle(r.span(held-1, r.now+1)...))
	r.agent.secret.write(r.ca(r.now), r.span(held, r.now+1)...)
	r.awaitAgent()
	r.stepFrom(held)
}

// controlPlaneSkips is the same with the ends exchanged.
func (r *rotation) controlPlaneSkips() {
	held := r.now
	for ahead := 1; ahead <= 2; ahead++ {
		r.writes.trust(testpki.Bundle(r.span(held-1, held+ahead+1)...))
		r.agent.secret.write(r.ca(held), r.span(held-1, held+ahead+1)...)
		r.awaitAgent()
	}
	r.now = held + 2
	r.controlPlane.write(r.ca(r.now), r.span(held, r.now+1)...)
	r.controlPlane.awaitWritten()
	r.agent.secret.write(r.ca(r.now), r.span(held, r.now+1)...)
	r.awaitAgent()
	r.stepFrom(held)
}

// check accounts for what was delivered.
func (r *rotation) check(t *testing.T, writes int) {
	t.Helper()
	if reviewed := r.agent.reviewed(); reviewed < float64(writes) {
		t.Errorf("of %d writes, %v became events", writes, reviewed)
	}
	eventually(t, "all accepted events have a good fate", func() bool {
		text := r.agent.Scrape()
		count := func(fate string) float64 { return lab.Sum(text, "runtime_watcher_agent_events_"+fate) }
		return count("delivered_total")+count("coalesced_total") == count("accepted_total")
	})
}

// TestAPIServerRotatesItsCertificate has a real API server show a client certificate to a webhook
// that demands it. The API server takes a new certificate without a restart when its configuration
// names files.
func TestAPIServerRotatesItsCertificate(t *testing.T) {
	lab.SkipShort(t)
	t.Parallel()
	// trusted is the bundle of the agent, shown the secret of the API server.
	trusted := testpki.NewVolume(t.TempDir())
	old, next := lab.NewPKI(t).CA, lab.NewPKI(t).CA
	shown := newSecret(t, func(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error) {
		return ca.Client("kube-apiserver", opts)
	})
	shown.write(old, old)
	trust := func(bundle ...*testpki.CA) {
		lab.NoError(t, trusted.Write(map[string][]byte{"callers.crt": testpki.Bundle(bundle...)}))
	}
	trust(old)
	_, certificate, key := shown.volume.Paths()
	plane := apiserver.StartT(t,
		apiserver.Options{APIServerArgs: map[string][]string{"admission-control-config-file": {
			lab.AdmissionConfiguration(t,
				map[string]*clientcmdapi.AuthInfo{"*": {ClientCertificate: certificate, ClientKey: key}}),
		}}})
	servers := lab.NewPKI(t).CA
	agent := startAgent(t, "runtime-1", lab.Address(lab.FreePort(t)),
		map[string]string{"WEBHOOK_CLIENT_CA": trusted.Path("callers.crt")}, servers, servers)
	lab.Watch(t, plane, agent.Agent, servers.PEM, watch.Watch{
		Name: types.NamespacedName{Namespace: "default", Name: "configmaps"}, Manager: component,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
	})
	for _, bundle := range [][]*testpki.CA{{old, next}, {next}} {
		reloads := agent.reloads()
		trust(bundle...)
		eventually(t, "the agent trusts the new bundle", func() bool { return agent.reloads() > reloads })
		shown.write(next, next)
	}
	reconnect(t, plane)
	eventually(t, "a review over a connection with the new certificate", func() bool {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, GenerateName: "shown-",
		}}
		reviewed := agent.reviewed()
		if err := plane.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		return agent.reviewed() > reviewed
	})
}

func (a *runtimeAgent) reloads() float64 {
	return a.Metric("runtime_watcher_agent_certificate_reloads_total", `use="webhook_ca"`)
}

// reconnect changes the text of the bundle in the webhook configuration. An API server has a pool
// of connections for each.
func reconnect(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := plane.Client.Get(t.Context(), client.ObjectKey{Name: "runtime-watcher"}, configuration); err != nil {
		t.Fatal(err)
	}
	config := &configuration.Webhooks[0].ClientConfig
	config.CABundle = append(config.CABundle, '\n')
	if err := plane.Client.Update(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
}
