package informer

import (
	"cmp"
	"net/http"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// faulty is an API server of one test, behind a relay that can cut the connections of the source.
type faulty struct {
	*apiserver.ControlPlane

	t     testing.TB
	relay *lab.Relay

	mu sync.Mutex
	// lists counts the lists, and the watches that begin with one.
	lists int
}

func newFaulty(t testing.TB) *faulty {
	t.Helper()
	lab.SkipShort(t)
	f := &faulty{t: t, ControlPlane: apiserver.StartT(t, apiserver.Options{
		CRDs: []*apiextensionsv1.CustomResourceDefinition{lab.Definition(group, "widgets", "Widget")},
	})}
	_, host, _ := strings.Cut(strings.TrimSuffix(f.Config.Host, "/"), "https://")
	var err error
	if f.relay, err = lab.NewRelay(lab.Address(lab.FreePort(t)), 0, cmp.Or(host, f.Config.Host)); err != nil {
		t.Fatal(err)
	}
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
				f.mu.Lock()
				f.lists++
				f.mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (f *faulty) listed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}

// restart ends the API server, which forgets the history of its watches, and starts it again.
func (f *faulty) restart(meanwhile func()) {
	f.t.Helper()
	if err := f.Restart(meanwhile); err != nil {
		f.t.Fatal(err)
	}
}
