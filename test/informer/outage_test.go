package informer

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Changes and deletions during an outage become events, whatever the outage was, and nothing else
// does.
func TestOutages(t *testing.T) {
	plane := newFaulty(t)
	c, ctx := plane.Client, t.Context()
	s := newScene(t, plane.throughRelay())
	s.awaitReady()
	stays := widget("stays")
	lab.NoError(t, c.Create(ctx, stays))
	change := func(n int) {
		merge := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"n":%d}}`, n))
		lab.NoError(t, c.Patch(ctx, stays, merge))
	}
	s.want("m CREATE Widget stays")
	n := 0
	// away makes changes while the source sees nothing: an object that is deleted, one that is
	// deleted and created again, and one that changes.
	away := func(begin, end func()) []string {
		n++
		gone, again := widget(fmt.Sprint("gone-", n)), widget(fmt.Sprint("again-", n))
		lab.NoError(t, errors.Join(c.Create(ctx, gone), c.Create(ctx, again)))
		s.want(fmt.Sprint("m CREATE Widget gone-", n), fmt.Sprint("m CREATE Widget again-", n))
		begin()
		lab.NoError(t, errors.Join(c.Delete(ctx, gone), c.Delete(ctx, again), c.Create(ctx, widget(again.GetName())),
			c.Create(ctx, widget(fmt.Sprint("new-", n)))))
		change(n)
		end()
		return []string{
			"m UPDATE Widget stays", fmt.Sprint("m DELETE Widget gone-", n), fmt.Sprint("m CREATE Widget new-", n),
			fmt.Sprint("m CREATE Widget again-", n),
		}
	}
	open := func() { lab.NoError(t, plane.relay.Open()) }
	// restart ends the API server, which forgets the history of its watches, and starts it again.
	restart := func(meanwhile func()) { lab.NoError(t, plane.Restart(meanwhile)) }
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
		change(100)
		s.want("m UPDATE Widget stays")
	})
	resyncs, unreachable := s.counts()
	if resyncs < 2 {
		t.Errorf("%d resyncs, want one for each list", resyncs)
	}
	if unreachable == 0 {
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
	definition := lab.Definition(group, "widgets", "Widget")
	f := &faulty{ControlPlane: lab.SharedAPIServer(t, apiserver.Options{
		CRDs: []*apiextensionsv1.CustomResourceDefinition{definition},
	})}
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
