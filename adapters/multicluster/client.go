package multicluster

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

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

// lazySub is the client of a subresource.
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
