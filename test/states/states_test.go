// Package states shows that the time of a write in a runtime does not depend on the state of the
// control plane (DESIGN §6.1).
package states

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// The same test measures with: go test ./test/states -run Feel -v -args -strict -rounds 1000.
var (
	strict = flag.Bool("strict", false,
		"require 1 ms at p99, on a machine without other load")
	rounds = flag.Int("rounds", 200, "writes in each state")
)

const (
	manager  = "kyma"
	objects  = 10 // per state, written in turn
	reviews  = "runtime_watcher_agent_admission_reviews_total"
	duration = "runtime_watcher_agent_admission_duration_seconds"
	webhook  = "apiserver_admission_webhook_"

	// unresolvable is a state of the agent's configuration, and none of the control plane.
	unresolvable = "no such name"
	// unwatched is no state: no webhook is called for these writes.
	unwatched = "(no webhook)"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// subject is one state with an agent of its own. All run during the whole test and are written in
// turn, so that noise is the same for all.
type subject struct {
	name  string
	fault lab.Fault
	plane *lab.Plane
	agent *lab.Agent

	writes    []time.Duration
	errors    int
	committed [objects]time.Time
	objects   [objects]*corev1.ConfigMap
	before    measurement
	pending   float64
	recovered time.Duration
}

func subjects() []*subject {
	all := []*subject{{name: unwatched}, {name: unresolvable}}
	for _, fault := range []lab.Fault{
		lab.Up, lab.Refusing, lab.Unavailable, lab.TooFast, lab.Forbidden, lab.Hanging, lab.HalfOpen, lab.NoHandshake,
		lab.OtherCA, lab.OtherName, lab.Slow,
	} {
		all = append(all, &subject{name: string(fault), fault: fault})
	}
	return all
}

// label returns the name in a form that Kubernetes and certificates accept.
func (s *subject) label() string {
	return "s-" + strings.Trim(strings.ReplaceAll(strings.ToLower(s.name), " ", "-"), "()")
}

func (s *subject) labels() map[string]string { return map[string]string{"state": s.label()} }

func (s *subject) watch() watch.Watch {
	return watch.Watch{
		Name:     types.NamespacedName{Namespace: "states", Name: s.label()},
		Manager:  manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Selector: watch.Selector{Labels: s.labels()},
	}
}

func (s *subject) webhookLabel() string {
	return fmt.Sprintf("name=%q", "states."+s.label()+".operator.kyma-project.io")
}

// start runs the agent and its control plane, without waiting for the API server.
func (s *subject) start(t *testing.T, runtime *apiserver.ControlPlane, pki *lab.PKI) {
	t.Helper()
	if s.name == unwatched {
		return
	}

	address := "control-plane.invalid:443"
	if s.name != unresolvable {
		s.plane = lab.StartPlane(t, pki, lab.PlaneOptions{Listener: listener.Options{}}, manager)
		address = s.plane.Addr
	}

	s.agent = lab.StartAgent(t, pki.RuntimeVolume(s.label(), s.label()+".example.com"), address, lab.AgentOptions{})
	lab.Register(t, runtime, s.label(), s.agent.WebhookPort, pki.CA.PEM(), admission.ConfigurationOptions{}, s.watch())
}

// write changes the next object, and notes how long the API server took.
func (s *subject) write(t *testing.T, runtime *apiserver.ControlPlane, round int) {
	t.Helper()
	i := round % objects
	object := s.objects[i]
	write := func() error { return runtime.Client.Update(t.Context(), object) }
	if object == nil {
		object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", s.label(), i), Namespace: metav1.NamespaceDefault, Labels: s.labels(),
		}}
		s.objects[i] = object
		write = func() error { return runtime.Client.Create(t.Context(), object) }
	}

	object.Data = map[string]string{"round": strconv.Itoa(round), "text": strings.Repeat("x", 1000)}
	started := time.Now()
	if err := write(); err != nil {
		s.errors++
		t.Logf("%s: write %d: %v", s.name, round, err)
	}

	s.committed[i] = time.Now()
	s.writes = append(s.writes, s.committed[i].Sub(started))
}

func TestWritesDoNotFeelTheStateOfTheControlPlane(t *testing.T) {
	runtime := lab.SharedAPIServer(t, apiserver.Options{})
	pki := lab.NewPKI(t)
	all := subjects()
	for _, s := range all {
		s.start(t, runtime, pki)
	}

	prepare(t, runtime, all)
	for round := range *rounds {
		for _, s := range all {
			s.write(t, runtime, round)
		}
	}

	measured := measure(t, runtime, all)
	endFaults(t, all)
	t.Log("\n" + table(all, measured))

	up := measured[string(lab.Up)]
	for _, s := range all {
		if s.agent == nil {
			continue
		}

		for _, problem := range problems(measured[s.name], up, theLimits()) {
			t.Errorf("%s: %s", s.name, problem)
		}
	}
}

// prepare waits until every agent is called, makes a connection with an event that arrives, and
// begins the faults.
func prepare(t *testing.T, runtime *apiserver.ControlPlane, all []*subject) {
	t.Helper()
	for _, s := range all {
		if s.agent != nil {
			lab.AwaitReviews(t, runtime, s.agent, s.labels())
		}

		s.write(t, runtime, 0)
	}

	for _, s := range all {
		if s.plane != nil {
			s.awaitReconciles(t, time.Now().Add(30*time.Second), 1)
			s.plane.Set(s.fault)
		}

		s.writes = nil
	}

	before := measure(t, runtime, all)
	for _, s := range all {
		s.before = before[s.name]
	}
}

// endFaults ends all faults at once, and waits until everything was reconciled after its last
// commit.
func endFaults(t *testing.T, all []*subject) {
	t.Helper()
	ended := time.Now()
	for _, s := range all {
		if s.plane != nil {
			s.plane.Set(lab.Up)
		}
	}

	// DESIGN §7: every changed runtime is enqueued 60 s after an outage. The rest is for a busy
	// machine.
	deadline := ended.Add(75 * time.Second)
	for _, s := range all {
		if s.plane != nil {
			s.recovered = max(s.awaitReconciles(t, deadline, objects).Sub(ended), 0)
		}

		if s.agent != nil {
			s.checkAccounts(t, deadline)
		}
	}
}

// awaitReconciles waits until a reconcile of each of the first n objects began after its last
// commit, and returns when the last of these did.
func (s *subject) awaitReconciles(t *testing.T, deadline time.Time, n int) (last time.Time) {
	t.Helper()
	for i := range n {
		look := lab.Look{
			Runtime: core.RuntimeID(s.label()), Object: types.NamespacedName{
				Namespace: metav1.NamespaceDefault,
				Name:      fmt.Sprintf("%s-%d", s.label(), i),
			},
		}
		// The commit is not later than the answer, and the event cannot settle before.
		since := s.committed[i]

		lab.Eventually(t, time.Until(deadline), s.name+": "+look.Object.Name+" is reconciled after its last commit",
			func() bool {
				return s.plane.StartedSince(look, since)
			})
		for _, started := range s.plane.Started(look) {
			if !started.Before(since) {
				if started.After(last) {
					last = started
				}
				break
			}
		}
	}
	return last
}

func (s *subject) checkAccounts(t *testing.T, deadline time.Time) {
	t.Helper()
	const prefix = "runtime_watcher_agent_events_"
	if s.plane != nil {
		lab.Eventually(t, time.Until(deadline), s.name+": nothing is pending",
			func() bool { return s.agent.Metric(prefix+"pending") == 0 })
	}

	text := s.agent.Scrape()
	get := func(name string) float64 { return lab.Sum(text, prefix+name) }
	if sum := get("delivered_total") + get("coalesced_total") + get("dropped_total") +
		get("pending"); sum != get("accepted_total") {
		t.Errorf("%s: %v events were accepted, but the fates of %v are known", s.name, get("accepted_total"), sum)
	}

	if n := get("dropped_total"); n != 0 {
		t.Errorf("%s: %v events were dropped", s.name, n)
	}

	if s.plane == nil && get("pending") < objects {
		t.Errorf("%s: %v events are pending, want the %d that no operator can take", s.name, get("pending"), objects)
	}
}

// table returns the measurements, one line per state.
func table(all []*subject, measured map[string]measurement) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "state\twrites\tp50\tp99\tAPI server's wait: mean\tp99 <=\tagent: mean\tp50 <=\tp99 <=\tfail "+
		"open\tpending\tall reconciled after\t")
	for _, s := range all {
		m := measured[s.name]
		recovered := "-"
		if s.plane != nil {
			recovered = s.recovered.Round(10 * time.Millisecond).String()
		}

		fmt.Fprintf(w, "%s\t%d\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%s\t\n", s.name, len(m.writes),
			round(quantile(m.writes, 0.5)), round(quantile(m.writes, 0.99)), round(m.waited.Mean()),
			m.waited.Quantile(0.99),
			round(m.agent.Mean()), m.agent.Quantile(0.5), m.agent.Quantile(0.99), m.failOpen, s.pending, recovered)
	}

	_ = w.Flush() // It writes into memory.
	return text.String()
}

func round(d time.Duration) time.Duration { return d.Round(time.Microsecond) }

func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}

	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
