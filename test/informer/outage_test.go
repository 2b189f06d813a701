// Package informer proves the change source adapters/informer against outages of a real API server.
package informer

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// scene is a source of widgets, behind a relay that can cut its connections to the API server.
type scene struct {
	t      *testing.T
	plane  *apiserver.ControlPlane
	relay  *lab.Relay
	source *informer.Source
	// offered are the events, as "<operation> <name>".
	offered chan string
	// lists counts the lists, and the watches that begin with one.
	lists, resyncs, unreachable atomic.Int64
	// outages counts those so far.
	outages int
}

func newScene(t *testing.T) *scene {
	t.Helper()
	crds := []*apiextensionsv1.CustomResourceDefinition{lab.WidgetCRD()}
	s := &scene{t: t, plane: lab.SharedAPIServer(t, apiserver.Options{CRDs: crds}), offered: make(chan string, 100)}
	s.relay = lab.Must(lab.NewRelay(lab.Address(lab.FreePort(t)), 0, strings.Trim(strings.TrimPrefix(s.plane.Config.Host, "https:"), "/")))
	t.Cleanup(s.relay.Close)
	config := rest.CopyConfig(s.plane.Config)
	config.Host = "https://" + s.relay.Addr()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			query := r.URL.Query()
			if strings.HasSuffix(r.URL.Path, "/widgets") && (query.Get("watch") == "" || query.Get("sendInitialEvents") != "") {
				s.lists.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	hooks := informer.Hooks{Failed: func(f hook.WatchFailure) {
		if f.Reason == "unreachable" {
			s.unreachable.Add(1)
		}
	}}
	widgets := watch.Watch{Name: types.NamespacedName{Namespace: lab.Namespace, Name: "w"}, Manager: "m", Resource: lab.Widgets()}
	s.source = lab.Must(informer.New(config, core.AcceptorFunc(s.accept), []watch.Watch{widgets}, informer.Options{Hooks: hooks}))
	lab.Run(t, "source", s.source.Start)
	s.await(true)
	return s
}

func (s *scene) accept(_ core.Manager, event core.WatchEvent) core.Outcome {
	if event.Resync {
		s.resyncs.Add(1)
	} else {
		s.offered <- string(event.Operation) + " " + event.Watched.Name
	}
	return core.Accepted
}

// await returns when all watches are established, or when an outage is noticed.
func (s *scene) await(ready bool) {
	s.t.Helper()
	lab.Eventually(s.t, lab.Patience, fmt.Sprintf("the watches are established: %t", ready), func() bool {
		return (s.source.Ready() == nil) == ready
	})
}

// want compares the next events, in any order.
func (s *scene) want(want ...string) {
	s.t.Helper()
	lab.Eventually(s.t, lab.Patience, fmt.Sprintf("%d events", len(want)), func() bool { return len(s.offered) >= len(want) })
	var got []string
	for len(s.offered) > 0 {
		got = append(got, <-s.offered)
	}
	slices.Sort(got)
	slices.Sort(want)
	lab.Same(s.t, "events", want, got)
}

func widget(format string, args ...any) *unstructured.Unstructured {
	return lab.Widget(metav1.NamespaceDefault, fmt.Sprintf(format, args...), nil, 0)
}

func (s *scene) change(n int) {
	s.t.Helper()
	merge := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"n":%d}}`, n))
	lab.NoError(s.t, s.plane.Client.Patch(s.t.Context(), widget("stays"), merge))
}

// away cuts the source off, makes changes until end, and wants their events: an object that is deleted, one that is
// deleted and created again, one that changes and a new one.
func (s *scene) away(end func() error, more ...string) {
	s.t.Helper()
	s.outages++
	c := s.plane.Client
	ctx := s.t.Context()
	n := s.outages
	gone := widget("gone-%d", n)
	again := widget("again-%d", n)
	lab.NoError(s.t, errors.Join(c.Create(ctx, gone), c.Create(ctx, again)))
	s.want("CREATE "+gone.GetName(), "CREATE "+again.GetName())
	s.relay.Refuse()
	s.await(false)
	lab.NoError(s.t, errors.Join(c.Delete(ctx, gone), c.Delete(ctx, again), c.Create(ctx, widget("again-%d", n)), c.Create(ctx, widget("new-%d", n))))
	s.change(n)
	lab.NoError(s.t, errors.Join(end(), s.relay.Open()))
	s.want(append(more, "UPDATE stays", "DELETE "+gone.GetName(), fmt.Sprint("CREATE new-", n), "CREATE "+again.GetName())...)
}

// TestOutages: changes and deletions during an outage become events, whatever the outage was, and nothing else does.
func TestOutages(t *testing.T) {
	s := newScene(t)
	lab.NoError(t, s.plane.Client.Create(t.Context(), widget("stays")))
	s.want("CREATE stays")
	// The watch continues after the last version, and the deletion of each object is seen.
	before := s.lists.Load()
	s.away(func() error { return nil }, "DELETE again-1")
	if now := s.lists.Load(); now != before {
		t.Errorf("%d lists after a cut, want none: the API server has the history", now-before)
	}
	// An API server that starts again has forgotten the history of its watches.
	before = s.lists.Load()
	s.away(func() error { return s.plane.Restart(func() {}) })
	if s.lists.Load() == before {
		t.Error("no list after a restart, want one: the version of the watch has expired (410)")
	}
	lab.NoError(t, s.plane.Restart(func() { s.await(false) }))
	s.await(true)
	s.change(100)
	s.want("UPDATE stays")
	if resyncs, unreachable := s.resyncs.Load(), s.unreachable.Load(); resyncs < 2 || unreachable == 0 {
		t.Errorf("%d resyncs and %d failures are counted, want a resync for each list, and that it was unreachable", resyncs, unreachable)
	}
}
