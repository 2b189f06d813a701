// Package informer proves the change source adapters/informer against a real API server: the writes
// that become events, faults of the API server, the reads of an operator, and the memory of the
// source.
package informer

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const (
	group    = "informer.example.com"
	patience = 3 * time.Minute
)

// resource returns a custom resource of the tests.
func resource(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "*", Resource: plural}
}

func sharedPlane(t testing.TB) *apiserver.ControlPlane {
	t.Helper()
	return lab.SharedAPIServer(t, apiserver.Options{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		lab.Definition(group, "widgets", "Widget"),
	}})
}

// scene is a source, and the events that it has offered.
type scene struct {
	t      testing.TB
	source *informer.Source

	mu       sync.Mutex
	offered  []string
	resyncs  map[core.Manager]int
	failures map[string]int
}

// newScene starts a source for all namespaces.
func newScene(t testing.TB, config *rest.Config, watches ...watch.Watch) *scene {
	t.Helper()
	s := &scene{t: t, resyncs: map[core.Manager]int{}, failures: map[string]int{}}
	hooks := informer.Hooks{Failed: func(_ core.Manager, reason string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failures[reason]++
	}}
	s.source = lab.Must(informer.New(config, core.AcceptorFunc(s.accept), watches, informer.Options{Hooks: hooks}))
	lab.Run(t, "source", s.source.Start)
	return s
}

// accept records an event as "<manager> <operation> <kind> <name>".
func (s *scene) accept(manager core.Manager, event core.WatchEvent) core.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	if event.Resync {
		s.resyncs[manager]++
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

// take returns the events since the last call, when there are at least n.
func (s *scene) take(n int) []string {
	s.t.Helper()
	lab.Eventually(s.t, patience, fmt.Sprintf("%d events", n), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.offered) >= n
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.offered
	s.offered = nil
	return taken
}

// want compares the events since the last call, in any order.
func (s *scene) want(want ...string) {
	s.t.Helper()
	got := s.take(len(want))
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("events (-want +got):\n%s", diff)
	}
}

func (s *scene) resyncsOf(manager core.Manager) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resyncs[manager]
}

func (s *scene) failed(reason string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures[reason]
}

// widget returns an object of a kind of the tests with a spec.
func widget(kind, name string, labels map[string]string, n int64) *unstructured.Unstructured {
	w := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"n": n}}}
	w.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind})
	w.SetNamespace(metav1.NamespaceDefault)
	w.SetName(name)
	w.SetLabels(labels)
	return w
}

// create creates objects, and removes them when the test ends.
func create(t testing.TB, c client.Client, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := c.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			err := c.Delete(context.WithoutCancel(t.Context()), object)
			if client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		})
	}
}

// patch applies a JSON merge patch, to a subresource if there is one.
func patch(t testing.TB, c client.Client, object client.Object, subresource, text string) {
	t.Helper()
	merge := client.RawPatch("application/merge-patch+json", []byte(text))
	var err error
	if subresource == "" {
		err = c.Patch(t.Context(), object, merge)
	} else {
		err = c.SubResource(subresource).Patch(t.Context(), object, merge)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, c client.Client, object client.Object) {
	t.Helper()
	if err := c.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// named is the name of a watch.
func named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}
}

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }
