// Package soak lets an agent work for long, and checks that its memory and open files do not grow.
//
// An hour without a control plane passes sixty times as fast: the intervals of the agent, which are
// those of heartbeats and of attempts to forward, are a sixtieth of the usual. So it does each as
// often as in an hour, and there are as many changes as in an hour with 8 each second. Effects of
// the clock itself do not show, such as idle connections that are closed after 90 s. The hour in
// true length is in core/outbox, on a fake clock.
package soak

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// make soak gives more of each.
var (
	events = flag.Int("events", 20_000, "events before the outage")
	outage = flag.Duration("outage", 3*time.Second,
		"length of each of two outages, on a clock that is sixty times as fast")
	memory = flag.Float64("memory", 32, "MiB that the agent may have resident")
	// The heap finds its size within the first minutes. A short run shows only fast growth.
	slack = flag.Float64("slack", 8, "MiB by which memory may grow nevertheless")
)

const (
	manager = "kyma"
	runtime = "runtime-1"
	// scale is how much faster the clock of the outage is.
	scale = 60
)

func TestSoak(t *testing.T) {
	lab.SkipShort(t)
	pki := lab.NewPKI(t)
	var received atomic.Int64
	plane := lab.StartPlane(t, pki, lab.PlaneOptions{
		Handler: core.HandlerFunc(func(context.Context, core.Delivery) error { // In place of the operator's workqueue.
			received.Add(1)
			return nil
		}),
		// The listener's limit of one runtime is not measured here.
		Listener: listener.Options{RuntimeRate: 1e6, RuntimeBurst: 1e6},
	}, manager)
	scaled := func(d time.Duration) string { return (d / scale).String() }
	agent := lab.StartAgent(t, pki.RuntimeVolume(runtime, "runtime-1.example.com"), plane.Addr,
		lab.AgentOptions{Env: map[string]string{
			"HEARTBEAT_INTERVAL": scaled(30 * time.Second),
			"FORWARD_TIMEOUT":    "500ms", // A sixtieth is too short for a handshake on a busy machine.
			"MAX_BACKOFF":        scaled(20 * time.Second),
		}})
	server := newAPIServer(t, pki, agent)
	watch := watchProcess(t, agent)
	server.review(*events, usual, 0)
	agent.AwaitDelivered()
	t.Logf("%d events: %s", *events, watch.summary())
	// The second outage may take as much as the first, and no more.
	for _, name := range []string{"first", "second"} {
		suffer(t, plane, server, watch, name)
		agent.AwaitDelivered()
		watch.phase("after the " + name)
		server.review(*events/10, usual, 0)
		agent.AwaitDelivered()
		t.Logf("after the %s outage of %v: %s", name, *outage, watch.summary())
	}
	watch.stop()
	for _, problem := range watch.problems(*memory) {
		t.Error(problem)
	}
	fates, reviewed := agent.CheckAccounts(), float64(server.reviewed.Load())
	if fates["delivered_total"]+fates["coalesced_total"] < reviewed || fates["dropped_total"] > 0 {
		t.Errorf("%v reviews: want an event of each, and none dropped, as there is room for all keys", reviewed)
	}
	t.Logf("%d deliveries reached the listener", received.Load())
}

// suffer makes the faults of a control plane, one after the other, while changes continue.
func suffer(t *testing.T, plane *lab.Plane, server *apiServer, watch *watched, name string) {
	t.Helper()
	faults := []lab.Fault{lab.Refusing, lab.Hanging, lab.Unavailable, lab.HalfOpen, lab.NoHandshake, lab.OtherCA}
	for _, fault := range faults {
		plane.Set(fault)
		watch.phase(name + " outage: " + string(fault))
		until := time.Now().Add(*outage / time.Duration(len(faults)))
		for time.Now().Before(until) {
			server.review(perSecond/10, during, 100*time.Millisecond)
		}
	}
	plane.Set(lab.Up)
	watch.phase(name + " recovery")
}

// perSecond is how many changes there are each second of the scaled outage: 8 in a second of the
// hour.
const perSecond = 8 * scale

const (
	// connections is how many an API server keeps to a webhook that 8 writers keep busy.
	connections = 8
	// stable objects change again and again; names beyond them are seen once, as those of pods are.
	stable = 5000
	// largeOneIn is the share of objects of 100 kB: one in this number.
	largeOneIn = 50

	// One in this number of names is new. During an outage all are kept, and 10,000 fit.
	usual  = 3
	during = 10
)

// apiServer calls a webhook as an API server does, at a lower cost.
type apiServer struct {
	t                *testing.T
	client           *http.Client
	url              string
	small, large     string // reviews
	serial, reviewed atomic.Int64
}

func newAPIServer(t *testing.T, pki *lab.PKI, agent *lab.Agent) *apiServer {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: pki.CA.Pool(), MinVersion: tls.VersionTLS13},
		MaxIdleConnsPerHost: connections,
		MaxConnsPerHost:     connections,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &apiServer{
		t: t, client: &http.Client{Transport: transport, Timeout: time.Minute},
		url:   "https://" + lab.Address(agent.WebhookPort) + "/validate/" + manager,
		small: template(700), large: template(50_000),
	}
}

// template returns an AdmissionReview of an update, with that many bytes in each of its two
// objects, and NAME in place of their name.
func template(size int) string {
	object := func(generation int) string {
		return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"NAME",`+
			`"namespace":"default","uid":"0f0f",`+
			`"resourceVersion":"%d","generation":%d,"labels":{"app":"a","operator.kyma-project.io/managed-by":"kyma"},`+
			`"managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"apps/v1",`+
			`"fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}}}]},`+
			`"spec":{"replicas":%d,"template":{"metadata":{"annotations":{"text":"%s"}},`+
			`"spec":{"containers":[{"name":"a","image":"a:%d"}]}}},`+
			`"status":{"replicas":1}}`, generation, generation, generation, strings.Repeat("x", size), generation)
	}
	return `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"uid-1",` +
		`"kind":{"group":"apps","version":"v1","kind":"Deployment"},"resource":{"group":"apps","version":"v1",` +
		`"resource":"deployments"},` +
		`"name":"NAME","namespace":"default","operation":"UPDATE","userInfo":{"username":"admin",` +
		`"groups":["system:authenticated"]},` +
		`"object":` + object(2) + `,"oldObject":` + object(1) +
		`,"dryRun":false,"options":{"kind":"UpdateOptions","apiVersion":"meta.k8s.io/v1"}}}`
}

// review sends n reviews over all connections, some with a new name. It takes at least that long.
func (s *apiServer) review(n, fresh int, over time.Duration) {
	s.t.Helper()
	var (
		asked   atomic.Int64
		writers sync.WaitGroup
		began   = time.Now()
	)
	for range connections {
		writers.Go(func() {
			for asked.Add(1) <= int64(n) && !s.t.Failed() {
				s.ask(fresh)
			}
		})
	}
	writers.Wait()
	s.reviewed.Add(int64(n))
	<-time.After(over - time.Since(began))
}

func (s *apiServer) ask(fresh int) {
	serial := s.serial.Add(1)
	name := fmt.Sprintf("object-%d", serial%stable)
	review := s.small
	if serial%int64(fresh) == 0 {
		name = fmt.Sprintf("fresh-%d", serial)
	}
	if serial%largeOneIn == 0 {
		review = s.large
	}
	if err := lab.Ask(s.t.Context(), s.client, s.url, strings.ReplaceAll(review, "NAME", name)); err != nil {
		s.t.Errorf("review: %v", err)
	}
}

// number is a metric of a process that must not grow, with the tolerance between two thirds of the
// samples.
type number struct {
	name, metric string
	unit, slack  float64
}

func numbers() []number {
	return []number{
		{"MiB resident", "process_resident_memory_bytes", 1 << 20, *slack},
		{"open files", "process_open_fds", 1, 6},
		{"goroutines", "go_goroutines", 1, 12},
	}
}

type sample struct {
	phase  string
	values []float64
}

// watched is a process with regular samples of its resources.
type watched struct {
	agent *lab.Agent
	began time.Time
	stop  func()

	mu      sync.Mutex
	current string
	samples []sample
}

func watchProcess(t *testing.T, agent *lab.Agent) *watched {
	t.Helper()
	w := &watched{agent: agent, began: time.Now(), current: "work"}
	w.stop = lab.Run(t, "samples", func(ctx context.Context) error {
		for tick := time.Tick(100 * time.Millisecond); ctx.Err() == nil; <-tick {
			w.sample()
		}
		return nil
	})
	return w
}

func (w *watched) phase(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current = name
}

func (w *watched) sample() {
	text, err := lab.Get(context.Background(), "http://"+lab.Address(w.agent.MetricsPort)+"/metrics")
	if err != nil {
		return // The scrape is late on a busy machine; there are others.
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := sample{phase: w.current}
	for _, n := range numbers() {
		s.values = append(s.values, lab.Sum(text, n.metric)/n.unit)
	}
	w.samples = append(w.samples, s)
}

// peak is the highest resident memory, in MiB. It is also that between the samples.
func peak(agent *lab.Agent) float64 {
	return float64(lab.Must(kit.UsageOf(agent.Pid())).Peak) / (1 << 20)
}

func (w *watched) summary() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == 0 {
		return "no samples yet"
	}
	var text strings.Builder
	for i, n := range numbers() {
		fmt.Fprintf(&text, "%.1f %s, ", w.samples[len(w.samples)-1].values[i], n.name)
	}
	return fmt.Sprintf("%speak %.1f MiB, after %v", &text, peak(w.agent), time.Since(w.began).Round(time.Second))
}

// problems returns the numbers that grew or are too large.
func (w *watched) problems(memory float64) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	const least = 30
	if len(w.samples) < least {
		return []string{fmt.Sprintf("%d samples, want at least %d to say anything", len(w.samples), least)}
	}
	for i, n := range numbers() {
		if text := w.growth(i, n); text != "" {
			found = append(found, text)
		}
	}
	highest := slices.MaxFunc(w.samples, func(a, b sample) int { return cmp.Compare(a.values[0], b.values[0]) })
	if highest.values[0] > memory {
		found = append(found, fmt.Sprintf("%.1f MiB were resident in phase %q, want at most %.0f", highest.values[0],
			highest.phase, memory))
	}
	return found
}

// growth compares like phases: work with work, after a third of it in which the process warms up,
// and the second outage with the first. The Go runtime returns the memory of an outage to the
// system over minutes.
func (w *watched) growth(i int, n number) string {
	phase := func(prefix string) (values []float64) {
		for _, s := range w.samples {
			if strings.HasPrefix(s.phase, prefix) {
				values = append(values, s.values[i])
			}
		}
		return values
	}
	work := phase("work")
	work = work[len(work)/3:]
	for _, pair := range []struct {
		name         string
		early, later []float64
	}{
		{"during the work", work[:len(work)/3], work[len(work)*2/3:]},
		{"from the first to the second outage", phase("first outage"), phase("second outage")},
		{"from after the first to after the second outage", phase("after the first"), phase("after the second")},
	} {
		if early, later := median(pair.early), median(pair.later); later > early+n.slack {
			return fmt.Sprintf("%s grew from %.1f to %.1f %s, want them flat", n.name, early, later, pair.name)
		}
	}
	return ""
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

var (
	objects = flag.Int("objects", 50_000, "number of objects for TestInformerMemory")
	size    = flag.Int("size", 100, "bytes in the data of each of these objects")
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// TestInformerMemory measures the peak resident memory of an agent that lists objects, and lists
// them again after a 410, when each of them has changed.
func TestInformerMemory(t *testing.T) {
	lab.SkipShort(t)
	const limit = 128 // MiB, of the manifests for an informer.
	most := 40 + 800*float64(*objects)/(1<<20)
	for _, watchList := range []bool{false, true} { // Older API servers know lists only.
		t.Run(fmt.Sprint("WatchList ", watchList), func(t *testing.T) {
			server := httptest.NewTLSServer(&crowded{watchList: watchList})
			t.Cleanup(server.Close)
			ca := filepath.Join(t.TempDir(), "ca.crt")
			token := filepath.Join(t.TempDir(), "token")
			for path, text := range map[string][]byte{
				ca:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
				token: []byte("token"),
			} {
				lab.NoError(t, os.WriteFile(path, text, 0o600))
			}
			pki := lab.NewPKI(t)
			control := lab.StartPlane(t, pki, lab.PlaneOptions{}, manager)
			agent := lab.StartAgent(t, pki.RuntimeVolume(runtime, lab.RuntimeDomain(runtime)), control.Addr,
				lab.AgentOptions{Env: map[string]string{
					"SOURCE": "informer", "INFORMER_API_SERVER": server.URL, "INFORMER_CA_CERT": ca, "INFORMER_TOKEN_FILE": token,
					"KUBE_FEATURE_WatchListClient": strconv.FormatBool(watchList),
					"GOMEMLIMIT":                   fmt.Sprintf("%dMiB", (limit-20)/2), // As in a container with that limit.
					"WATCHERS": fmt.Sprintf("kind: Watcher\nmetadata: {name: memory}\nspec:\n  manager: %s\n"+
						"  resourceToWatch: {group: \"\", version: v1, resource: configmaps}\n", manager),
				}})
			lab.Eventually(t, 5*time.Minute, "all changes are observed", func() bool {
				return agent.Metric("runtime_watcher_agent_informer_changes_total") >= float64(*objects)
			})
			highest := peak(agent)
			t.Logf("%d objects with %d bytes listed, and listed again: %.0f MiB at the peak", *objects, *size, highest)
			if highest > most {
				t.Errorf("%.0f MiB at the peak, want at most %.0f", highest, most)
			}
		})
	}
}

// crowded is an API server with many ConfigMaps, which change with each list. The version of the
// first list has expired when it is watched.
type crowded struct {
	watchList bool
	lists     atomic.Int64
}

func (c *crowded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	watched := query.Get("watch") != ""
	initial := query.Get("sendInitialEvents") != ""
	switch {
	case r.URL.Path == "/api/v1":
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","resources":[{"name":"configmaps","namespaced":true,"kind":"ConfigMap"}]}`)
	case initial && !c.watchList:
		w.WriteHeader(http.StatusUnprocessableEntity)
	case initial:
		c.list(w, `{"type":"ADDED","object":`, "}\n", `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7",`+
			`"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n")
		c.follow(w, r)
	case watched:
		c.follow(w, r)
	default:
		_, _ = io.WriteString(w, `{"kind":"ConfigMapList","metadata":{"resourceVersion":"7"},"items":[`)
		c.list(w, "", ",", object(0, 0)+"]}")
	}
}

// list writes the objects, each between two texts, and the end.
func (c *crowded) list(w io.Writer, before, after, end string) {
	round := c.lists.Add(1)
	for n := range *objects {
		if _, err := io.WriteString(w, before+object(n+1, round)+after); err != nil {
			return
		}
	}
	_, _ = io.WriteString(w, end)
}

func object(n int, round int64) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"object-%d","namespace":"namespace-%d",`+
		`"uid":"00000000-0000-0000-0000-%012d","resourceVersion":"%d","labels":{"operator.kyma-project.io/managed-by":"kyma",`+
		`"app":"app-%d"},"annotations":{"operator.kyma-project.io/owned-by":"kcp-system/kyma-%d"}},"data":{"n":"%d%s"}}`,
		n, n%40, n, n, n%20, n%20, round, strings.Repeat("x", *size))
}

// follow ends the first watch with a 410, and leaves the others open.
func (c *crowded) follow(w http.ResponseWriter, r *http.Request) {
	if c.lists.Load() == 1 {
		_, _ = io.WriteString(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`+"\n")
		return
	}
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}
