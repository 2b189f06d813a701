package multicluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
)

// ProviderOptions are the optional settings of [NewProvider]. The zero value is the documented
// default, as in the kubeconfig provider of multicluster-runtime.
type ProviderOptions struct {
	// Namespace is the namespace of the Secrets. Default: "default".
	Namespace string
	// Label is the label that has the value "true" on each Secret that represents a cluster.
	// Default: "sigs.k8s.io/multicluster-runtime-kubeconfig".
	Label string
	// Name is the name of the controller for the Secrets. Default: "kubeconfig-provider".
	Name string
}

// Provider engages a cluster for each Secret with a kubeconfig. The Secret has the name of the
// cluster, which must be the [core.RuntimeID] of its agent. A cluster has no cache: each read
// through its client is a request. Create a Provider with [NewProvider]. It is safe for concurrent
// use.
//
// A cluster uses the scheme and the mapper of the local controller manager. Its configuration and
// its informers return errors. Its events are recorded in the control plane.
type Provider struct {
	connect func(ctx context.Context, secret client.Object) (client.Client, error)
	opts    ProviderOptions

	mu       sync.RWMutex
	clusters map[multicluster.ClusterName]engagement
}

// engagement lasts while the Secret exists. Another version of the Secret changes the client only.
type engagement struct {
	cluster cluster.Cluster
	uid     types.UID // of the Secret
	// newest contains the metadata of the newest version of the Secret.
	newest *atomic.Pointer[metav1.PartialObjectMetadata]
	end    context.CancelFunc
}

// NewProvider returns a provider of the clusters to which the function connect connects. The
// function gets the metadata of a Secret. It is called concurrently and for each request, so it
// should keep its clients, as the function of [remote.NewKubeconfigs] does. If connect is nil,
// SetupWithManager fails.
func NewProvider(
	connect func(ctx context.Context, secret client.Object) (client.Client, error), opts ProviderOptions,
) *Provider {
	opts.Namespace = cmp.Or(opts.Namespace, metav1.NamespaceDefault)
	opts.Label = cmp.Or(opts.Label, "sigs.k8s.io/multicluster-runtime-kubeconfig")
	opts.Name = cmp.Or(opts.Name, "kubeconfig-provider")

	return &Provider{connect: connect, opts: opts, clusters: make(map[multicluster.ClusterName]engagement)}
}

// SetupWithManager adds a controller for the Secrets to the local controller manager. Its cache
// holds only the metadata of the Secrets. A cluster stays engaged until ctx ends, or its Secret is
// deleted or loses the label. If a Secret changes, for example because of a new token, the client
// of its cluster changes. Only a Secret with another UID engages its cluster again and lists its
// objects.
func (p *Provider) SetupWithManager(ctx context.Context, mgr mcmanager.Manager) error {
	if p.connect == nil {
		return errors.New("provider has no connect function")
	}

	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetNamespace() == p.opts.Namespace })
	return builder.ControllerManagedBy(mgr.GetLocalManager()).Named(p.opts.Name).
		For(&corev1.Secret{}, builder.OnlyMetadata, builder.WithPredicates(ours)).
		Complete(reconcile.Func(func(local context.Context, r reconcile.Request) (reconcile.Result, error) {
			secret, err := p.getLabelled(local, mgr.GetLocalManager().GetCache(), r)
			if err == nil && secret == nil {
				p.disengageCluster(multicluster.ClusterName(r.Name))
			}
			if err != nil || secret == nil {
				return reconcile.Result{}, err
			}
			return reconcile.Result{}, p.engageCluster(ctx, mgr, secret)
		}))
}

// getLabelled returns the metadata of a Secret that represents a cluster, nil for another Secret.
func (p *Provider) getLabelled(
	ctx context.Context, secrets client.Reader, r reconcile.Request,
) (*metav1.PartialObjectMetadata, error) {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := secrets.Get(ctx, r.NamespacedName, secret); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if secret.DeletionTimestamp != nil || secret.Labels[p.opts.Label] != "true" {
		return nil, nil //nolint:nilnil // A missing cluster is not an error.
	}

	return secret, nil
}

// engageCluster engages the cluster of a Secret, or gives an engaged one the new version of the
// Secret.
func (p *Provider) engageCluster(
	ctx context.Context, mgr mcmanager.Manager, secret *metav1.PartialObjectMetadata,
) error {
	name := multicluster.ClusterName(secret.Name)
	// The rest of the metadata would stay in memory.
	newest := &metav1.PartialObjectMetadata{TypeMeta: secret.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
	}}
	if known := p.engagementOf(name); known.cluster != nil && known.uid == secret.UID {
		known.newest.Store(newest)
		return nil
	}

	p.disengageCluster(name)

	ctx, end := context.WithCancel(ctx)
	next := engagement{uid: secret.UID, newest: &atomic.Pointer[metav1.PartialObjectMetadata]{}, end: end}
	next.newest.Store(newest)
	next.cluster = p.newCluster(mgr, next.newest)

	p.mu.Lock()
	p.clusters[name] = next
	p.mu.Unlock()

	if err := mgr.Engage(ctx, name, next.cluster); err != nil {
		p.disengageCluster(name)
		return fmt.Errorf("engage cluster %s: %w", name, err)
	}

	return nil
}

func (p *Provider) newCluster(
	mgr mcmanager.Manager, newest *atomic.Pointer[metav1.PartialObjectMetadata],
) cluster.Cluster {
	local := mgr.GetLocalManager()
	return &live{Provider: local, client: &lazy{
		connect: func(ctx context.Context) (client.Client, error) { return p.connect(ctx, newest.Load()) },
		scheme:  local.GetScheme(), mapper: local.GetRESTMapper(),
	}}
}

func (p *Provider) disengageCluster(name multicluster.ClusterName) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if former, known := p.clusters[name]; known {
		former.end()
		delete(p.clusters, name)
	}
}

// Get returns an engaged cluster, or an error that wraps [multicluster.ErrClusterNotFound]. Within
// a reconcile of [Complete], the cluster uses the client of controllerruntime.Source.Client. Get
// does not block.
func (p *Provider) Get(ctx context.Context, name multicluster.ClusterName) (cluster.Cluster, error) {
	if own, ok := ctx.Value(reconciled{name}).(cluster.Cluster); ok {
		return own, nil
	}
	if engaged := p.engagementOf(name).cluster; engaged != nil {
		return engaged, nil
	}
	return nil, fmt.Errorf("cluster %q: %w", name, multicluster.ErrClusterNotFound)
}

func (p *Provider) engagementOf(name multicluster.ClusterName) engagement {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.clusters[name]
}

// IndexField returns an error, because clusters have no cache.
func (*Provider) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return errNoCache
}

var errNoCache = errors.New("cluster has no cache: watch it with Complete, not with For or Watches")

// reconciled is the key of the cluster that a reconcile uses, in its context.
type reconciled struct{ multicluster.ClusterName }

// live is a cluster without cache, informers and goroutines. All its reads are requests.
type live struct {
	// Provider is the recorder provider of the control plane. The types of its methods depend on
	// the version of controller-runtime.
	recorder.Provider
	idle

	client client.Client
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

type idle struct{}

func (idle) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

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

// withClient connects and calls do.
func (l *lazy) withClient(ctx context.Context, do func(client.Client) error) error {
	connected, err := l.connect(ctx)
	if err != nil {
		return err // It names the cluster.
	}
	return do(connected)
}

func (l *lazy) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return l.withClient(ctx, func(c client.Client) error { return c.Get(ctx, key, object, opts...) })
}

func (l *lazy) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return l.withClient(ctx, func(c client.Client) error { return c.List(ctx, list, opts...) })
}

func (l *lazy) Apply(ctx context.Context, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return l.withClient(ctx, func(c client.Client) error { return c.Apply(ctx, object, opts...) })
}

func (l *lazy) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	return l.withClient(ctx, func(c client.Client) error { return c.Create(ctx, object, opts...) })
}

func (l *lazy) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	return l.withClient(ctx, func(c client.Client) error { return c.Delete(ctx, object, opts...) })
}

func (l *lazy) Update(ctx context.Context, object client.Object, opts ...client.UpdateOption) error {
	return l.withClient(ctx, func(c client.Client) error { return c.Update(ctx, object, opts...) })
}

func (l *lazy) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return l.withClient(ctx, func(c client.Client) error { return c.Patch(ctx, object, patch, opts...) })
}

func (l *lazy) DeleteAllOf(ctx context.Context, object client.Object, opts ...client.DeleteAllOfOption) error {
	return l.withClient(ctx, func(c client.Client) error { return c.DeleteAllOf(ctx, object, opts...) })
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
	return s.withClient(ctx, func(c client.Client) error {
		return c.SubResource(s.name).Get(ctx, object, sub, opts...)
	})
}

func (s *lazySub) Create(ctx context.Context, object, sub client.Object, opts ...client.SubResourceCreateOption) error {
	return s.withClient(ctx, func(c client.Client) error {
		return c.SubResource(s.name).Create(ctx, object, sub, opts...)
	})
}

func (s *lazySub) Update(ctx context.Context, object client.Object, opts ...client.SubResourceUpdateOption) error {
	return s.withClient(ctx, func(c client.Client) error { return c.SubResource(s.name).Update(ctx, object, opts...) })
}

func (s *lazySub) Patch(
	ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
) error {
	return s.withClient(ctx, func(c client.Client) error {
		return c.SubResource(s.name).Patch(ctx, object, patch, opts...)
	})
}

func (s *lazySub) Apply(
	ctx context.Context, object runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
) error {
	return s.withClient(ctx, func(c client.Client) error { return c.SubResource(s.name).Apply(ctx, object, opts...) })
}
