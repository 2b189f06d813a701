// Package subresources proves against a real API server which writes of which resources and
// subresources become events, and how many of them leave the API server.
package subresources

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

// The managers of a scene get the same watches.
const (
	selected   core.Manager = "selected"   // with the match conditions of the agent, the default
	everything core.Manager = "everything" // without
	informed   core.Manager = "informed"   // by an informer, which sees what is committed
)

// scene is an API server that calls the handler of an agent for the watches of Watchers.
type scene struct {
	t     *testing.T
	plane *apiserver.ControlPlane
	api   *lab.API

	failures float64 // of conditions, before the test
	refuses  int     // the status that [refused] wants

	calls sync.RWMutex // held for reading during each call of the webhook

	mu       sync.Mutex
	managers []core.Manager // that are registered
	called   map[core.Manager]int
	events   map[core.Manager][]string
	seen     []string // by an informer
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, called: map[core.Manager]int{}, events: map[core.Manager][]string{}}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, k := range []kind{widgets, gadgets, samples, things, plants} {
		d := lab.Definition(k.gvr.Group, k.gvr.Resource, k.name)
		switch version := &d.Spec.Versions[0]; k {
		case widgets, gadgets:
			version.Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
				SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas",
			}
		case things:
			version.Subresources = nil
		case plants:
			d.Spec.Scope = apiextensionsv1.ClusterScoped
		}
		crds = append(crds, d)
	}
	s.plane = lab.SharedAPIServer(t, apiserver.Options{CRDs: crds})
	s.api, s.failures = lab.NewAPI(t, s.plane), s.conditionErrors()
	return s
}

// watches returns the watches of a list of Watchers in YAML, for one manager.
func watches(t testing.TB, manager core.Manager, list string) []watch.Watch {
	t.Helper()
	var watchers []v1beta2.Watcher
	lab.NoError(t, yaml.UnmarshalStrict([]byte(list), &watchers))
	for i := range watchers {
		watchers[i].Namespace, watchers[i].Spec.Manager = "kcp-system", string(manager)
	}
	return lab.Must(watcher.Watches(watchers, names.Names{}))
}

// register makes the API server call the handler for watches, and returns when it does.
func (s *scene) register(manager core.Manager, watches []watch.Watch, opts admission.ConfigurationOptions) {
	s.t.Helper()
	s.managers = append(s.managers, manager)
	handler := lab.Must(admission.New(core.AcceptorFunc(s.accept), admission.Options{}))
	opts.Timeout = 30 * time.Second
	probe := watch.Watch{
		Name: types.NamespacedName{Namespace: "probe", Name: "probe"}, Manager: manager,
		Resource: leases.gvr,
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.RLock()
		defer s.calls.RUnlock()
		s.mu.Lock()
		s.called[manager]++
		s.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	s.t.Cleanup(server.Close)
	s.create(lab.Must(admission.WebhookConfiguration(string(manager), admission.Endpoint{
		URL: server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}, append(watches, probe), opts)))
	lab.Eventually(s.t, 3*time.Minute, "the API server calls for "+string(manager), func() bool {
		request(http.MethodPost, "", plainJSON, `{"metadata":{"generateName":"probe-"}}`)(s, leases, "")
		_, called := s.taken()
		return called[manager] > 0
	})
}

func (s *scene) create(configuration client.Object) {
	s.t.Helper()
	lab.NoError(s.t, s.plane.Client.Create(s.t.Context(), configuration))
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
		s.events[manager] = append(s.events[manager], "resync") // That of an informer is for its first list.
		return core.Accepted
	}
	kind := event.WatchedGVK
	text := fmt.Sprintf("%s %s.%s.%s %s", event.Operation, kind.Kind, kind.Version, kind.Group, event.Watched)
	if manager == informed {
		s.seen = append(s.seen, text)
	} else {
		s.events[manager] = append(s.events[manager], text)
	}
	return core.Accepted
}

// inform watches what an informer can: no subresources. It returns when all watches are established.
func (s *scene) inform(watches []watch.Watch) {
	s.t.Helper()
	watches = slices.DeleteFunc(watches, func(w watch.Watch) bool { return strings.Contains(w.Resource.Resource, "/") })
	source := lab.Must(informer.New(s.plane.Config, core.AcceptorFunc(s.accept), watches, informer.Options{}))
	lab.Run(s.t, "informer", source.Start)
	lab.Eventually(s.t, 3*time.Minute, "the watches are established", func() bool { return source.Ready() == nil })
}

// sees waits for the events of the informer since the last call, with commas. One that should not be
// there fails a later call.
func (s *scene) sees(want string) {
	s.t.Helper()
	var got string
	lab.Eventually(s.t, 3*time.Minute, "the informer sees "+want, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		slices.Sort(s.seen)
		if got = strings.Join(s.seen, ", "); len(got) < len(want) {
			return false
		}
		s.seen = nil
		return true
	})
	if got != want {
		s.t.Errorf("events of the informer: %q, want %q", got, want)
	}
}

// taken returns events and calls since it was last called. It waits for handlers that still run.
func (s *scene) taken() (events map[core.Manager][]string, called map[core.Manager]int) {
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	events, called = s.events, s.called
	s.events = map[core.Manager][]string{}
	s.called = map[core.Manager]int{}
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
	for _, k := range []kind{pods, accounts, configMaps, deployments, widgets, gadgets, plants} {
		lab.Eventually(s.t, 3*time.Minute, "the cache of "+k.gvr.Resource+" is full", func() bool {
			status, _ := s.api.Do(s.t, http.MethodGet, k.path(""), plainJSON, "")
			return status == http.StatusOK
		})
	}
}

// conditionErrors returns how many match conditions the API server could not evaluate.
func (s *scene) conditionErrors() float64 {
	s.t.Helper()
	return lab.Sum(lab.ScrapeAPIServer(s.t, s.plane), "apiserver_admission_match_condition_evaluation_errors_total")
}

// end fails the test if a condition could not be evaluated: such a write would be lost.
func (s *scene) end() {
	s.t.Helper()
	if n := s.conditionErrors() - s.failures; n != 0 {
		s.t.Errorf("%v conditions could not be evaluated, want none", n)
	}
}

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// run runs a part of the test.
func (s *scene) run(name string, part func()) {
	s.t.Helper()
	whole := s.t
	whole.Run(name, func(t *testing.T) {
		s.t = t
		defer func() { s.t = whole }()
		part()
	})
}

// registerDenial adds a webhook that cannot be called, by which the API server refuses objects with the label denied. It
// returns when the API server does so.
func (s *scene) registerDenial() {
	s.t.Helper()
	s.create(manifests.Object(s.t, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: denial}
webhooks:
- name: denial.example.com
  clientConfig: {url: "https://127.0.0.1:9"}
  rules: [{operations: ["*"], apiGroups: ["*"], apiVersions: ["*"], resources: ["*"]}]
  objectSelector: {matchLabels: {denied: "true"}}
  sideEffects: None
  admissionReviewVersions: [v1]`))
	lab.Eventually(s.t, 3*time.Minute, "the other webhook denies", func() bool {
		status, _ := s.api.Do(s.t, http.MethodPost, configMaps.path("")+"?dryRun=All", plainJSON,
			`{"metadata":{"generateName":"probe-","labels":{"denied":"true"}}}`)
		return status == http.StatusInternalServerError
	})
}

// kind is a kind of objects that the tests write, in one namespace, or in none.
type kind struct {
	gvr             schema.GroupVersionResource
	name, namespace string
}

func kindOf(group, resource, name, namespace string) kind {
	return kind{schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, name, namespace}
}

var (
	widgets     = kindOf("example.com", "widgets", "Widget", "default") // with the subresource scale
	gadgets     = kindOf("example.com", "gadgets", "Gadget", "default") // with the subresource scale
	samples     = kindOf("example.com", "samples", "Sample", "default")
	things      = kindOf("example.com", "things", "Thing", "default") // without subresources
	plants      = kindOf("example.com", "plants", "Plant", "")
	deployments = kindOf("apps", "deployments", "Deployment", "default")
	leases      = kindOf("coordination.k8s.io", "leases", "Lease", "default")
	definitions = kindOf("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", "")
	configMaps  = kindOf("", "configmaps", "ConfigMap", "default")
	secrets     = kindOf("", "secrets", "Secret", "default")
	pods        = kindOf("", "pods", "Pod", "default")
	accounts    = kindOf("", "serviceaccounts", "ServiceAccount", "default")
	namespaces  = kindOf("", "namespaces", "Namespace", "")
)

// in returns the kind in another namespace.
func (k kind) in(namespace string) kind {
	k.namespace = namespace
	return k
}

// path is where an object is, or all of the namespace.
func (k kind) path(name string) string {
	root := path.Join("/apis", k.gvr.Group)
	namespace := ""
	if k.gvr.Group == "" {
		root = "/api"
	}
	if k.namespace != "" {
		namespace = "namespaces/" + k.namespace
	}
	return path.Join(root, k.gvr.Version, namespace, k.gvr.Resource, name)
}

// object returns an object of members in JSON.
func (k kind) object(name, members string) string {
	text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q`, k.gvr.GroupVersion(), k.name, name)
	if rest, ok := strings.CutPrefix(members, `"metadata":{`); ok {
		return text + "," + rest + "}"
	}
	return strings.TrimSuffix(text+"},"+members, ",") + "}"
}

// event is the text of an event: see [scene.accept].
func (k kind) event(operation, name string) string {
	return fmt.Sprintf("%s %s.%s.%s %s/%s", operation, k.name, k.gvr.Version, k.gvr.Group, k.namespace, name)
}

const (
	mergePatch = "application/merge-patch+json"
	applyPatch = "application/apply-patch+yaml"
	plainJSON  = "application/json"
)

// write makes one or more requests for an object. What follows its path is "/<subresource>?<query>".
type write func(s *scene, k kind, name string)

func request(method, more, contentType, body string) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		s.must(method, k.path(name)+more, contentType, body)
	}
}

func merge(more, body string) write { return request(http.MethodPatch, more, mergePatch, body) }

func post(more, body string) write { return request(http.MethodPost, more, plainJSON, body) }

func remove(more string) write { return request(http.MethodDelete, more, plainJSON, "") }

// removeAll removes the ConfigMaps of a namespace.
func removeAll(s *scene, k kind, _ string) {
	s.t.Helper()
	remove("?fieldSelector=metadata.name!=kube-root-ca.crt")(s, k, "")
}

// made creates the object of members in JSON.
func made(members string) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		s.must(http.MethodPost, k.path(""), plainJSON, k.object(name, members))
	}
}

func apply(more, members string) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		s.must(http.MethodPatch, k.path(name)+more, applyPatch, k.object(name, members))
	}
}

// refused is a write that the API server must refuse with a status.
func refused(status int, write write) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		s.refuses = status
		defer func() { s.refuses = 0 }()
		write(s, k, name)
	}
}

// all makes writes one after the other.
func all(writes ...write) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		for _, write := range writes {
			write(s, k, name)
		}
	}
}

// must fails the test unless the API server answers with success, or with the status of refused.
func (s *scene) must(method, at, contentType, body string) (answer []byte) {
	s.t.Helper()
	status, answer := s.api.Do(s.t, method, at, contentType, body)
	if status != s.refuses && (s.refuses != 0 || status >= http.StatusMultipleChoices) {
		s.t.Fatalf("%s %s: status %d: %.500s", method, at, status, answer)
	}
	return answer
}

// put replaces a top-level field of an object by raw JSON, as it stands: the order and the notation
// stay. An empty text removes it.
func put(more, field, raw string) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		var object map[string]json.RawMessage
		lab.NoError(s.t, json.Unmarshal(s.must(http.MethodGet, k.path(name), plainJSON, ""), &object))
		if object[field] = json.RawMessage(raw); raw == "" {
			delete(object, field)
		}
		var text bytes.Buffer // json.Marshal would change the order of members within a field.
		for field, raw := range object {
			fmt.Fprintf(&text, ",%q:%s", field, raw)
		}
		s.must(http.MethodPut, k.path(name)+more, plainJSON, "{"+text.String()[1:]+"}")
	}
}
