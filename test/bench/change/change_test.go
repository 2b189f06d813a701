// Package change measures the price of a change at several rates, in one run: processor time of the
// agent beside that of a bare webhook, requests to the operator, and the time to the reconcile.
package change

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const manager core.Manager = "kyma"

const (
	bareRole = "bare"
	// objects change in turn. A source remembers the reads of at most 256 objects of a runtime.
	objects = 250
	// resends are earlier than by default, so that a short run has those of most changes.
	resends = "1s,2s"
	warmUp  = 3 * time.Second
	// probe is an object that no measured change is about.
	probe = "probe"
	// small and large are sizes of objects in bytes.
	small, large = 2_000, 10_000
)

func TestMain(m *testing.M) {
	os.Exit(kit.Main(m, map[string]func(context.Context) error{bareRole: serveBare}))
}

// BenchmarkChange makes changes at a steady rate, of which each is reviewed by an agent and by a bare webhook.
//
// "bare" is the ratio of the processor times of the two processes, "requests/change" counts those of the agent to the
// operator, and "p50-ms" and "p99-ms" are from the answer to the start of the reconcile that reads the change.
//
// Objects have 2 kB, as in the other benchmarks of reviews, and also 10 kB, as large objects of real clusters.
func BenchmarkChange(b *testing.B) {
	for _, row := range []struct {
		name      string
		perSecond int
		length    time.Duration
		size      int
	}{
		{"rate=1", 1, 30 * time.Second, small},
		{"rate=10", 10, 15 * time.Second, small},
		{"rate=100", 100, 10 * time.Second, small},
		{"rate=1000", 1000, 6 * time.Second, small},
		{"rate=100/object=10kB", 100, 10 * time.Second, large},
		{"rate=1000/object=10kB", 1000, 6 * time.Second, large},
	} {
		b.Run(row.name, func(b *testing.B) {
			s := newScene(b, row.size)
			s.change(warmUp, row.perSecond)
			for range b.N {
				s.measure(row.length, row.perSecond)
			}
		})
	}
}

// bareSettings are the key material of the bare webhook.
type bareSettings struct{ Certificate, Key string }

// serveBare is a webhook that decodes the uid and answers with it.
func serveBare(ctx context.Context) error {
	settings := kit.Settings[bareSettings]()
	pair, err := tls.X509KeyPair([]byte(settings.Certificate), []byte(settings.Key))
	if err != nil {
		return err
	}
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(socket.Addr())

	server := &http.Server{
		Handler:           http.HandlerFunc(echo),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	tlsSocket := tls.NewListener(socket, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}})
	return server.Serve(tlsSocket)
}

func echo(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID string `json:"uid"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":true}}`, review.Request.UID)
}

// scene is an agent, an operator, a bare webhook, and a writer that calls both webhooks.
type scene struct {
	b      *testing.B
	agent  *lab.Agent
	bare   *kit.Process
	client *http.Client
	review string // with placeholders
	store  store
	// urls are those of the two webhooks.
	agentURL, bareURL string
	changes           int
}

func newScene(b *testing.B, size int) *scene {
	b.Helper()
	pki := lab.NewPKI(b)
	s := &scene{b: b, review: reviewOf(size), store: store{objects: make(map[string]*object)}}

	var plane *lab.Plane
	started := make(chan struct{})
	plane = lab.StartPlane(b, pki, lab.PlaneOptions{
		Reconcile: func(ctx context.Context, look lab.Look) (reconcile.Result, error) {
			<-started
			began := time.Now()
			there := plane.Client(look, reader{store: &s.store, began: began})
			err := there.Get(ctx, look.Object, new(metav1.PartialObjectMetadata))
			return reconcile.Result{}, client.IgnoreNotFound(err)
		},
		Listener: listener.Options{RuntimeRate: 1e6, RuntimeBurst: 1e6}, // The share is not measured.
	}, manager)
	close(started)

	s.agent = lab.StartAgent(b, pki.RuntimeVolume("runtime-1", "runtime-1.example.com"), plane.Addr, lab.AgentOptions{
		Env: map[string]string{"CONTROL_PLANE_CONTRACT": "v3", "RESEND_AFTER": resends, "HEARTBEAT_INTERVAL": "5m"},
	})
	leaf := lab.Must(pki.CA.Server("bare", testpki.Options{}))
	s.bare = kit.Start(b, bareRole, bareSettings{string(leaf.CertPEM), string(leaf.KeyPEM)})
	s.bareURL = "https://" + s.bare.Line()
	s.agentURL = "https://" + lab.Address(s.agent.WebhookPort) + "/validate/" + string(manager)

	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pki.CA.Pool(), MinVersion: tls.VersionTLS13}, MaxIdleConnsPerHost: 8}
	b.Cleanup(transport.CloseIdleConnections)
	s.client = &http.Client{Transport: transport, Timeout: time.Minute}

	// From the first read on, the agent need not wait for the commit.
	s.write(probe)
	lab.Eventually(b, time.Minute, "the first change is reconciled", func() bool { return len(s.store.take()) > 0 })
	return s
}

// change makes changes for a time.
func (s *scene) change(length time.Duration, perSecond int) (n int) {
	s.b.Helper()
	began := time.Now()
	step := time.Second / time.Duration(perSecond)
	for ; time.Since(began) < length && !s.b.Failed(); n++ {
		<-time.After(time.Until(began.Add(time.Duration(n) * step)))
		s.changes++
		s.write(fmt.Sprintf("object-%d", s.changes%objects))
	}
	return n
}

// write lets both webhooks review a change, one after the other and in turn, and commits it.
func (s *scene) write(name string) {
	s.b.Helper()
	base := s.store.version(name)
	text := strings.NewReplacer("NAME", name, "BASE", strconv.FormatInt(base, 10)).Replace(s.review)
	urls := []string{s.bareURL, s.agentURL}
	if s.changes%2 == 0 { // Each finds caches that the other one has filled.
		slices.Reverse(urls)
	}
	for _, url := range urls {
		if err := lab.Ask(s.b.Context(), s.client, url, text); err != nil {
			s.b.Errorf("review: %v", err)
		}
	}
	s.store.commit(name)
}

// reviewOf returns the review of an update of an object with that size in bytes, or a little more.
func reviewOf(size int) string {
	return `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"uid-1",` +
		`"kind":{"group":"apps","version":"v1","kind":"Deployment"},"resource":{"group":"apps","version":"v1","resource":"deployments"},` +
		`"name":"NAME","namespace":"default","operation":"UPDATE","object":` + deployment(2, size) +
		`,"oldObject":` + deployment(1, size) + `,"dryRun":false}}`
}

// deployment has four containers, and the managed fields of a user and of controllers that make it as large as wanted.
func deployment(generation, size int) string {
	var containers, users []string
	for i := range 4 {
		containers = append(containers, fmt.Sprintf(`{"name":"container-%d","image":"example.org/team/image:1.%d",`+
			`"args":["--flag=\"value\"","--level=info"],"ports":[{"containerPort":%d,"protocol":"TCP"}],`+
			`"resources":{"limits":{"cpu":"100m","memory":"128Mi"}},"terminationMessagePath":"/dev/termination-log"}`, i, i, 8080+i))
		users = append(users, fmt.Sprintf(`"k:{\"name\":\"container-%d\"}":{".":{},"f:args":{},"f:image":{},"f:name":{}}`, i))
	}

	const object = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"NAME","namespace":"default","uid":"uid-NAME",` +
		`"resourceVersion":"BASE","generation":%d,"labels":{"app":"NAME","operator.kyma-project.io/watched-by":"kyma"},` +
		`"annotations":{"operator.kyma-project.io/owned-by":"kcp-system/kyma"},"managedFields":[{"manager":"kubectl",` +
		`"operation":"Update","apiVersion":"apps/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:containers":{%s}}}}%s]},` +
		`"spec":{"replicas":%d,"selector":{"matchLabels":{"app":"NAME"}},"template":{"metadata":{"labels":{"app":"NAME"}},` +
		`"spec":{"containers":[%s]}}},"status":{"observedGeneration":1,"replicas":1,"readyReplicas":1}}`
	fill := func(controllers string) string {
		return fmt.Sprintf(object, generation, strings.Join(users, ","), controllers, generation, strings.Join(containers, ","))
	}

	controllers := ""
	for i := 0; len(fill(controllers)) < size; i++ {
		controllers += fmt.Sprintf(`,{"manager":"controller-%d","operation":"Update","apiVersion":"apps/v1","subresource":"status",`+
			`"time":"2026-11-29T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":{".":{},`+
			`"k:{\"type\":\"Condition-%d\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{},"f:type":{}}}}}}`, i, i)
	}
	return fill(controllers)
}

// measure makes changes, and reports their price.
func (s *scene) measure(length time.Duration, perSecond int) {
	s.b.Helper()
	s.store.take()
	requests := s.requests() // Outside of the measured time, because it costs the agent some milliseconds.
	agent, bare := s.processor(s.agent.Pid()), s.processor(s.bare.Pid())
	n := float64(s.change(length, perSecond))
	agent, bare = s.processor(s.agent.Pid())-agent, s.processor(s.bare.Pid())-bare
	requests = s.requests() - requests
	delays := kit.Sorted(s.store.take())
	if len(delays) == 0 {
		s.b.Fatal("no change was reconciled")
	}

	const perMs = float64(time.Millisecond)
	s.b.ReportMetric(float64(agent.Microseconds())/n, "cpu-µs/change")
	s.b.ReportMetric(float64(bare.Microseconds())/n, "bare-µs/change")
	s.b.ReportMetric(float64(agent)/float64(bare), "bare")
	s.b.ReportMetric(requests/n, "requests/change")
	s.b.ReportMetric(float64(delays.At(50))/perMs, "p50-ms")
	s.b.ReportMetric(float64(delays.At(99))/perMs, "p99-ms")
}

// requests counts those of the agent to the operator.
func (s *scene) requests() float64 {
	s.b.Helper()
	return s.agent.Metric("runtime_watcher_agent_forward_duration_seconds_count")
}

// processor returns the time that a process has used, in nanoseconds. The file stat of proc(5) counts in steps of
// 10 ms.
func (s *scene) processor(pid int) (sum time.Duration) {
	s.b.Helper()
	threads := fmt.Sprintf("/proc/%d/task", pid)
	for _, thread := range lab.Must(os.ReadDir(threads)) {
		text, err := os.ReadFile(threads + "/" + thread.Name() + "/schedstat")
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		lab.NoError(s.b, err)
		first, _, _ := strings.Cut(string(text), " ")
		sum += time.Duration(lab.Must(strconv.ParseInt(first, 10, 64)))
	}
	return sum
}

// store has the objects of the runtime. It is safe for concurrent use.
type store struct {
	mu      sync.Mutex
	objects map[string]*object
	delays  kit.Delays
}

type object struct {
	version int64
	// unread has the times of the commits that no reconcile has read.
	unread []time.Time
}

func (s *store) version(name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[name] == nil {
		s.objects[name] = &object{version: 1}
	}
	return s.objects[name].version
}

func (s *store) commit(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[name]
	o.version++
	o.unread = append(o.unread, time.Now())
}

// read returns the version of an object to a reconcile. It is 0 for an object that is absent.
func (s *store) read(name string, began time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[name]
	if o == nil {
		return 0
	}
	for _, at := range o.unread {
		s.delays = append(s.delays, max(0, began.Sub(at)))
	}
	o.unread = nil
	return o.version
}

// take returns the delays since the last call.
func (s *store) take() kit.Delays {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.delays
	s.delays = nil
	return taken
}

// reader is the client of one reconcile.
type reader struct {
	client.Client

	store *store
	began time.Time
}

var deployments = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}

// GroupVersionKindFor implements [client.Client].
func (reader) GroupVersionKindFor(runtime.Object) (schema.GroupVersionKind, error) {
	return deployments, nil
}

// RESTMapper implements [client.Client].
func (reader) RESTMapper() meta.RESTMapper { return nil }

// Get implements [client.Reader].
func (r reader) Get(_ context.Context, name client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	version := r.store.read(name.Name, r.began)
	if version == 0 {
		return apierrors.NewNotFound(schema.GroupResource{Group: deployments.Group, Resource: "deployments"}, name.Name)
	}
	into.SetUID(types.UID("uid-" + name.Name))
	into.SetResourceVersion(strconv.FormatInt(version, 10))
	return nil
}
