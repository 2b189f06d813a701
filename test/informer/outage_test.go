package informer

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Changes and deletions during an outage become events, whatever the outage was, and nothing else
// does.
func TestOutages(t *testing.T) {
	plane := newFaulty(t)
	c := plane.Client
	s := newScene(t, plane.throughRelay(), watch.Watch{Name: named("w"), Manager: "m", Resource: resource("widgets")})
	s.awaitReady()
	stays := widget("Widget", "stays", nil, 0)
	create(t, c, stays)
	s.want("m CREATE Widget stays")
	n := 0
	// away makes changes while the source sees nothing: an object that is deleted, one that is
	// deleted and created again, and one that changes.
	away := func(begin, end func()) []string {
		n++
		gone, again := widget("Widget", fmt.Sprint("gone-", n), nil, 0), widget("Widget", fmt.Sprint("again-", n), nil, 0)
		create(t, c, gone, again)
		s.want(fmt.Sprint("m CREATE Widget gone-", n), fmt.Sprint("m CREATE Widget again-", n))
		begin()
		remove(t, c, gone)
		remove(t, c, again)
		again = widget("Widget", again.GetName(), nil, 0)
		create(t, c, again, widget("Widget", fmt.Sprint("new-", n), nil, 0))
		patch(t, c, stays, "", fmt.Sprintf(`{"spec":{"n":%d}}`, n))
		end()
		return []string{
			"m UPDATE Widget stays", fmt.Sprint("m DELETE Widget gone-", n), fmt.Sprint("m CREATE Widget new-", n),
			fmt.Sprint("m CREATE Widget again-", n),
		}
	}
	open := func() {
		if err := plane.relay.Open(); err != nil {
			t.Fatal(err)
		}
	}
	// restart ends the API server, which forgets the history of its watches, and starts it again.
	restart := func(meanwhile func()) {
		if err := plane.Restart(meanwhile); err != nil {
			t.Fatal(err)
		}
	}
	await := func() {
		lab.Eventually(t, patience, "an outage is noticed", func() bool { return s.source.Ready() != nil })
	}
	t.Run("watch cut", func(t *testing.T) {
		lists := plane.lists.Load()
		// The watch continues after the last version, so that the deletion of each object is seen.
		want := append(away(func() { plane.relay.Refuse(); await() }, open), fmt.Sprint("m DELETE Widget again-", n))
		s.want(want...)
		if now := plane.lists.Load(); now != lists {
			t.Errorf("%d lists after the cut, want none: the API server has the history", now-lists)
		}
	})
	t.Run("API server restarted, history gone", func(t *testing.T) {
		lists := plane.lists.Load()
		s.want(away(func() { plane.relay.Refuse(); await() }, func() {
			restart(func() {})
			open()
		})...)
		if plane.lists.Load() == lists {
			t.Error("no list after the restart, want one: the version of the watch has expired (410)")
		}
	})
	t.Run("API server restarted while it is watched", func(t *testing.T) {
		restart(await)
		back := time.Now()
		s.awaitReady()
		t.Logf("established %v after the API server serves again", time.Since(back).Round(time.Millisecond))
		patch(t, c, stays, "", `{"spec":{"n":100}}`)
		s.want("m UPDATE Widget stays")
	})
	if n := s.resyncsOf("m"); n < 2 {
		t.Errorf("%d resyncs, want one for each list", n)
	}
	if n := s.failed("unreachable"); n == 0 {
		t.Error("no failure is counted as unreachable")
	}
}

// faulty is the API server, behind a relay that can cut the connections of the source.
type faulty struct {
	*apiserver.ControlPlane

	relay *lab.Relay
	// lists counts the lists, and the watches that begin with one.
	lists atomic.Int64
}

func newFaulty(t testing.TB) *faulty {
	t.Helper()
	f := &faulty{ControlPlane: sharedPlane(t)}
	_, host, _ := strings.Cut(strings.TrimSuffix(f.Config.Host, "/"), "https://")
	f.relay = lab.Must(lab.NewRelay(lab.Address(lab.FreePort(t)), 0, cmp.Or(host, f.Config.Host)))
	t.Cleanup(f.relay.Close)
	return f
}

// throughRelay returns a configuration for the source. It counts lists.
func (f *faulty) throughRelay() *rest.Config {
	config := rest.CopyConfig(f.Config)
	config.Host = "https://" + f.relay.Addr()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			query := r.URL.Query()
			if strings.HasSuffix(r.URL.Path, "/widgets") && (query.Get("watch") == "" || query.Get("sendInitialEvents") != "") {
				f.lists.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
