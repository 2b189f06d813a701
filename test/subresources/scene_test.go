package subresources

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// The managers of a scene get the same watches.
const (
	selected   core.Manager = "selected"   // with the match conditions of the agent, the default
	everything core.Manager = "everything" // without
)

// scene is an API server that calls the handler of an agent for the watches of Watchers.
type scene struct {
	t     testing.TB
	plane *apiserver.ControlPlane
	api   *lab.API

	calls sync.RWMutex // held for reading during each call of the webhook

	mu     sync.Mutex
	called map[core.Manager]int
	events map[core.Manager][]string
}

func newScene(t testing.TB) *scene {
	t.Helper()
	s := &scene{t: t, called: map[core.Manager]int{}, events: map[core.Manager][]string{}}
	s.plane = lab.SharedAPIServer(t, apiserver.Options{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		scaling(lab.Definition("example.com", "widgets", "Widget")),
		scaling(lab.Definition("example.com", "gadgets", "Gadget")),
		ofCluster(lab.Definition("example.com", "plants", "Plant")),
		lab.Definition("example.com", "samples", "Sample"),
		withoutSubresources(lab.Definition("example.com", "things", "Thing")),
	}})
	s.api = lab.NewAPI(t, s.plane)
	return s
}

// scaling adds the subresource scale to a definition.
func scaling(d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	d.Spec.Versions[0].Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
		SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas",
	}
	return d
}

func ofCluster(d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	d.Spec.Scope = apiextensionsv1.ClusterScoped
	return d
}

func withoutSubresources(d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	d.Spec.Versions[0].Subresources = nil
	return d
}

// watches returns the watches of Watchers in YAML, for one manager.
func watches(t testing.TB, manager core.Manager, documents string) []watch.Watch {
	t.Helper()
	var watchers []v1beta2.Watcher
	for document := range strings.SplitSeq(documents, "\n---\n") {
		var w v1beta2.Watcher
		if err := yaml.UnmarshalStrict([]byte(document), &w); err != nil {
			t.Fatal(err)
		}
		w.Namespace, w.Spec.Manager = "kcp-system", string(manager)
		watchers = append(watchers, w)
	}
	all, err := watcher.Watches(watchers)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// register makes the API server call the handler for watches, and returns when it does.
func (s *scene) register(manager core.Manager, watches []watch.Watch, opts admission.ConfigurationOptions) {
	s.t.Helper()
	handler, err := admission.New(core.AcceptorFunc(s.accept), admission.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	opts.Timeout = 30 * time.Second
	probe := watch.Watch{
		Name: types.NamespacedName{Namespace: "probe", Name: "probe"}, Manager: manager,
		Resource: admissionResource("coordination.k8s.io", "leases"),
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.RLock()
		defer s.calls.RUnlock()
		s.count(manager)
		handler.ServeHTTP(w, r)
	}))
	s.t.Cleanup(server.Close)
	configuration, err := admission.WebhookConfiguration(string(manager), admission.Endpoint{
		URL: server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}, append(watches, probe), opts)
	if err != nil {
		s.t.Fatal(err)
	}
	s.create(configuration)
	lab.Eventually(s.t, 3*time.Minute, "the API server calls for "+string(manager), func() bool {
		s.must(http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/default/leases", "application/json",
			`{"metadata":{"generateName":"probe-"}}`)
		_, called := s.taken()
		return called[manager] > 0
	})
}

func (s *scene) create(configuration *admissionregistrationv1.ValidatingWebhookConfiguration) {
	s.t.Helper()
	if err := s.plane.Client.Create(s.t.Context(), configuration); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		err := s.plane.Client.Delete(context.WithoutCancel(s.t.Context()), configuration)
		if client.IgnoreNotFound(err) != nil {
			s.t.Error(err)
		}
	})
}

// accept notes an event as "<operation> <kind>.<version>.<group> <namespace>/<name>", or "resync".
func (s *scene) accept(manager core.Manager, event core.WatchEvent) core.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	if event.Resync {
		s.events[manager] = append(s.events[manager], "resync")
		return core.Accepted
	}
	kind := event.WatchedGVK
	s.events[manager] = append(s.events[manager], fmt.Sprintf("%s %s.%s.%s %s",
		event.Operation, kind.Kind, kind.Version, kind.Group, event.Watched))
	return core.Accepted
}

func (s *scene) count(manager core.Manager) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called[manager]++
}

// taken returns events and calls since it was last called. It waits for handlers that still run.
func (s *scene) taken() (events map[core.Manager][]string, called map[core.Manager]int) {
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	events, called = s.events, s.called
	s.events, s.called = map[core.Manager][]string{}, map[core.Manager]int{}
	for _, noted := range events {
		slices.Sort(noted)
	}
	return events, called
}

// updateCaches waits until the API server has the last writes in its caches. With an old object in a cache it repeats
// the next write, and calls the webhooks again, also with a change that is none. A list reads a cache that is up to
// date. It is refused while the cache of a new definition fills.
func (s *scene) updateCaches() {
	s.t.Helper()
	for _, collection := range []string{
		ofCore("pods", ""), ofCore("serviceaccounts", ""), ofCore("configmaps", ""), namespaced("apps", "deployments", ""),
		namespaced("example.com", "widgets", ""), namespaced("example.com", "gadgets", ""), "/apis/example.com/v1/plants",
	} {
		lab.Eventually(s.t, 3*time.Minute, "the cache of "+collection+" is full", func() bool {
			status, _ := s.do(http.MethodGet, collection, plainJSON, "")
			return status == http.StatusOK
		})
	}
}

// do sends one request and returns the status and the body of the answer.
func (s *scene) do(method, path, contentType, body string) (int, []byte) {
	s.t.Helper()
	return s.api.Do(s.t, method, path, contentType, body)
}

// must fails the test unless the API server answers with success.
func (s *scene) must(method, path, contentType, body string) {
	s.t.Helper()
	if status, answer := s.do(method, path, contentType, body); status >= http.StatusMultipleChoices {
		s.t.Fatalf("%s %s: status %d: %.500s", method, path, status, answer)
	}
}

// conditionErrors returns how many match conditions the API server could not evaluate.
func (s *scene) conditionErrors() float64 {
	s.t.Helper()
	return lab.Sum(lab.ScrapeAPIServer(s.t, s.plane), "apiserver_admission_match_condition_evaluation_errors_total")
}
