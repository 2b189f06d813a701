package loss

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const (
	// outageObjects are written in turn in each state, outageRounds times.
	outageObjects, outageRounds = 10, 20
	// unresolvable is a state of the agent's configuration, and none of the control plane.
	unresolvable lab.Fault = "no such name"
	// mostWait is the longest mean. It is far below the 10 s for which an agent waits for a control plane that hangs, and
	// far above the time of an answer on a busy machine.
	mostWait = 2500 * time.Millisecond
)

// outage is one state of the control plane, with an agent of its own.
type outage struct {
	fault lab.Fault
	plane *lab.Plane // nil: unresolvable
	agent *lab.Agent

	committed [outageObjects]time.Time
	objects   [outageObjects]*corev1.ConfigMap
	before    float64
}

// TestWritesDoNotWaitForTheControlPlane writes in a runtime in each state of the control plane. Each
// write is allowed by the agent, and none waits. After the fault, each object is reconciled after its
// last commit.
func TestWritesDoNotWaitForTheControlPlane(t *testing.T) {
	runtime, pki := newWorld(t)
	var all []*outage
	for _, fault := range []lab.Fault{
		unresolvable, lab.Up, lab.Refusing, lab.Unavailable, lab.TooFast, lab.Forbidden, lab.Hanging, lab.HalfOpen,
		lab.NoHandshake, lab.OtherCA, lab.OtherName, lab.Slow,
	} {
		all = append(all, newOutage(t, runtime, pki, fault))
	}
	for _, o := range all {
		o.begin(t, runtime)
	}
	for round := range outageRounds {
		for _, o := range all {
			o.write(t, runtime, round)
		}
	}
	text := lab.ScrapeAPIServer(t, runtime)
	for _, o := range all {
		o.checkCalls(t, text)
		if o.plane != nil {
			o.plane.Set(lab.Up)
		}
	}
	for _, o := range all {
		o.checkEnd(t)
	}
}

// name is a form of the fault that Kubernetes and certificates accept.
func (o *outage) name() string {
	return "outage-" + strings.ReplaceAll(strings.ToLower(string(o.fault)), " ", "-")
}

func (o *outage) labels() map[string]string { return map[string]string{"state": o.name()} }

// newOutage starts an agent and its control plane.
func newOutage(t *testing.T, runtime *apiserver.ControlPlane, pki *lab.PKI, fault lab.Fault) *outage {
	t.Helper()
	o := &outage{fault: fault}
	address := "control-plane.invalid:443"
	if fault != unresolvable {
		o.plane = lab.StartPlane(t, pki, lab.PlaneOptions{}, manager)
		address = o.plane.Addr
	}
	o.agent = lab.StartAgent(t, pki.RuntimeVolume(o.name(), o.name()+".example.com"), address, lab.AgentOptions{})
	opts := admission.ConfigurationOptions{Timeout: 30 * time.Second} // It must not fail open on a busy machine.
	lab.Register(t, runtime, o.name(), o.agent.WebhookPort, pki.CA.PEM, opts, watch.Watch{
		Name: types.NamespacedName{Namespace: "outage", Name: o.name()}, Manager: manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Selector: watch.Selector{Labels: o.labels()},
	})
	return o
}

// begin makes a connection with an event that arrives, and begins the fault.
func (o *outage) begin(t *testing.T, runtime *apiserver.ControlPlane) {
	t.Helper()
	lab.AwaitReviews(t, runtime, o.agent, o.labels())
	o.write(t, runtime, 0)
	if o.plane != nil {
		o.awaitReconciles(t, 1)
		o.plane.Set(o.fault)
	}
	o.before = o.allowed(lab.ScrapeAPIServer(t, runtime))
}

// write changes the next object.
func (o *outage) write(t *testing.T, runtime *apiserver.ControlPlane, round int) {
	t.Helper()
	i := round % outageObjects
	if o.objects[i] == nil {
		o.objects[i] = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", o.name(), i), Namespace: metav1.NamespaceDefault, Labels: o.labels(),
		}}
	}
	object := o.objects[i]
	object.Data = map[string]string{"round": strconv.Itoa(round)}
	var err error
	if object.ResourceVersion == "" {
		err = runtime.Client.Create(t.Context(), object)
	} else {
		err = runtime.Client.Update(t.Context(), object)
	}
	if o.committed[i] = time.Now(); err != nil {
		t.Errorf("%s: write %d: %v", o.fault, round, err)
	}
}

func (o *outage) webhook() string {
	return fmt.Sprintf("name=%q", "outage."+o.name()+".operator.kyma-project.io")
}

// allowed returns how many calls of the webhook were answered with allowed: true.
func (o *outage) allowed(text []byte) float64 {
	return lab.Sum(text, "apiserver_admission_webhook_request_total", o.webhook(), `code="200"`, `rejected="false"`)
}

// checkCalls checks that the agent allowed each write, and that none waited for the control plane.
func (o *outage) checkCalls(t *testing.T, text []byte) {
	t.Helper()
	if got := o.allowed(text) - o.before; got < outageRounds {
		t.Errorf("%s: %v calls were allowed, want one for each of %d writes", o.fault, got, outageRounds)
	}
	if n := lab.Sum(text, "apiserver_admission_webhook_fail_open_count", o.webhook()); n > 0 {
		t.Errorf("%s: the API server went on without an answer %v times, want never", o.fault, n)
	}
	const waited = "apiserver_admission_webhook_admission_duration_seconds"
	calls := lab.Sum(text, waited+"_count", o.webhook())
	mean := lab.Sum(text, waited+"_sum", o.webhook()) / calls
	t.Logf("%s: the API server waited %.3f s in the mean", o.fault, mean)
	if !(mean < mostWait.Seconds()) { // Also without any.
		t.Errorf("%s: the API server waited %.3f s in the mean for the webhook, want at most %v", o.fault, mean, mostWait)
	}
	// The agent's wait for a control plane that hangs ends in a later bucket.
	if n := calls - lab.Sum(text, waited+"_bucket", o.webhook(), `le="10"`); n != 0 {
		t.Errorf("%s: the API server waited longer than 10 s for %v calls of %v, want none", o.fault, n, calls)
	}
}

// awaitReconciles waits until a reconcile of each of the first n objects began after its last commit.
func (o *outage) awaitReconciles(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		look := lab.Look{Runtime: core.RuntimeID(o.name()), Object: types.NamespacedName{
			Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-%d", o.name(), i),
		}}
		lab.Eventually(t, patience, string(o.fault)+": "+look.Object.Name+" is reconciled after its last commit",
			func() bool { return o.plane.StartedSince(look, o.committed[i]) })
	}
}

// checkEnd checks that nothing is lost after the fault, and that each event has one fate.
func (o *outage) checkEnd(t *testing.T) {
	t.Helper()
	const prefix = "runtime_watcher_agent_events_"
	if o.plane != nil {
		o.awaitReconciles(t, outageObjects)
		lab.Eventually(t, patience, string(o.fault)+": nothing is pending",
			func() bool { return o.agent.Metric(prefix+"pending") == 0 })
	}
	text := o.agent.Scrape()
	get := func(name string) float64 { return lab.Sum(text, prefix+name) }
	if fates := get("delivered_total") + get("coalesced_total") + get("dropped_total") + get("pending"); fates !=
		get("accepted_total") || get("dropped_total") != 0 {
		t.Errorf("%s: %v events were accepted, %v have a fate, %v were dropped, want each with one and none dropped",
			o.fault, get("accepted_total"), fates, get("dropped_total"))
	}
	if o.plane == nil && get("pending") < outageObjects {
		t.Errorf("%s: %v events are pending, want the %d that no operator can take", o.fault, get("pending"), outageObjects)
	}
}
