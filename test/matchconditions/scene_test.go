// Package matchconditions proves against a real API server that the match conditions of a webhook
// configuration select the same writes as the agent's filter, and measures the savings.
package matchconditions

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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
	everything core.Manager = "everything" // is asked about every write
	selection  core.Manager = "selection"  // has match conditions
)

// kind is a kind of objects that a scene writes.
type kind struct {
	gvr        schema.GroupVersionResource
	apiVersion string
	name       string
	status     bool // has a status subresource
}

var (
	widgets     = kind{gvr("example.com", "widgets"), "example.com/v1", "Widget", true}
	gadgets     = kind{gvr("example.com", "gadgets"), "example.com/v1", "Gadget", false}
	configMaps  = kind{gvr("", "configmaps"), "v1", "ConfigMap", false}
	deployments = kind{gvr("apps", "deployments"), "apps/v1", "Deployment", true}
)

func kinds() []kind { return []kind{widgets, gadgets, configMaps, deployments} }

func gvr(group, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
}

// path is where objects of the kind are.
func (k kind) path(name, subresource string) string {
	path := "/apis/" + k.apiVersion
	if k.gvr.Group == "" {
		path = "/api/v1"
	}

	path += "/namespaces/default/" + k.gvr.Resource
	if name != "" {
		path += "/" + name
	}

	if subresource != "" {
		path += "/" + subresource
	}
	return path
}

// scene is an API server that asks the agent's handler about every write twice: for everything, and
// for the selection.
type scene struct {
	t     testing.TB
	plane *apiserver.ControlPlane
	api   *lab.API

	calls sync.RWMutex // held for reading during each call of the webhook

	mu      sync.Mutex
	reviews map[core.Manager]map[admission.Decision]int
}

func newScene(t testing.TB) *scene {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}

	s := &scene{t: t, reviews: map[core.Manager]map[admission.Decision]int{}}
	s.plane = apiserver.StartT(t, apiserver.Options{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		definition(widgets), definition(gadgets),
	}})
	s.api = lab.NewAPI(t, s.plane)
	return s
}

// definition returns the definition of a kind. Its objects may have any field.
func definition(k kind) *apiextensionsv1.CustomResourceDefinition {
	version := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: "v1", Served: true, Storage: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", XPreserveUnknownFields: new(true),
		}},
	}
	if k.status {
		version.Subresources = &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: k.gvr.Resource + "." + k.gvr.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: k.gvr.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: k.gvr.Resource, Kind: k.name},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version},
		},
	}
}

// watch makes the API server ask on behalf of a manager about all kinds, and returns when it does.
func (s *scene) watch(manager core.Manager, matchConditions bool) {
	s.t.Helper()
	handler, err := admission.New(
		core.AcceptorFunc(func(core.Manager, core.WatchEvent) core.Outcome { return core.Accepted }),
		admission.Options{Hooks: admission.Hooks{Reviewed: s.reviewed}},
	)
	if err != nil {
		s.t.Fatal(err)
	}

	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.RLock()
		defer s.calls.RUnlock()
		handler.ServeHTTP(w, r)
	}))
	s.t.Cleanup(server.Close)

	var watches []watch.Watch
	for _, k := range kinds() {
		for _, field := range []core.Field{core.FieldSpec, core.FieldStatus} {
			name := types.NamespacedName{Namespace: "default", Name: k.gvr.Resource + "-" + string(field)}
			watches = append(watches, watch.Watch{Name: name, Manager: manager, Resource: k.gvr, Field: field})
		}
	}

	configuration, err := admission.WebhookConfiguration(string(manager), admission.Endpoint{
		URL:      server.URL,
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}, watches, admission.ConfigurationOptions{NoMatchConditions: !matchConditions, Timeout: 30 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}

	if err := s.plane.Client.Create(s.t.Context(), configuration); err != nil {
		s.t.Fatal(err)
	}

	s.awaitReviews(manager)
}

func (s *scene) awaitReviews(manager core.Manager) {
	s.t.Helper()
	lab.Eventually(s.t, time.Minute, "the API server asks on behalf of "+string(manager), func() bool {
		s.do(http.MethodPost, configMaps.path("", ""), "application/json", `{"metadata":{"generateName":"probe-"}}`)
		return sum(s.taken()[manager]) > 0
	})
}

func (s *scene) reviewed(manager core.Manager, decision string, _ time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reviews[manager] == nil {
		s.reviews[manager] = map[admission.Decision]int{}
	}

	s.reviews[manager][admission.Decision(decision)]++
}

// taken returns the reviews since it was last called. It waits for handlers, which count after
// their answer.
func (s *scene) taken() map[core.Manager]map[admission.Decision]int {
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.reviews
	s.reviews = map[core.Manager]map[admission.Decision]int{}
	return taken
}

func sum(decisions map[admission.Decision]int) (n int) {
	for _, count := range decisions {
		n += count
	}
	return n
}

// do sends one request and returns the status and the body of the answer.
func (s *scene) do(method, path, contentType, body string) (int, []byte) {
	s.t.Helper()
	return s.api.Do(s.t, method, path, contentType, body)
}

// patch sends a merge patch.
func (s *scene) patch(k kind, name, subresource, body string) int {
	status, _ := s.do(http.MethodPatch, k.path(name, subresource), "application/merge-patch+json", body)
	return status
}

// put replaces top-level fields of an object by raw JSON, as it stands: the order and the notation
// stay. An empty text removes one.
func (s *scene) put(k kind, name, subresource, query string, fields map[string]string) int {
	s.t.Helper()
	status, current := s.do(http.MethodGet, k.path(name, ""), "application/json", "")
	if status != http.StatusOK {
		return status
	}

	var object map[string]json.RawMessage
	if err := json.Unmarshal(current, &object); err != nil {
		s.t.Fatal(err)
	}

	for field, raw := range fields {
		if object[field] = json.RawMessage(raw); raw == "" {
			delete(object, field)
		}
	}

	status, _ = s.do(http.MethodPut, k.path(name, subresource)+query, "application/json", join(object))
	return status
}

// join keeps the notation of numbers, which json.Marshal would do, too, and the order of members
// within a field, which it would not.
func join(object map[string]json.RawMessage) string {
	var text bytes.Buffer
	for field, raw := range object {
		fmt.Fprintf(&text, ",%q:%s", field, raw)
	}
	return "{" + text.String()[1:] + "}"
}

// metric returns the sum of a metric of the API server.
func (s *scene) metric(name string) float64 {
	s.t.Helper()
	return lab.Sum(lab.ScrapeAPIServer(s.t, s.plane), name)
}

// checkErrors fails when a condition could not be evaluated: then a write would have been lost.
func (s *scene) checkErrors() {
	s.t.Helper()
	if n := s.metric("apiserver_admission_match_condition_evaluation_errors_total"); n != 0 {
		s.t.Errorf("%v conditions could not be evaluated, want none", n)
	}

	if s.metric("apiserver_admission_match_condition_evaluation_seconds_count") == 0 {
		s.t.Error("no condition was evaluated at all")
	}
}
