// Package informer is a change source that watches objects through the Kubernetes API of a runtime,
// after the commit. It needs the rights to list and watch the objects, but no webhook.
//
// A [Source] does not keep the objects, but a digest of each object that shows whether the watched
// part has changed. A [core.Filter] decides whether a change matters, as in adapters/admission. If
// it does, the source offers an event to a [core.Acceptor], which must not block. A change is
// already committed when it is observed, so the outbox needs no settle time and no resends.
//
// The first list of a watch leads to one resync for the manager instead of events for its objects,
// because earlier changes are unknown. Every later list is compared with the digests, so that
// changes and deletions during an outage become events. A resync follows, for objects that were
// created and deleted in between.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package informer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Source watches objects of one runtime. Create it with [New].
type Source struct {
	client    *rest.RESTClient
	health    *health
	followers []*follower
}

// New returns a source for the API server of a runtime. It connects only in [Source.Start]. A proxy
// is used if the config names a proxy; the proxy of the environment is not used. The error names
// all problems of all watches and options. It wraps [watch.ErrInvalid] if a watch is invalid.
func New(config *rest.Config, acceptor core.Acceptor, watches []watch.Watch, opts Options) (*Source, error) {
	if config == nil || option.IsNil(acceptor) {
		return nil, errors.New("informer: want a config of the API server and an acceptor, have nil")
	}

	problems := []error{watch.Validate(watches), opts.validate()}
	for n := range watches {
		problems = append(problems, unsupported(&watches[n]))
	}

	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("informer: %w", err)
	}

	client, err := newClient(config)
	if err != nil {
		return nil, err
	}

	opts = opts.withDefaults()
	s := &Source{client: client, health: &health{opts: &opts}}
	s.addFollowers(acceptor, watches, &opts)

	return s, nil
}

// addFollowers adds a follower for each watch, and one for the labels of namespaces if a watch
// needs them.
func (s *Source) addFollowers(acceptor core.Acceptor, watches []watch.Watch, opts *Options) {
	namespaces := cache.NewStore(cache.MetaNamespaceKeyFunc)
	for _, w := range watches {
		w := newWatched(w, opts)
		c := s.health.addWatch(w)
		f := &follower{client: s.client, watch: w, conditions: []*condition{c}, health: s.health}
		f.objects = &objects{watch: w, acceptor: acceptor, opts: opts, namespaces: namespaces}
		f.store = f.objects
		s.followers = append(s.followers, f)
	}

	s.addNamespaces(namespaces)
}

// addNamespaces reports its failure for each manager that needs the labels.
func (s *Source) addNamespaces(store cache.Store) {
	resource := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	of := func(name string, manager core.Manager) *watched {
		return &watched{
			Watch: watch.Watch{Manager: manager, Resource: resource}, name: name, objects: labels.Everything(),
		}
	}

	f := &follower{
		client: s.client, health: s.health, store: store, watch: of("labels of namespaces", ""),
		labels: make(map[string]bool),
	}
	for _, other := range s.followers {
		w := other.watch
		if w.NamespaceSelector.IsZero() {
			continue
		}

		f.conditions = append(f.conditions, s.health.addWatch(of(w.name+", labels of namespaces", w.Manager)))

		needed, _ := w.namespaces.Requirements()
		for _, requirement := range needed {
			f.labels[requirement.Key()] = true
		}
	}

	if len(f.conditions) > 0 {
		s.followers = append(s.followers, f)
	}
}

// Start watches until ctx ends, and then returns nil. A watch that cannot be established is retried
// and does not affect other watches. Start must be called only once.
func (s *Source) Start(ctx context.Context) error {
	ctx = logr.NewContext(ctx, logr.Discard()) // The source has lines of its own.
	var all sync.WaitGroup

	for _, f := range s.followers {
		all.Go(func() { f.followWatch(ctx) })
	}

	all.Wait()
	<-ctx.Done() // Without watches.
	s.client.Client.CloseIdleConnections()

	return nil
}

// Ready returns nil if every watch is established. Otherwise the error names the other watches with
// the cause. It may be called concurrently.
func (s *Source) Ready() error {
	if problems := s.health.problemsOf(func(*condition) bool { return true }); problems != "" {
		return errors.New("watches are not established: " + problems)
	}
	return nil
}

// Problem returns why watches of a manager cannot be established, or "" if all watches are
// established. A watch before its first attempt has no problem yet. Problem is for heartbeats and
// may be called concurrently.
func (s *Source) Problem(manager core.Manager) string {
	return s.health.problemsOf(func(c *condition) bool { return c.watch.Manager == manager && c.problem != notYet })
}

func newClient(config *rest.Config) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // The errors of an API server.
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	if config.QPS == 0 && config.RateLimiter == nil {
		config.QPS = -1 // No limit: the backoff of each watch bounds its requests.
	}
	if config.Proxy == nil {
		// The API server is in the cluster of the agent, and the proxy of the environment for the
		// way out.
		config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } //nolint:nilnil // No proxy.
	}

	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}

	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("informer: client of the API server: %w", err)
	}

	return client, nil
}
