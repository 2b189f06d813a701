package gateway_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// writesPerSecond is by default what two cores bear while other tests run: API server, etcd, agent, nginx, listener, and the test with its race
// detector. `make rotation` asks for more.
var writesPerSecond = flag.Int("writes", 150, "how often TestRotation writes in a second")

const (
	// storedObjects are few enough that each is written every second or two.
	storedObjects = 200
	// patienceOfAPIServer is longer than the default: a busy machine that is late is no lost write.
	patienceOfAPIServer = 10 * time.Second
	// readers look at what the control plane is told of, as the workers of an operator do.
	readers = 4

	watchedLabel = "gateway.example.com/watched"
	probeLabel   = "gateway.example.com/probe"
	probeWebhook = "probe.example.com"
)

// apiServer writes to a real API server. What the control plane is told of is read there, so that it is known which version was looked at.
type apiServer struct {
	t             *testing.T
	plane         *controlplane.ControlPlane
	namespace     string
	configuration *admissionregistrationv1.ValidatingWebhookConfiguration
	probe         *probe
	looks         workqueue.TypedInterface[string]

	mu       sync.Mutex
	written  map[string]uint64 // the last committed version of each object
	seen     map[string]uint64 // the last version that was read because of an event about the object
	underWay map[uint64]struct{}
	writes   uint64
	failed   int
	resyncs  int
	slowest  time.Duration
	effect   []time.Duration // how long each bundle took until it was in use
}

// newAPIServer creates the objects, and has an agent asked about them. Its webhook is trusted from the first call of trust on.
func newAPIServer(t *testing.T, plane *controlplane.ControlPlane, c *controlPlane, agent *runtimeAgent) *apiServer {
	t.Helper()

	s := &apiServer{
		t: t, plane: plane, namespace: "written-" + strconv.Itoa(agent.WebhookPort), looks: workqueue.NewTyped[string](), probe: newProbe(t),
		written: map[string]uint64{}, seen: map[string]uint64{}, underWay: map[uint64]struct{}{},
	}

	s.createObjects()
	s.read()
	c.tell(s.told)
	t.Cleanup(func() { c.tell(nil) })
	s.register(agent)

	return s
}

// createObjects creates what is written later, unseen by any webhook.
func (s *apiServer) createObjects() {
	s.t.Helper()

	if err := s.plane.Client.Create(s.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}); err != nil {
		s.t.Fatal(err)
	}

	for n := range storedObjects {
		if err := s.plane.Client.Create(s.t.Context(), s.object(objectName(n))); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *apiServer) object(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: map[string]string{watchedLabel: s.namespace}}}
}

// register has the API server ask the agent about the objects, and the probe which configuration is in use.
func (s *apiServer) register(agent *runtimeAgent) {
	s.t.Helper()

	s.configuration = must(admission.WebhookConfiguration(s.namespace, admission.Endpoint{
		URL: "https://" + rig.Address(agent.WebhookPort), CABundle: s.probe.certificate(),
	}, []admission.Watch{{
		Name:     types.NamespacedName{Namespace: s.namespace, Name: "configmaps"},
		Manager:  component,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Labels:   map[string]string{watchedLabel: s.namespace},
	}}, admission.ConfigurationOptions{Timeout: patienceOfAPIServer}))
	s.configuration.Webhooks = append(s.configuration.Webhooks, s.probe.webhook(s.namespace))

	if err := s.plane.Client.Create(s.t.Context(), s.configuration); err != nil {
		s.t.Fatal(err)
	}

	s.t.Cleanup(func() {
		if err := s.plane.Client.Delete(context.WithoutCancel(s.t.Context()), s.configuration); err != nil {
			s.t.Errorf("the webhook configuration stays: %v", err)
		}
	})
}

// trust returns when the bundle is in use, and writes that may have begun with the one before have ended.
func (s *apiServer) trust(bundle []byte) {
	s.t.Helper()

	generation := s.probe.next()

	s.hook().ClientConfig.CABundle = bundle
	s.probeHook().ClientConfig.URL = new(s.probe.url(generation))

	if err := s.plane.Client.Update(s.t.Context(), s.configuration); err != nil {
		s.t.Fatal(err)
	}

	updated := time.Now()

	eventually(s.t, "the API server uses the new webhook configuration", func() bool {
		s.askProbe()

		return s.probe.asked.Load() == generation
	})

	before := s.begun()
	s.effect = append(s.effect, time.Since(updated))

	eventually(s.t, "writes that began with the old configuration end", func() bool { return !s.anyUnderWay(before) })
}

// reconnect relies on that an API server has one pool of connections for each text of a bundle.
func (s *apiServer) reconnect() {
	s.t.Helper()
	s.trust(append(s.hook().ClientConfig.CABundle, '\n'))
}

// askProbe makes a write that is none, about which the probe is asked and the agent is not.
func (s *apiServer) askProbe() {
	s.t.Helper()

	object := s.object("probe")
	object.Labels = map[string]string{probeLabel: s.namespace}

	if err := s.plane.Client.Create(s.t.Context(), object, client.DryRunAll); err != nil {
		s.t.Fatal(err)
	}
}

// begun returns the writes under way.
func (s *apiServer) begun() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Collect(maps.Keys(s.underWay))
}

func (s *apiServer) anyUnderWay(writes []uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.ContainsFunc(writes, func(write uint64) bool {
		_, underWay := s.underWay[write]

		return underWay
	})
}

func (s *apiServer) run(ctx context.Context) { atRate(ctx, *writesPerSecond, storedObjects, s.write) }

func (s *apiServer) write(name string) {
	s.mu.Lock()
	s.writes++
	write := s.writes
	s.underWay[write] = struct{}{}
	s.mu.Unlock()

	started := time.Now()
	object := s.object(name)
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"data":{"write":"%d"}}`, write))
	// Not bound to the end of the run: what is begun is finished.
	err := s.plane.Client.Patch(context.Background(), object, patch)
	took := time.Since(started)

	s.mu.Lock()
	defer s.mu.Unlock()

	delete(s.underWay, write)
	s.slowest = max(s.slowest, took)

	if err == nil {
		s.written[name] = max(s.written[name], version(object))

		return
	}

	s.failed++

	if s.failed <= 3 { // The others are alike.
		s.t.Errorf("a write failed: %v", err)
	}
}

func version(object client.Object) uint64 {
	return must(strconv.ParseUint(object.GetResourceVersion(), 10, 64))
}

// told is what an operator does with a delivery: it enqueues what to look at.
func (s *apiServer) told(d core.Delivery) {
	switch d.Event.Kind {
	case core.KindChanged:
		s.looks.Add(d.Event.Watched.Name)
	case core.KindResync: // Nothing is read, so that no resync makes up for an event.
		s.mu.Lock()
		defer s.mu.Unlock()

		s.resyncs++
	default:
	}
}

// read looks at what is enqueued until the test ends.
func (s *apiServer) read() {
	var reading sync.WaitGroup

	for range readers {
		reading.Go(func() {
			for name, ended := s.looks.Get(); !ended; name, ended = s.looks.Get() {
				s.look(name)
				s.looks.Done(name)
			}
		})
	}

	s.t.Cleanup(func() {
		s.looks.ShutDown()
		reading.Wait()
	})
}

func (s *apiServer) look(name string) {
	object := s.object(name)
	if err := s.plane.Client.Get(context.Background(), client.ObjectKeyFromObject(object), object); err != nil {
		s.t.Errorf("read %s: %v", name, err)

		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.seen[name] = max(s.seen[name], version(object))
}

// late returns the objects whose last committed version was not read because of an event.
func (s *apiServer) late() (late []string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for object, committed := range s.written {
		if s.seen[object] < committed {
			late = append(late, object)
		}
	}

	return late
}

// check holds the API server's own counters against what was written.
func (s *apiServer) check(t *testing.T, reviewed float64) {
	t.Helper()

	asked, open, rejected := s.metric("request_total", `code="200"`), s.metric("fail_open_count"), s.metric("rejection_count")

	s.mu.Lock()
	defer s.mu.Unlock()

	if writes := float64(s.writes); asked < writes || reviewed < writes || len(s.written) < storedObjects {
		t.Errorf("of %v writes of %d objects, the webhook was asked about %v, and %v became events", writes, len(s.written), asked, reviewed)
	}

	if open != 0 || rejected != 0 {
		t.Errorf("the API server went on without an answer %v times, and took one for a refusal %v times, want 0", open, rejected)
	}
}

// metric is one of the API server's about the agent's webhook.
func (s *apiServer) metric(name string, labels ...string) float64 {
	s.t.Helper()

	return rig.Sum(rig.ScrapeAPIServer(s.t, s.plane), "apiserver_admission_webhook_"+name, append(labels, fmt.Sprintf("name=%q", s.hook().Name))...)
}

// hook is the webhook that the agent is.
func (s *apiServer) hook() *admissionregistrationv1.ValidatingWebhook {
	return &s.configuration.Webhooks[0]
}

func (s *apiServer) probeHook() *admissionregistrationv1.ValidatingWebhook {
	return &s.configuration.Webhooks[1]
}

func (s *apiServer) summary() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	slices.Sort(s.effect)

	return fmt.Sprintf("%d writes of %d objects, %d failed, slowest %v, %d resyncs, %d bundles, in use after %v (median), at most %v",
		s.writes, len(s.written), s.failed, s.slowest, s.resyncs, len(s.effect), s.effect[len(s.effect)/2], slices.Max(s.effect))
}

// probe is a webhook whose URL is another one in each generation of a configuration, so that it knows which one an API server uses. All webhooks
// of a configuration come into use together.
type probe struct {
	server *httptest.Server
	last   int64
	asked  atomic.Int64
}

func newProbe(t *testing.T) *probe {
	t.Helper()

	p := &probe{}
	p.server = httptest.NewTLSServer(http.HandlerFunc(p.answer))
	t.Cleanup(p.server.Close)

	return p
}

func (p *probe) next() int64 {
	p.last++

	return p.last
}

func (p *probe) url(generation int64) string {
	return p.server.URL + "/" + strconv.FormatInt(generation, 10)
}

func (p *probe) certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
}

func (p *probe) answer(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		w.WriteHeader(http.StatusBadRequest)

		return
	}

	if generation, err := strconv.ParseInt(path.Base(r.URL.Path), 10, 64); err == nil {
		p.asked.Store(generation)
	}

	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil

	w.Header().Set("Content-Type", "application/json")

	_ = json.NewEncoder(w).Encode(review) // The API server goes on without.
}

func (p *probe) webhook(label string) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name: probeWebhook,
		ClientConfig: admissionregistrationv1.WebhookClientConfig{
			URL:      new(p.url(p.last)),
			CABundle: p.certificate(),
		},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}},
		ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{probeLabel: label}},
		FailurePolicy:           new(admissionregistrationv1.Ignore),
		SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
	}
}
