// Package informer proves the change source adapters/informer against outages of a real API server.
package informer

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	group    = "informer.example.com"
	patience = 3 * time.Minute
)

// scene is a source, and the events that it has offered.
type scene struct {
	t      testing.TB
	source *informer.Source

	mu       sync.Mutex
	offered  []string
	resyncs  int
	failures map[string]int
}

// newScene starts a source of widgets in all namespaces.
func newScene(t testing.TB, config *rest.Config) *scene {
	t.Helper()
	widgets := watch.Watch{
		Name: types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "w"}, Manager: "m",
		Resource: schema.GroupVersionResource{Group: group, Version: "*", Resource: "widgets"},
	}
	s := &scene{t: t, failures: map[string]int{}}
	hooks := informer.Hooks{Failed: func(_ core.Manager, reason string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failures[reason]++
	}}
	s.source = lab.Must(informer.New(config, core.AcceptorFunc(s.accept), []watch.Watch{widgets}, informer.Options{Hooks: hooks}))
	lab.Run(t, "source", s.source.Start)
	return s
}

// accept records an event as "<manager> <operation> <kind> <name>".
func (s *scene) accept(manager core.Manager, event core.WatchEvent) core.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	if event.Resync {
		s.resyncs++
		return core.Accepted
	}
	s.offered = append(s.offered, fmt.Sprintf("%s %s %s %s", manager, event.Operation, event.WatchedGVK.Kind,
		event.Watched.Name))
	return core.Accepted
}

func (s *scene) awaitReady() {
	s.t.Helper()
	lab.Eventually(s.t, patience, "the watches are established", func() bool { return s.source.Ready() == nil })
}

// want compares the events since the last call, in any order, when there are as many.
func (s *scene) want(want ...string) {
	s.t.Helper()
	lab.Eventually(s.t, patience, fmt.Sprintf("%d events", len(want)), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.offered) >= len(want)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.offered)
	slices.Sort(want)
	if diff := cmp.Diff(want, s.offered); diff != "" {
		s.t.Errorf("events (-want +got):\n%s", diff)
	}
	s.offered = nil
}

func (s *scene) counts() (resyncs, unreachable int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resyncs, s.failures["unreachable"]
}

func widget(name string) *unstructured.Unstructured {
	w := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"n": int64(0)}}}
	w.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Widget"})
	w.SetNamespace(metav1.NamespaceDefault)
	w.SetName(name)
	return w
}

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }
