package informer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/watchtest"
)

func TestMain(m *testing.M) {
	// Its handlers pause by the time of the last error, which may be of another bubble.
	utilruntime.ErrorHandlers = nil //nolint:reassign // See above.
	goleak.VerifyTestMain(m)
}

const manager core.Manager = "m"

var accepts = core.AcceptorFunc(func(core.Manager, core.WatchEvent) core.Outcome { return core.Accepted })

// scene is a source in a bubble, with an API server in memory.
type scene struct {
	t      *testing.T
	server *server
	source *informer.Source
	log    strings.Builder
	stop   func()

	mu        sync.Mutex
	offered   []string
	decisions map[string]int
	failures  map[string]int
	proofs    int
}

// inBubble runs a test with virtual time. Its function gets a scene that has not started.
func inBubble(t *testing.T, run func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, server: newServer(), decisions: map[string]int{}, failures: map[string]int{}}
		run(s)
		if s.stop != nil {
			s.stop()
		}
	})
}

func widgets() watch.Watch {
	return watch.Watch{
		Name: types.NamespacedName{Namespace: "default", Name: "w"}, Manager: manager,
		Resource: schema.GroupVersionResource{Group: "example.com", Version: "*", Resource: "widgets"},
	}
}

// start starts the source, and waits until nothing happens any more.
func (s *scene) start(opts informer.Options, watches ...watch.Watch) {
	s.t.Helper()
	s.startAt(s.server.config(), opts, watches...)
}

func (s *scene) startAt(config *rest.Config, opts informer.Options, watches ...watch.Watch) {
	s.t.Helper()

	opts.Logger = slog.New(slog.NewTextHandler(&s.log, nil))
	opts.Hooks = informer.Hooks{Observed: s.observed, Failed: s.failed, Proved: s.proved}
	source, err := informer.New(config, core.AcceptorFunc(s.accept), watches, opts)
	if err != nil {
		s.t.Fatal(err)
	}

	s.source = source
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error)
	go func() { ended <- source.Start(ctx) }()
	s.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	}

	synctest.Wait()
}

func (s *scene) observed(o hook.Observation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decisions[string(o.Decision)]++
}

func (s *scene) failed(f hook.WatchFailure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[string(f.Reason)]++
}

func (s *scene) proved(hook.Proof) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proofs++
}

func (s *scene) accept(_ core.Manager, e core.WatchEvent) core.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()

	text := fmt.Sprintf("%s %s %s %s %d", e.Operation, e.Field, e.WatchedGVK.Kind, e.Watched, e.Generation)
	if e.Resync {
		text = "resync"
	}
	if e.Owner.Name != "" {
		text += " of " + e.Owner.String()
	}

	s.offered = append(s.offered, text)
	return core.Accepted
}

// want compares the events since the last call.
func (s *scene) want(want ...string) {
	s.t.Helper()

	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()

	slices.Sort(want)
	slices.Sort(s.offered)

	if diff := cmp.Diff(want, s.offered); diff != "" {
		s.t.Errorf("events (-want +got):\n%s", diff)
	}

	s.offered = nil
}

func TestFirstListIsAResync(t *testing.T) {
	for _, watchList := range []bool{true, false} {
		inBubble(t, func(s *scene) {
			s.server.watchList = watchList
			s.server.pageSize = 1
			s.server.put("widgets", newObject("a", 1, 1))
			s.server.put("widgets", newObject("b", 1, 1))
			s.start(informer.Options{}, widgets())
			s.want("resync")

			if err := s.source.Ready(); err != nil || len(s.failures) > 0 || s.proofs == 0 {
				t.Errorf("ready: %v, failures %v, %d proofs: want that it works", err, s.failures, s.proofs)
			}

			s.server.put("widgets", newObject("a", 2, 2))
			s.server.put("widgets", newObject("c", 1, 1))
			s.server.remove("widgets", "b")
			s.want("UPDATE spec Widget default/a 2", "CREATE spec Widget default/c 1", "DELETE spec Widget default/b 1")
		})
	}
}

// A version that has expired needs a new list. It is compared with the known objects, and is no
// failure. The resync stands in for objects that came and went between the lists.
func TestExpiredVersion(t *testing.T) {
	for _, old := range []bool{true, false} {
		inBubble(t, func(s *scene) {
			s.server.watchList = !old
			s.server.expiresByStatus = old
			for _, name := range []string{"same", "changed", "gone", "again"} {
				s.server.put("widgets", newObject(name, 1, 1))
			}

			s.start(informer.Options{}, widgets())
			s.want("resync")
			time.Sleep(time.Minute)
			s.server.refuse("watch widgets", http.StatusTooManyRequests)
			s.server.cut()
			s.server.put("widgets", newObject("changed", 2, 2))
			s.server.put("widgets", newObject("new", 1, 1))
			s.server.put("widgets", newObject("again", 1, 1).with("metadata.uid", "again-2"))
			s.server.remove("widgets", "gone")
			s.server.expire()
			s.server.refuse("watch widgets", 0)
			time.Sleep(time.Minute)
			s.want("UPDATE spec Widget default/changed 2", "CREATE spec Widget default/new 1",
				"CREATE spec Widget default/again 1", "DELETE spec Widget default/gone 1", "resync")

			if err := s.source.Ready(); err != nil || s.failures["other"] > 0 {
				t.Errorf("ready: %v, failures %v, want none for the version", err, s.failures)
			}
		})
	}
}

// A failure is named, counted, and logged when it begins, every 5 minutes, and when it ends.
func TestFailures(t *testing.T) {
	const refused = "watch default/w of widgets.example.com: refused by the test"
	for _, want := range []struct {
		verb      string
		watchList bool
		status    int
		reason    string
		problem   string
	}{
		{"list widgets", false, http.StatusForbidden, "forbidden", refused},
		{"watch widgets", false, http.StatusForbidden, "forbidden", refused},
		{"watch widgets", true, http.StatusForbidden, "forbidden", refused},
		{"watch widgets", true, http.StatusTooManyRequests, "busy", refused},
		{"watch widgets", false, http.StatusTooManyRequests, "busy", refused},
		{"watch widgets", true, http.StatusUnauthorized, "unauthenticated", refused},
		{"watch widgets", true, http.StatusInternalServerError, "other", refused},
		{"connect", true, 1, "unreachable", "connection refused"},
	} {
		inBubble(t, func(s *scene) {
			verb := fmt.Sprintf("%s %d %t", want.verb, want.status, want.watchList)
			s.server.watchList = want.watchList
			s.server.refuse(want.verb, want.status)
			s.start(informer.Options{}, widgets())
			time.Sleep(11 * time.Minute)
			synctest.Wait()

			if problem := s.source.Problem(manager); !strings.Contains(problem, want.problem) {
				t.Errorf("%s: problem %q, want %q in it", verb, problem, want.problem)
			}
			if err := s.source.Ready(); err == nil || !strings.HasPrefix(err.Error(), "watches are not established") || s.source.Problem("other") != "" {
				t.Errorf("%s: ready: %v, want that it is not", verb, err)
			}
			if n := strings.Count(s.log.String(), "cannot establish a watch"); n != 3 || s.failures[want.reason] < 50 {
				t.Errorf("%s: %d lines, failures %v, want 3 lines in 11 min, and at least 5 attempts a minute:\n%s", verb, n,
					s.failures, &s.log)
			}

			s.server.refuse(want.verb, 0)
			time.Sleep(10 * time.Second)
			synctest.Wait()

			if err := s.source.Ready(); err != nil || strings.Count(s.log.String(), "watch is established") != 1 {
				t.Errorf("%s: ready: %v, want that it is, and one line about it:\n%s", verb, err, &s.log)
			}
			if want.verb != "connect" {
				return
			}

			s.server.refuse(want.verb, want.status)
			s.server.cut()
			time.Sleep(10 * time.Second)
			synctest.Wait()

			if n := strings.Count(s.log.String(), "cannot establish a watch"); n != 4 {
				t.Errorf("%s: %d lines, want one more at once after it worked:\n%s", verb, n, &s.log)
			}
		})
	}
}

// The end of a resource that has objects is a resync, as their deletions are not seen.
func TestResourceComesAndGoes(t *testing.T) {
	inBubble(t, func(s *scene) {
		s.server.refuse("serve widgets", http.StatusNotFound)
		s.start(informer.Options{}, widgets())

		if problem := s.source.Problem(manager); !strings.Contains(problem, "not found") || s.failures["not_found"] != 1 {
			t.Errorf("problem %q, failures %v, want that it is not found", problem, s.failures)
		}

		s.server.refuse("serve widgets", 0)
		s.server.put("widgets", newObject("a", 1, 1))
		time.Sleep(time.Minute)
		s.want("resync")
		s.server.refuse("serve widgets", http.StatusNotFound)
		s.server.cut()
		time.Sleep(time.Minute)
		s.want("resync")
		s.server.refuse("serve widgets", 0)
		time.Sleep(time.Minute)
		s.want("resync")
		s.server.put("widgets", newObject("a", 2, 2))
		s.want("UPDATE spec Widget default/a 2")
	})
}

// A watch before its first answer is not ready, and has no problem: an agent that starts is not
// degraded.
func TestBeforeTheFirstAnswer(t *testing.T) {
	source, err := informer.New(newServer().config(), accepts, []watch.Watch{widgets()}, informer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Ready(); err == nil || source.Problem(manager) != "" {
		t.Errorf("ready: %v, problem %q, want that it is not ready without a problem", err, source.Problem(manager))
	}
}

// Bookmarks prove a quiet watch.
func TestBookmarksProveAWatch(t *testing.T) {
	inBubble(t, func(s *scene) {
		s.start(informer.Options{}, widgets())
		before := s.proofs
		s.server.bookmark()
		synctest.Wait()

		if s.proofs != before+1 {
			t.Errorf("%d proofs by a bookmark, want one", s.proofs-before)
		}
	})
}

// Metadata is enough for a custom resource with status, unless an object counts no generations.
func TestMetadataOnly(t *testing.T) {
	inBubble(t, func(s *scene) {
		s.server.put("widgets", newObject("a", 1, 1))
		s.start(informer.Options{}, widgets())

		if got := s.server.requested("as=PartialObjectMetadata"); len(got) != 1 {
			t.Errorf("%d requests for metadata, want one", len(got))
		}

		s.server.put("widgets", newObject("b", 0, 1))
		time.Sleep(time.Minute)

		if got := s.server.requested("widgets application/json "); len(got) != 1 {
			t.Errorf("%d requests for whole objects, want one: an object counts no generations", len(got))
		}

		s.want("resync", "resync", "CREATE spec Widget default/b 0")
		s.server.put("widgets", newObject("b", 0, 2))
		s.want("UPDATE spec Widget default/b 0")
	})

	inBubble(t, func(s *scene) {
		w := widgets()
		w.Field = core.FieldStatus
		s.start(informer.Options{}, w)

		if got := s.server.requested("as=PartialObjectMetadata"); len(got) != 0 {
			t.Errorf("%d requests for metadata, want none: it has no status", len(got))
		}

		s.want("resync")
		s.server.put("widgets", newObject("a", 1, 1))
		s.want()
		s.server.put("widgets", newObject("a", 1, 1).with("status.ready", true))
		s.want("UPDATE status Widget default/a 1")
		s.server.put("widgets", newObject("b", 1, 1).with("status.ready", true))
		s.want("UPDATE status Widget default/b 1") // It may have had none before.
		s.server.remove("widgets", "b")
		s.want()
	})
}

// Contract v1 carries neither an event nor a resync without owner.
func TestRequireOwner(t *testing.T) {
	inBubble(t, func(s *scene) {
		owned := func(o object, owner string) object {
			return o.with("metadata.annotations", map[string]any{core.OwnerAnnotation: owner})
		}
		s.server.put("widgets", owned(newObject("a", 1, 1), "kcp/a"))
		s.server.put("widgets", owned(newObject("b", 1, 1), "kcp/a"))
		s.server.put("widgets", newObject("none", 1, 1))
		s.start(informer.Options{RequireOwner: true}, widgets())
		s.want("resync of kcp/a")
		s.server.put("widgets", newObject("none", 2, 1))
		s.server.put("widgets", owned(newObject("wrong", 2, 1), "kcp"))
		s.server.put("widgets", owned(newObject("b", 2, 1), "kcp/b"))
		s.server.remove("widgets", "a")
		s.want("UPDATE spec Widget default/b 2 of kcp/b", "DELETE spec Widget default/a 1 of kcp/a")

		if n := s.decisions["no_owner"]; n != 2 {
			t.Errorf("%d changes without owner, want 2", n)
		}
	})
}

// The names of one operator are no names to another one.
func TestOwnerAnnotation(t *testing.T) {
	inBubble(t, func(s *scene) {
		owned := func(o object, name, owner string) object {
			return o.with("metadata.annotations", map[string]any{name: owner})
		}
		const fleet = "fleet.example.com/owned-by"
		s.server.put("widgets", owned(newObject("a", 1, 1), fleet, "fleet/a"))
		s.server.put("widgets", owned(newObject("b", 1, 1), core.OwnerAnnotation, "fleet/b"))
		s.start(informer.Options{OwnerAnnotation: fleet, RequireOwner: true}, widgets())
		s.want("resync of fleet/a")
		s.server.put("widgets", owned(newObject("a", 1, 2), fleet, "fleet/c"))
		s.server.put("widgets", owned(newObject("b", 2, 2), core.OwnerAnnotation, "fleet/c"))
		s.want("UPDATE spec Widget default/a 1 of fleet/c")
	})
}

// Labels select objects and namespaces, and a Namespace is its own namespace.
func TestSelectors(t *testing.T) {
	inBubble(t, func(s *scene) {
		w := widgets()
		w.Selector.Labels = map[string]string{"a": "b"}
		w.NamespaceSelector.Labels = map[string]string{"tenant": "yes"}
		all := widgets()
		all.Name.Name = "all"
		s.server.put("namespaces", object{}.with("metadata.name", "default").with("metadata.labels.tenant", "no"))
		own := widgets() // A Namespace is its own: the one of this test has not its label.
		own.Name.Name = "own"
		own.Resource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
		own.NamespaceSelector.Labels = map[string]string{"own": "yes"}
		s.start(informer.Options{ExcludedNamespaces: []string{"kube-system", "agent"}}, w, all, own)
		s.want("resync", "resync", "resync")

		requests := s.server.requested("/widgets")
		if !slices.ContainsFunc(requests, func(r string) bool {
			return strings.HasPrefix(r, "/apis/example.com/v1/widgets") && strings.Contains(r, "labelSelector=a%3Db") &&
				strings.Contains(r, "fieldSelector=metadata.namespace%21%3Dagent%2Cmetadata.namespace%21%3Dkube-system")
		}) {
			t.Errorf("requests %q, want the selectors in them", requests)
		}

		// The server of the test ignores selectors, so both watches see each object.
		s.server.put("widgets", newObject("a", 1, 1))
		s.want("CREATE spec Widget default/a 1")
		s.server.put("namespaces", object{}.with("metadata.name", "default").with("metadata.labels.tenant", "yes"))
		synctest.Wait()
		s.server.put("widgets", newObject("a", 2, 1))
		s.want("UPDATE spec Widget default/a 2", "UPDATE spec Widget default/a 2")
	})
}

// With a namespace, each request is for that namespace, so that a Role is enough.
func TestOneNamespace(t *testing.T) {
	inBubble(t, func(s *scene) {
		w := widgets()
		w.NamespaceSelector.Labels = map[string]string{"tenant": "yes"}
		s.start(informer.Options{Namespace: "one"}, w)
		s.want("resync")
		var paths []string

		for _, r := range s.server.requested("watch=true") {
			path, _, _ := strings.Cut(r, " ")
			paths = append(paths, path)
		}

		slices.Sort(paths)
		// The labels of namespaces are those of all.
		want := []string{"/api/v1/namespaces", "/apis/example.com/v1/namespaces/one/widgets"}
		if diff := cmp.Diff(want, paths); diff != "" {
			t.Errorf("paths (-want +got):\n%s", diff)
		}
	})
}

// Without the labels of namespaces, a change counts: a superfluous event is better than a lost one.
func TestLabelsOfNamespacesCannotBeRead(t *testing.T) {
	inBubble(t, func(s *scene) {
		w := widgets()
		w.NamespaceSelector.Labels = map[string]string{"tenant": "yes"}
		s.server.refuse("list namespaces", http.StatusForbidden)
		s.server.refuse("watch namespaces", http.StatusForbidden)
		s.start(informer.Options{}, w)
		s.server.put("widgets", newObject("a", 1, 1))
		s.want("resync", "CREATE spec Widget default/a 1")
		s.server.bookmark()
		synctest.Wait()

		if problem := s.source.Problem(manager); !strings.HasPrefix(problem, "watch default/w, labels of namespaces of namespaces: ") {
			t.Errorf("problem %q, want that of the labels of namespaces", problem)
		}
	})
}

// seen is all that a source with one watch shows of it.
func seen(t *testing.T, w watch.Watch) (all string) {
	t.Helper()

	w.Conditions = nil // TestNewNamesAllProblems.
	inBubble(t, func(s *scene) {
		s.server.put("namespaces", object{}.with("metadata.name", "default").with("metadata.labels.key", "one").
			with("metadata.labels.one", "one"))
		s.start(informer.Options{}, w)
		s.server.put("widgets", newObject("a", 1, 1))
		s.server.put("widgets", newObject("a", 2, 2))
		synctest.Wait()
		s.stop()
		s.stop = nil
		requests := s.server.requested("/")
		slices.Sort(requests)
		changing := regexp.MustCompile(`time=\S+|timeoutSeconds=\d+`)
		lines := strings.Split(changing.ReplaceAllString(s.log.String(), ""), "\n")
		slices.Sort(lines) // Two goroutines write them.
		all = fmt.Sprint(slices.Compact(requests), s.offered, s.decisions, len(s.failures), lines)
		all = changing.ReplaceAllString(all, "")
	})

	return all
}

// The API server tells the kind. Conditions are refused.
func TestASourceUsesEachFieldOfAWatch(t *testing.T) {
	whole, changed := watchtest.Watches()
	all := seen(t, whole)
	if again := seen(t, whole); all != again {
		t.Fatalf("the same watch differs:\n%s\n%s", all, again)
	}

	for path, w := range changed {
		if path != ".Kind" && !strings.HasPrefix(path, ".Conditions") && seen(t, w) == all {
			t.Errorf("source drops %s", path)
		}
	}
}

func TestNewNamesAllProblems(t *testing.T) {
	wrong := watch.Watch{
		Manager: "Not A Manager", Field: "data",
		Resource:          schema.GroupVersionResource{Group: "a/b", Version: "", Resource: "pods/exec"},
		Selector:          watch.Selector{Labels: map[string]string{"": "a"}},
		NamespaceSelector: watch.Selector{Labels: map[string]string{"": "a"}},
		Conditions:        []watch.Condition{{Name: "a", Expression: "true"}},
	}

	_, err := informer.New(&rest.Config{}, accepts, []watch.Watch{widgets(), widgets(), wrong},
		informer.Options{Namespace: "c/d"})
	if !errors.Is(err, watch.ErrInvalid) {
		t.Fatalf("error %v, want one about the watches", err)
	}

	for _, part := range []string{
		"manager is not a DNS-1123 label",
		`"default/w": duplicate name`, `name ""`, `have "data"`, `have "pods/exec"`, `group "a/b"`, `version ""`,
		`label ""`, `namespace selector: label ""`, "want no conditions", `namespace "c/d"`,
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want %q in it", err, part)
		}
	}

	if _, err := informer.New(nil, accepts, nil, informer.Options{}); err == nil {
		t.Error("no error without a config")
	}
	if _, err := informer.New(&rest.Config{}, core.AcceptorFunc(nil), nil, informer.Options{}); err == nil {
		t.Error("a nil acceptor was taken")
	}
	if _, err := informer.New(&rest.Config{Host: "://"}, accepts, nil, informer.Options{}); err == nil {
		t.Error("no error with a wrong host")
	}
}
