package informer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// The first list is one answer, or the beginning of a watch (WatchList), for which the reflector
// keeps its own map. During a later list, the digests of the objects are in memory, too.
func TestMemoryOfAnObject(t *testing.T) {
	const count, mostWatched = 20_000, 300 // It is 200, and garbage of the process makes up to 50.
	items := smallObjects(count)
	list := `{"metadata":{"resourceVersion":"7"},"items":[` + strings.Join(items, ",") + "]}"
	frames := `{"type":"ADDED","object":` + strings.Join(items, `}{"type":"ADDED","object":`) + `}{"type":"BOOKMARK",` +
		`"object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}`

	for watchList, most := range map[bool]int64{false: 550, true: 650} {
		t.Run(fmt.Sprintf("WatchList %t", watchList), func(t *testing.T) {
			s := &sized{answer: func(query url.Values) (int, string) {
				switch {
				case query.Get("watch") == "":
					return http.StatusOK, list
				case query.Get("sendInitialEvents") == "":
					return http.StatusOK, `{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`
				case watchList:
					return http.StatusOK, frames
				default:
					return http.StatusUnprocessableEntity, ""
				}
			}}

			client, err := newClient(&rest.Config{Host: "http://api.example.com", Transport: s})
			if err != nil {
				t.Fatal(err)
			}

			w := newWatched(watch.Watch{}, &Options{})
			ctx, stop := context.WithCancel(t.Context())
			s.stop = stop
			s.before = heap()
			s.objects = &objects{
				watch: w, namespaces: cache.NewStore(cache.MetaNamespaceKeyFunc), opts: new(Options{}.withDefaults()),
				acceptor: core.AcceptorFunc(func(core.Manager, core.WatchEvent) core.Outcome { return "" }),
			}
			f := &follower{client: client, watch: w, store: s, objects: s.objects, health: &health{}}
			f.runReflector(ctx, &resource{kind: schema.GroupVersionKind{Kind: "Widget"}, namespaced: true})
			first := s.listed[0] / count
			again := s.listed[1] / count
			watched := (heap() - s.before) / count
			t.Logf("bytes for each object: %d in the first list, %d when listed again, %d while watched", first, again, watched)
			if len(s.known) != count || first > most || again > most || watched > mostWatched {
				t.Errorf("want at most %d, %d and %d", most, most, mostWatched)
			}
		})
	}

	runtime.KeepAlive(list + frames)
}

// sized is an API server and a store. It measures the memory when a list is read, and when the
// store gets it, and ends after two lists.
type sized struct {
	*objects

	answer func(query url.Values) (code int, body string)
	stop   func()
	before int64
	listed []int64

	mu   sync.Mutex // The stream of a watch is read by another goroutine.
	peak int64
}

// RoundTrip implements [http.RoundTripper].
func (s *sized) RoundTrip(r *http.Request) (*http.Response, error) {
	code, body := s.answer(r.URL.Query())
	return &http.Response{StatusCode: code, Body: io.NopCloser(io.MultiReader(strings.NewReader(body), s))}, nil
}

// Read is the end of each answer.
func (s *sized) Read([]byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.peak = max(s.peak, heap()-s.before)
	return 0, io.EOF
}

// Replace implements [cache.ReflectorStore].
func (s *sized) Replace(all []any, version string) error {
	s.mu.Lock()
	s.listed = append(s.listed, max(s.peak, heap()-s.before))
	s.peak = 0
	s.mu.Unlock()
	if len(s.listed) > 1 {
		s.stop()
	}

	return s.objects.Replace(all, version)
}

// smallObjects returns custom resources of a few owners.
func smallObjects(count int) (items []string) {
	for n := range count {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":"object-%d","namespace":"namespace-%d","resourceVersion":"%d","generation":3,`+
			`"uid":"00000000-0000-0000-0000-%012d","labels":{"operator.kyma-project.io/managed-by":"kyma","app":"app-%d"},`+
			`"annotations":{"operator.kyma-project.io/owned-by":"kcp-system/kyma-%d"},"finalizers":["example.com/finalizer"]},`+
			`"spec":{"n":%d}}`, n, n%40, n, n, n%20, n%20, n))
	}
	return items
}

// heap returns the bytes of live objects.
func heap() int64 {
	runtime.GC()
	runtime.GC() // The first one moves pools to where the second one empties them.
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return int64(m.HeapAlloc)
}
