package kyma_test

import (
	"context"
	"errors"
	"flag"
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

var every = flag.Int("crash-every", 82, "crash before every n-th write, and after those in the middle between them")

var errCrash = errors.New("crash")

// crash makes an operator fail from one of its writes on, in either cluster. Nil never does.
type crash struct {
	// at is the number of the write, from 1.
	at int
	// late means that the write is made, and its answer is lost.
	late bool

	// writes counts the writes. Several objects are written in parallel.
	writes atomic.Int64
}

// write makes a write, unless the operator has crashed.
func (c *crash) write(send func() error) error {
	number := int(c.writes.Add(1))
	switch {
	case c.at == 0 || number < c.at:
		return send()
	case number == c.at && c.late:
		return errors.Join(send(), errCrash)
	default:
		return errCrash
	}
}

func (c *crash) client(t *testing.T, plane *apiserver.ControlPlane, scheme *runtime.Scheme) client.Client {
	t.Helper()
	if c == nil {
		return plane.Client
	}
	direct := lab.Must(client.NewWithWatch(plane.Config, client.Options{Scheme: scheme}))
	return interceptor.NewClient(direct, interceptor.Funcs{
		Create: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return c.write(func() error { return to.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return c.write(func() error { return to.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, to client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if slices.Contains(opts, client.PatchOption(client.DryRunAll)) {
				return to.Patch(ctx, o, p, opts...)
			}
			return c.write(func() error { return to.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return c.write(func() error { return to.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(
			ctx context.Context, to client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption,
		) error {
			return c.write(func() error { return to.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
}

// connect returns connections to one runtime, with a client that crashes.
func (c *crash) connect(t *testing.T, get skr.Connect, plane *apiserver.ControlPlane, scheme *runtime.Scheme) skr.Connect {
	t.Helper()
	if c == nil {
		return get
	}
	crashing := c.client(t, plane, scheme)
	return func(ctx context.Context, request, kyma client.ObjectKey) (*skr.Runtime, error) {
		there, err := get(ctx, request, kyma)
		if err != nil {
			return nil, err
		}
		return there.Through(crashing), nil
	}
}

// TestCrash ends the operator at some of its writes, before or after the write is made, and another one
// continues. Nothing may be orphaned in either cluster, and the manager of the sample module must
// not end before its custom resource, which would stay for ever. All writes take a few minutes:
// -crash-every=1.
func TestCrash(t *testing.T) {
	w := newWorld(t)
	w.keda = true
	// The namespace is older than the operator, so it must stay.
	w.must(w.skr.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: skr.Namespace}}))
	w.must(w.plane.Client.Create(t.Context(), template(t, "1", "text", "old")))
	counted := &crash{}
	w.live(counted)
	t.Logf("%d writes without a crash", counted.writes.Load())
	for i, late := range []bool{false, true} {
		for at := 1 + i*(*every/2); at <= int(counted.writes.Load()); at += *every {
			w.live(&crash{at: at, late: late})
			if t.Failed() {
				t.Fatalf("after a crash at write %d, late: %t", at, late)
			}
		}
	}
}

// live creates a Kyma, and enables, upgrades, disables and enables a module, until it deletes the
// Kyma. After a crash, the next change comes before another operator continues.
func (w *world) live(c *crash) {
	w.t.Helper()
	w.operator = w.newOperator(c)
	sample := v1beta2.Module{Name: moduleName}
	changes := []struct {
		make func()
		want []string
	}{
		{func() { w.setTemplate("1", "text", "old"); w.register(sample) }, []string{"text", "old"}},
		{func() { w.setTemplate("2", "text", "new") }, []string{"text", "new"}},
		{func() { w.setModules() }, nil},
		{func() { w.setModules(sample) }, []string{"text", "new"}},
		{func() { w.must(w.plane.Client.Delete(w.t.Context(), w.kyma())) }, nil},
	}
	for _, change := range changes {
		change.make()
		err := w.settle()
		if errors.Is(err, errCrash) {
			w.operator = w.newOperator(nil)
			continue
		}
		w.must(err)
		w.want(change.want...)
	}
	w.want()
	w.wantClean()
}

func (w *world) want(names ...string) {
	w.t.Helper()
	w.must(w.settle())
	list := &corev1.ConfigMapList{}
	have := []string(nil)
	w.must(w.skr.Client.List(w.t.Context(), list, client.InNamespace("default")))
	for i := range list.Items {
		have = append(have, list.Items[i].Name)
	}
	slices.Sort(names)
	slices.Sort(have)
	if !slices.Equal(have, names) {
		w.t.Errorf("the runtime has the ConfigMaps %q, want %q", have, names)
	}
}

func (w *world) kyma() *v1beta2.Kyma {
	w.t.Helper()
	k := &v1beta2.Kyma{}
	w.must(w.plane.Client.Get(w.t.Context(), key("runtime-1"), k))
	return k
}

// wantClean wants neither a Kyma nor a Manifest, and no definition in the runtime. The namespace of
// others is still there.
func (w *world) wantClean() {
	w.t.Helper()
	err := w.plane.Client.Get(w.t.Context(), key("runtime-1"), &v1beta2.Kyma{})
	if left := w.listManifests(); !apierrors.IsNotFound(err) || len(left) > 0 {
		w.t.Errorf("the control plane has %d Manifests, and the Kyma: %v", len(left), err)
	}
	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	w.must(w.skr.Client.List(w.t.Context(), crds))
	if len(crds.Items) > 0 {
		w.t.Errorf("the runtime has %d definitions", len(crds.Items))
	}
	namespace := &corev1.Namespace{}
	w.must(w.skr.Client.Get(w.t.Context(), client.ObjectKey{Name: skr.Namespace}, namespace))
	if namespace.DeletionTimestamp != nil {
		w.t.Error("the namespace of others was deleted")
	}
}
