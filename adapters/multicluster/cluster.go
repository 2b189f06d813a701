package multicluster

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
)

var (
	errNoCache  = errors.New("cluster has no cache: watch it with Complete, not with For or Watches")
	errNoConfig = errors.New("cluster has no configuration: use its client")
)

// live is a cluster without cache, informers and goroutines. All its reads are requests.
type live struct {
	// Provider is that of the control plane. The types of its methods depend on the version of
	// controller-runtime.
	recorder.Provider

	client client.Client
}

var _ cluster.Cluster = (*live)(nil)

// reading returns the cluster of one reconcile.
func (c *live) reading(source *controllerruntime.Source[mcreconcile.Request], r mcreconcile.Request) *live {
	return &live{c.Provider, source.Client(r, core.RuntimeID(r.ClusterName), c.client)}
}

// Start has nothing to start.
func (*live) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (c *live) GetClient() client.Client    { return c.client }
func (c *live) GetAPIReader() client.Reader { return c.client }

// GetCache returns a cache without informers. Its reads are requests.
func (c *live) GetCache() cache.Cache { return noCache{c.client} }

func (c *live) GetFieldIndexer() client.FieldIndexer { return c.GetCache() }
func (c *live) GetScheme() *runtime.Scheme           { return c.client.Scheme() }
func (c *live) GetRESTMapper() meta.RESTMapper       { return c.client.RESTMapper() }

// GetConfig returns a configuration with which requests fail.
func (*live) GetConfig() *rest.Config {
	return &rest.Config{Host: "cluster.invalid", Transport: refuse{}}
}

// GetHTTPClient returns a client with requests that fail.
func (*live) GetHTTPClient() *http.Client { return &http.Client{Transport: refuse{}} }

// refuse fails requests that would evade the bounds of the client.
type refuse struct{}

// RoundTrip implements [http.RoundTripper].
func (refuse) RoundTrip(*http.Request) (*http.Response, error) { return nil, errNoConfig }

// noCache reads from the API server.
type noCache struct{ client.Reader }

func (noCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, errNoCache
}

func (noCache) GetInformerForKind(
	context.Context, schema.GroupVersionKind, ...cache.InformerGetOption,
) (cache.Informer, error) {
	return nil, errNoCache
}

func (noCache) RemoveInformer(context.Context, client.Object) error { return nil }

func (noCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (noCache) WaitForCacheSync(context.Context) bool { return true }

func (noCache) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return errNoCache
}
