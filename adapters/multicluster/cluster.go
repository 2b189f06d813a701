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
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
)

var errNoCache = errors.New("cluster has no cache: watch it with Complete, not with For or Watches")

// live is a cluster without cache, informers and goroutines. All its reads are requests.
type live struct {
	// Provider is that of the control plane. The types of its methods depend on the version of
	// controller-runtime.
	recorder.Provider
	idle

	client client.Client
}

var _ cluster.Cluster = (*live)(nil)

// reading returns the cluster of one reconcile.
func (c *live) reading(source *controllerruntime.Source[mcreconcile.Request], r mcreconcile.Request) *live {
	return &live{Provider: c.Provider, client: source.Client(r, core.RuntimeID(r.ClusterName), c.client)}
}

func (c *live) GetClient() client.Client    { return c.client }
func (c *live) GetAPIReader() client.Reader { return c.client }

// GetCache returns a cache without informers. Its reads are requests.
func (c *live) GetCache() cache.Cache { return noCache{Reader: c.client} }

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
func (refuse) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("cluster has no configuration: use its client")
}

// idle has nothing to start.
type idle struct{}

func (idle) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// noCache reads from the API server.
type noCache struct {
	client.Reader
	idle
}

func (noCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, errNoCache
}

func (noCache) GetInformerForKind(
	context.Context, schema.GroupVersionKind, ...cache.InformerGetOption,
) (cache.Informer, error) {
	return nil, errNoCache
}

func (noCache) RemoveInformer(context.Context, client.Object) error { return nil }
func (noCache) WaitForCacheSync(context.Context) bool               { return true }

func (noCache) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return errNoCache
}

// lazy is a client that connects for each call, so that an idle cluster costs no connection.
type lazy struct {
	connect func(ctx context.Context) (client.Client, error)
	scheme  *runtime.Scheme
	mapper  meta.RESTMapper
}

var (
	_ client.Client            = (*lazy)(nil)
	_ client.SubResourceClient = (*lazySub)(nil)
)

// with calls do with the connected client.
func (l *lazy) with(ctx context.Context, do func(client.Client) error) error {
	connected, err := l.connect(ctx)
	if err != nil {
		return err // It names the cluster.
	}
	return do(connected)
}

func (l *lazy) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return l.with(ctx, func(c client.Client) error { return c.Get(ctx, key, object, opts...) })
}

func (l *lazy) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return l.with(ctx, func(c client.Client) error { return c.List(ctx, list, opts...) })
}

func (l *lazy) Apply(ctx context.Context, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return l.with(ctx, func(c client.Client) error { return c.Apply(ctx, object, opts...) })
}

func (l *lazy) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	return l.with(ctx, func(c client.Client) error { return c.Create(ctx, object, opts...) })
}

func (l *lazy) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	return l.with(ctx, func(c client.Client) error { return c.Delete(ctx, object, opts...) })
}

func (l *lazy) Update(ctx context.Context, object client.Object, opts ...client.UpdateOption) error {
	return l.with(ctx, func(c client.Client) error { return c.Update(ctx, object, opts...) })
}

func (l *lazy) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return l.with(ctx, func(c client.Client) error { return c.Patch(ctx, object, patch, opts...) })
}

func (l *lazy) DeleteAllOf(ctx context.Context, object client.Object, opts ...client.DeleteAllOfOption) error {
	return l.with(ctx, func(c client.Client) error { return c.DeleteAllOf(ctx, object, opts...) })
}

func (l *lazy) Status() client.SubResourceWriter                 { return l.SubResource("status") }
func (l *lazy) SubResource(name string) client.SubResourceClient { return &lazySub{l, name} }
func (l *lazy) Scheme() *runtime.Scheme                          { return l.scheme }
func (l *lazy) RESTMapper() meta.RESTMapper                      { return l.mapper }

func (l *lazy) GroupVersionKindFor(object runtime.Object) (schema.GroupVersionKind, error) {
	return apiutil.GVKForObject(object, l.scheme)
}

func (l *lazy) IsObjectNamespaced(object runtime.Object) (bool, error) {
	return apiutil.IsObjectNamespaced(object, l.scheme, l.mapper)
}

type lazySub struct {
	*lazy

	name string
}

func (s *lazySub) Get(ctx context.Context, object, sub client.Object, opts ...client.SubResourceGetOption) error {
	return s.with(ctx, func(c client.Client) error { return c.SubResource(s.name).Get(ctx, object, sub, opts...) })
}

func (s *lazySub) Create(ctx context.Context, object, sub client.Object, opts ...client.SubResourceCreateOption) error {
	return s.with(ctx, func(c client.Client) error { return c.SubResource(s.name).Create(ctx, object, sub, opts...) })
}

func (s *lazySub) Update(ctx context.Context, object client.Object, opts ...client.SubResourceUpdateOption) error {
	return s.with(ctx, func(c client.Client) error { return c.SubResource(s.name).Update(ctx, object, opts...) })
}

func (s *lazySub) Patch(
	ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
) error {
	return s.with(ctx, func(c client.Client) error { return c.SubResource(s.name).Patch(ctx, object, patch, opts...) })
}

func (s *lazySub) Apply(
	ctx context.Context, object runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
) error {
	return s.with(ctx, func(c client.Client) error { return c.SubResource(s.name).Apply(ctx, object, opts...) })
}
