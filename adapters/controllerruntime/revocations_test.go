package controllerruntime_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// configMaps is an API server with one ConfigMap.
type configMaps struct {
	mu      sync.Mutex
	current *corev1.ConfigMap
	// refusal answers each request for the ConfigMap, unless it is empty.
	refusal   metav1.Status
	selectors map[string]bool
	version   int
	watches   []chan metav1.WatchEvent
}

func (c *configMaps) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/api":
		_ = json.NewEncoder(w).Encode(metav1.APIVersions{Versions: []string{"v1"}})
	case "/apis":
		_ = json.NewEncoder(w).Encode(metav1.APIGroupList{})
	case "/api/v1":
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: []string{"list", "watch"}},
		}})
	case "/api/v1/namespaces/kcp-system/configmaps":
		c.serve(w, r)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (c *configMaps) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.selectors[r.URL.Query().Get("fieldSelector")] = true
	refusal := c.refusal
	list := corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	if c.current != nil {
		list.Items = append(list.Items, *c.current)
	}

	events := make(chan metav1.WatchEvent, 16)
	if r.URL.Query().Get("watch") != "" && refusal.Code == 0 {
		c.watches = append(c.watches, events)
	}

	c.mu.Unlock()

	if r.URL.Query().Get("sendInitialEvents") != "" { // An old server: the client lists then.
		refusal = forbidden
	}
	if refusal.Code != 0 {
		w.WriteHeader(int(refusal.Code))
		_ = json.NewEncoder(w).Encode(refusal)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		_ = json.NewEncoder(w).Encode(list)
		return
	}

	controller := http.NewResponseController(w)
	_ = controller.Flush()
	for {
		select {
		case event, goesOn := <-events:
			if !goesOn {
				return
			}
			_ = json.NewEncoder(w).Encode(event)
			_ = controller.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

var (
	allowed   = metav1.Status{}
	forbidden = metav1.Status{Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden}
	down      = metav1.Status{
		Status: "Failure", Reason: metav1.StatusReasonServiceUnavailable, Code: http.StatusServiceUnavailable,
	}
)

// refuse answers the operator with the refusal from now on, and ends all watches.
func (c *configMaps) refuse(refusal metav1.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = refusal
	for _, watch := range c.watches {
		close(watch)
	}

	c.watches = nil
}

// put replaces the ConfigMap; nil deletes it.
func (c *configMaps) put(data map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	kind := "MODIFIED"
	object := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: "revoked", ResourceVersion: string(rune('1' + c.version))},
		Data:       data,
	}
	switch {
	case data == nil:
		kind = "DELETED"
		object = c.current
	case c.current == nil:
		kind = "ADDED"
	}

	c.current = object
	if data == nil {
		c.current = nil
	}

	for _, watch := range c.watches {
		raw := must(json.Marshal(object))
		event := metav1.WatchEvent{Type: kind}
		event.Object.Raw = raw
		watch <- event
	}
}

// The list is read live, for this one ConfigMap. A failure keeps the last good list, and before
// there is any, no sender is admitted.
func TestRevocationsFromConfigMap(t *testing.T) {
	t.Parallel()

	api := &configMaps{selectors: map[string]bool{}, refusal: forbidden}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	var log records
	mgr := must(manager.New(&rest.Config{Host: server.URL}, manager.Options{
		Logger: funcr.New(log.add, funcr.Options{}), Metrics: metricsserver.Options{BindAddress: "0"},
	}))
	name := types.NamespacedName{Namespace: "kcp-system", Name: "revoked"}
	var broken atomic.Bool
	revoked := must(controllerruntime.RevocationsFromConfigMap(mgr, name, intake.RevocationOptions{
		Changed: func(_ int, err error) { broken.Store(err != nil) },
	}))
	runnable, _ := revoked.(manager.LeaderElectionRunnable)
	if runnable == nil || runnable.NeedLeaderElection() {
		t.Error("the list is read by the leader only")
	}

	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(t.Context()) }()
	t.Cleanup(func() {
		server.CloseClientConnections()
		check(t, <-ended)
	})

	within := func(what string, met func() bool) {
		t.Helper()
		late := time.After(time.Minute)
		for !met() {
			select {
			case <-late:
				t.Fatalf("not in a minute: %s; %q", what, log.lines)
			case <-time.After(time.Millisecond):
			}
		}
	}

	revokes := func(runtime core.RuntimeID) bool {
		return revoked.RevocationList().Revokes(core.Peer{ID: runtime})
	}
	within("no right", func() bool { return log.has("no sender is admitted until the list is valid") })
	api.refuse(allowed)
	within("no ConfigMap", func() bool { return log.has("ConfigMap does not exist") })
	if revoked.RevocationList() != nil {
		t.Error("a missing ConfigMap is an empty list")
	}

	api.put(map[string]string{"other": ""})
	within("no key", func() bool { return log.has(`no key`) })
	api.put(map[string]string{"revoked": "name:runtime-a"})
	within("the list", func() bool { return revokes("runtime-a") })
	api.put(map[string]string{"revoked": "name:runtime-a\nruntime-b"})
	within("a malformed line", func() bool { return log.has("line 2") })
	api.put(nil)
	if !revokes("runtime-a") {
		t.Error("the last good list did not stay")
	}

	api.put(map[string]string{"revoked": "name:runtime-b"})
	within("the next list", func() bool { return revokes("runtime-b") && !revokes("runtime-a") })
	api.put(map[string]string{"revoked": ""})
	within("the empty list", func() bool { return !revokes("runtime-b") })

	if broken.Load() {
		t.Error("a list that is read is broken")
	}

	api.refuse(forbidden)
	within("the right is gone", broken.Load)
	api.refuse(allowed)
	within("the right is back, for the same list", func() bool { return !broken.Load() })

	controllerruntime.EndPatience(revoked)
	api.refuse(down)
	within("a long outage", broken.Load)
	api.refuse(allowed)
	within("the end of the outage, for the same list", func() bool { return !broken.Load() })

	api.mu.Lock()
	defer api.mu.Unlock()
	if !api.selectors["metadata.name=revoked"] || len(api.selectors) != 1 {
		t.Errorf("requests with the selectors %v, want that of the one ConfigMap", api.selectors)
	}
}

func TestRevocationsFromConfigMapRefuses(t *testing.T) {
	t.Parallel()

	if _, err := controllerruntime.RevocationsFromConfigMap(nil, types.NamespacedName{Namespace: "a", Name: "b"}, intake.RevocationOptions{}); err == nil {
		t.Error("no controller manager is needed")
	}

	mgr := newManager(t, &records{})
	for _, name := range []types.NamespacedName{{}, {Name: "a"}, {Namespace: "a"}} {
		if _, err := controllerruntime.RevocationsFromConfigMap(mgr, name, intake.RevocationOptions{}); err == nil {
			t.Errorf("the name %q is enough", name)
		}
	}
}

// Failures far from each other are several outages: each attempt that works in between is silent.
func TestLengthOfAnOutage(t *testing.T) {
	t.Parallel()

	start := time.Now()
	var failures []time.Time
	for _, after := range []time.Duration{0, 30 * time.Second, 90 * time.Second, time.Hour, time.Hour + time.Second} {
		failures = append(failures, start.Add(after))
	}

	got := controllerruntime.Outage(failures...)
	want := []time.Duration{0, 30 * time.Second, 90 * time.Second, 0, time.Second}
	if !slices.Equal(got, want) {
		t.Errorf("have %v, want %v", got, want)
	}
}
