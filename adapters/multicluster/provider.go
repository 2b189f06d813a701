package multicluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
)

// ProviderOptions are the optional settings of [NewProvider]. The zero value is the documented
// default, which is also that of the provider kubeconfig of multicluster-runtime.
type ProviderOptions struct {
	// Namespace has the Secrets. Default: "default".
	Namespace string
	// Label has the value "true" at each Secret that stands for a cluster. Default:
	// "sigs.k8s.io/multicluster-runtime-kubeconfig".
	Label string
	// Name is that of the controller of the Secrets. Default: "kubeconfig-provider".
	Name string
}

func (o ProviderOptions) withDefaults() ProviderOptions {
	o.Namespace = cmp.Or(o.Namespace, metav1.NamespaceDefault)
	o.Label = cmp.Or(o.Label, "sigs.k8s.io/multicluster-runtime-kubeconfig")
	o.Name = cmp.Or(o.Name, "kubeconfig-provider")
	return o
}

// Provider engages a cluster for each Secret with a kubeconfig. The name of the Secret is that of
// the cluster, and must be the [core.RuntimeID] of its agent. A cluster has no cache: a read
// through its client is a request. Make it with [NewProvider]. It is safe for concurrent use.
//
// The scheme and the mapper of a cluster are those of the local controller manager. A configuration
// or an informer of a cluster is an error. Its events go to the control plane.
type Provider struct {
	connect func(ctx context.Context, secret client.Object) (client.Client, error)
	opts    ProviderOptions

	mu       sync.RWMutex
	clusters map[multicluster.ClusterName]engagement
}

// engagement is a cluster, until its Secret changes.
type engagement struct {
	cluster cluster.Cluster
	version string
	end     context.CancelFunc
}

var _ multicluster.Provider = (*Provider)(nil)

// NewProvider returns a provider of clusters that connect connects to. connect gets the metadata of
// a Secret. It is called for each request, concurrently, so it should keep its clients, as
// runtimes.NewKubeconfigs of the module controlplane does. SetupWithManager fails without one.
func NewProvider(
	connect func(ctx context.Context, secret client.Object) (client.Client, error), opts ProviderOptions,
) *Provider {
	return &Provider{
		connect: connect, opts: opts.withDefaults(), clusters: make(map[multicluster.ClusterName]engagement),
	}
}

// SetupWithManager adds a controller of the Secrets to the local controller manager. Its cache gets
// their metadata only. Clusters stay engaged until ctx ends, their Secret is deleted or loses the
// label. A Secret that changes engages its cluster again.
func (p *Provider) SetupWithManager(ctx context.Context, mgr mcmanager.Manager) error {
	if p.connect == nil {
		return errors.New("provider has no connect function")
	}
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetNamespace() == p.opts.Namespace })
	return builder.ControllerManagedBy(mgr.GetLocalManager()).Named(p.opts.Name).
		For(&corev1.Secret{}, builder.OnlyMetadata, builder.WithPredicates(ours)).
		Complete(reconcile.Func(func(local context.Context, r reconcile.Request) (reconcile.Result, error) {
			secret, err := p.labelled(local, mgr.GetLocalManager().GetCache(), r)
			if err == nil && secret == nil {
				p.disengage(multicluster.ClusterName(r.Name))
			}
			if err != nil || secret == nil {
				return reconcile.Result{}, err
			}
			return reconcile.Result{}, p.engage(ctx, mgr, secret)
		}))
}

// labelled returns the metadata of a Secret that stands for a cluster, nil if it does not.
func (p *Provider) labelled(
	ctx context.Context, secrets client.Reader, r reconcile.Request,
) (*metav1.PartialObjectMetadata, error) {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := secrets.Get(ctx, r.NamespacedName, secret); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if secret.DeletionTimestamp != nil || secret.Labels[p.opts.Label] != "true" {
		return nil, nil //nolint:nilnil // No cluster is no error.
	}
	return secret, nil
}

// engage engages the cluster of a Secret, unless it is engaged with this version of the Secret.
func (p *Provider) engage(ctx context.Context, mgr mcmanager.Manager, secret *metav1.PartialObjectMetadata) error {
	name, version := multicluster.ClusterName(secret.Name), string(secret.UID)+"/"+secret.ResourceVersion
	if p.engagement(name).version == version {
		return nil
	}
	p.disengage(name)
	ctx, end := context.WithCancel(ctx)
	made := p.cluster(mgr, secret)
	p.mu.Lock()
	p.clusters[name] = engagement{made, version, end}
	p.mu.Unlock()
	if err := mgr.Engage(ctx, name, made); err != nil {
		p.disengage(name)
		return fmt.Errorf("engage cluster %s: %w", name, err)
	}
	return nil
}

func (p *Provider) cluster(mgr mcmanager.Manager, secret *metav1.PartialObjectMetadata) cluster.Cluster {
	local := mgr.GetLocalManager()
	// The rest of the metadata would stay in memory.
	of := &metav1.PartialObjectMetadata{TypeMeta: secret.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
	}}
	return &live{Provider: local, client: &lazy{
		connect: func(ctx context.Context) (client.Client, error) { return p.connect(ctx, of) },
		scheme:  local.GetScheme(), mapper: local.GetRESTMapper(),
	}}
}

func (p *Provider) disengage(name multicluster.ClusterName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if former, known := p.clusters[name]; known {
		former.end()
		delete(p.clusters, name)
	}
}

// Get returns an engaged cluster, or an error that wraps [multicluster.ErrClusterNotFound]. Within
// a reconcile of [Complete], its client is that of controllerruntime.Source.Client. Get does not
// block.
func (p *Provider) Get(ctx context.Context, name multicluster.ClusterName) (cluster.Cluster, error) {
	if own, ok := ctx.Value(reconciled{name}).(cluster.Cluster); ok {
		return own, nil
	}
	if engaged := p.engagement(name).cluster; engaged != nil {
		return engaged, nil
	}
	return nil, fmt.Errorf("cluster %q: %w", name, multicluster.ErrClusterNotFound)
}

// engagement returns the zero value for a cluster that is not engaged.
func (p *Provider) engagement(name multicluster.ClusterName) engagement {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.clusters[name]
}

// IndexField returns an error, because clusters have no cache.
func (*Provider) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return errNoCache
}
