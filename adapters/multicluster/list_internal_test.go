package multicluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote/remotetest"
)

// pages is a cluster with an API server that answers lists.
type pages struct {
	client.Client

	list  func(list *metav1.PartialObjectMetadataList, opts *client.ListOptions) error
	calls int
}

func (p *pages) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	p.calls++
	into, _ := list.(*metav1.PartialObjectMetadataList)
	into.Items = nil
	into.Continue = ""

	return p.list(into, (&client.ListOptions{}).ApplyOptions(opts))
}

// listWorld has a queue that nobody reads from, so a test reconciles what it wants.
type listWorld struct {
	*objects

	t          *testing.T
	queue      workqueue.TypedRateLimitingInterface[mcreconcile.Request]
	reconciled int
	failing    error
	// reads means that reconciles read through the client of their context.
	reads bool
}

func newListWorld(t *testing.T, there client.Client, of Objects) *listWorld {
	t.Helper()

	w := &listWorld{t: t, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[mcreconcile.Request]())}
	t.Cleanup(w.queue.ShutDown)
	of.Kind = corev1.SchemeGroupVersion.WithKind("ConfigMap")
	of.Source = controllerruntime.NewSource(Enqueue, controllerruntime.SourceOptions{})
	if err := of.Source.Start(t.Context(), w.queue); err != nil {
		t.Fatal(err)
	}

	of.Reconciler = mcreconcile.Func(func(ctx context.Context, r mcreconcile.Request) (reconcile.Result, error) {
		w.reconciled++
		if w.failing != nil {
			return reconcile.Result{}, w.failing
		}

		reader := there
		if own, ok := ctx.Value(reconciled{r.ClusterName}).(*live); ok && w.reads {
			reader = own.client
		}

		return reconcile.Result{}, client.IgnoreNotFound(reader.Get(ctx, r.NamespacedName, &corev1.ConfigMap{}))
	})

	w.objects = newObjects(of.withDefaults(), func(context.Context, multicluster.ClusterName) (cluster.Cluster, error) {
		return &live{client: there}, nil
	})
	return w
}

// part reads a part of the list of cluster a.
func (w *listWorld) part(ctx context.Context) (reconcile.Result, error) {
	return w.lanes.Regular.Reconcile(ctx, continuation("a"))
}

// change reconciles an object of cluster a, as after an event.
func (w *listWorld) change(name string) {
	r := mcreconcile.Request{ClusterName: "a"}
	r.Namespace = "default"
	r.Name = name
	_, _ = w.lanes.Regular.Reconcile(w.t.Context(), r)
}

// drain reconciles all requests that wait, and returns their names.
func (w *listWorld) drain() (names []string) {
	for w.queue.Len() > 0 {
		r, _ := w.queue.Get()
		_, _ = w.lanes.Regular.Reconcile(w.t.Context(), r)
		names = append(names, r.Name)
		w.queue.Done(r)
	}
	return names
}

// listAll begins a list, and reads and reconciles all of it.
func (w *listWorld) listAll() (names []string) {
	w.t.Helper()

	w.beginList("a")
	for range 10_000 {
		if _, err := w.part(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}

		names = append(names, w.drain()...)
		if !w.listOf("a").active {
			return names
		}
	}

	w.t.Fatal("the list does not end")
	return nil
}

func items(first, n int) (all []metav1.PartialObjectMetadata) {
	for i := range n {
		all = append(all, metav1.PartialObjectMetadata{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("n", first+i)},
		})
	}
	return all
}

// Two objects were deleted, and their events are lost. A resync requests each of them once.
func TestAResyncFindsDeletedObjects(t *testing.T) {
	object := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		}
	}
	for remembered, want := range map[int]int{0: 2, 2: 1, 1: 0} { // 0 is the default.
		there := fake.NewClientBuilder().WithObjects(object("a"), object("b"), object("c")).Build()
		w := newListWorld(t, there, Objects{Remembered: remembered})
		if names := w.listAll(); len(names) != 3 {
			t.Fatalf("listed %v", names)
		}

		for _, name := range []string{"b", "c"} {
			if err := there.Delete(t.Context(), object(name)); err != nil {
				t.Fatal(err)
			}
		}

		if names := append(w.listAll(), w.drain()...); len(names) != 1+want {
			t.Errorf("%d remembered: the resync reconciles %v, want a and %d others", remembered, names, want)
		}
		if names := append(w.listAll(), w.drain()...); len(names) != 1 {
			t.Errorf("%d remembered: the next one reconciles %v, want a", remembered, names)
		}
		if full := w.listOf("a").isFullLogged; full != (want < 2) {
			t.Errorf("%d remembered: logged that they are too many: %t", remembered, full)
		}
	}
}

// Strangers name objects that do not exist, before the list and after it. Each of their names is
// reconciled, and none takes the place of an object that a list or a reconcile has seen.
func TestForgedNamesPushNothingOut(t *testing.T) {
	object := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	}
	for name, reads := range map[string]bool{"the reconcile reads the object": true, "it reads elsewhere": false} {
		t.Run(name, func(t *testing.T) {
			there := fake.NewClientBuilder().WithObjects(object("listed")).Build()
			w := newListWorld(t, there, Objects{Remembered: 3})
			w.reads = reads
			forge := func(round string) {
				for n := range 10 {
					w.change(fmt.Sprint("forged-", round, n))
				}
			}

			forge("before")
			w.listAll()

			if err := there.Create(t.Context(), object("changed")); err != nil {
				t.Fatal(err)
			}

			w.change("changed")
			forge("after")

			for _, gone := range []string{"listed", "changed"} {
				if err := there.Delete(t.Context(), object(gone)); err != nil {
					t.Fatal(err)
				}
			}

			names := append(w.listAll(), w.drain()...)
			want := []string{"listed"}

			if reads { // Without a read, nothing shows that the second one exists.
				want = []string{"changed", "listed"}
			}

			for _, gone := range want {
				if !slices.Contains(names, gone) {
					t.Errorf("the resync reconciles %v, want %s", names, gone)
				}
			}

			if n := len(w.listOf("a").known.numbers); n > 3 {
				t.Errorf("%d names are remembered, want at most 3", n)
			}
			if full := w.listOf("a").isFullLogged; full == reads {
				t.Errorf("logged that they are too many: %t", full)
			}
		})
	}
}

// An API server always promises another page. Rows differ in what a page has.
func TestAListWithoutEndEnds(t *testing.T) {
	for name, each := range map[string]int{"one object": 1, "a page": 250, "no limit": 15_000} {
		t.Run(name, func(t *testing.T) {
			made := 0
			server := &pages{list: func(list *metav1.PartialObjectMetadataList, _ *client.ListOptions) error {
				list.Items = items(made, each)
				made += each
				list.Continue = fmt.Sprint("p", made)

				return nil
			}, Client: fake.NewClientBuilder().Build()}

			w := newListWorld(t, server, Objects{MostListed: 2000})
			w.beginList("a")

			// Nobody reconciles: names that wait are bounded, and no further page is read.
			for range 100 {
				w.listed = time.Time{}
				if _, err := w.part(t.Context()); err != nil {
					t.Fatal(err)
				}
			}

			if n := w.queue.Len(); n > mostNames {
				t.Errorf("%d names wait, want at most %d", n, mostNames)
			}

			total := len(w.drain())
			for w.listOf("a").active && total < 10_000 {
				if _, err := w.part(t.Context()); err != nil {
					t.Fatal(err)
				}
				total += len(w.drain())
			}

			if total < 2000 || total > 2000+mostPage {
				t.Errorf("%d names in all, want about 2,000", total)
			}
		})
	}
}

// Names that are none would request the cluster again, or fill the queue.
func TestNamesOfAListAreNames(t *testing.T) {
	long := make([]byte, 300)
	for i := range long {
		long[i] = 'a'
	}

	server := &pages{list: func(list *metav1.PartialObjectMetadataList, _ *client.ListOptions) error {
		list.Items = append(items(0, 2), metav1.PartialObjectMetadata{}, metav1.PartialObjectMetadata{
			ObjectMeta: metav1.ObjectMeta{Name: string(long)},
		}, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "/list"}})
		return nil
	}, Client: fake.NewClientBuilder().Build()}
	if names := newListWorld(t, server, Objects{}).listAll(); len(names) != 2 {
		t.Errorf("requested %v, want two names", names)
	}
}

// A page is too large, until it has ten objects.
func TestPagesShrink(t *testing.T) {
	const all = 95
	server := &pages{Client: fake.NewClientBuilder().Build()}
	server.list = func(list *metav1.PartialObjectMetadataList, opts *client.ListOptions) error {
		if opts.Limit > 10 {
			return fmt.Errorf("read: %w", remote.ErrLargeAnswer)
		}

		first := 0
		_, _ = fmt.Sscan(opts.Continue, &first)
		list.Items = items(first, min(int(opts.Limit), all-first))
		if next := first + len(list.Items); next < all {
			list.Continue = strconv.Itoa(next)
		}

		return nil
	}

	w := newListWorld(t, server, Objects{})
	if names := w.listAll(); len(names) != all {
		t.Errorf("%d names, want %d", len(names), all)
	}

	server.list = func(*metav1.PartialObjectMetadataList, *client.ListOptions) error { return remote.ErrLargeAnswer }
	w.beginList("a")
	var err error

	for range 10 {
		if _, err = w.part(t.Context()); err != nil {
			break
		}
	}

	if !errors.Is(err, remote.ErrLargeAnswer) {
		t.Errorf("got %v, want an error about one object that is too large", err)
	}
}

// The token of the second page has expired. The API server offers another one, or none.
func TestAListGoesOnAfterItsTokenHasExpired(t *testing.T) {
	for _, offered := range []string{"", "fresh"} {
		expired := false
		server := &pages{Client: fake.NewClientBuilder().Build()}
		server.list = func(list *metav1.PartialObjectMetadataList, opts *client.ListOptions) error {
			switch {
			case opts.Continue == "":
				list.Items = items(0, 1)
				list.Continue = "second"
			case opts.Continue == "second" && !expired:
				expired = true
				err := apierrors.NewResourceExpired("too old")
				err.ErrStatus.Continue = offered

				return err
			default:
				list.Items = items(1, 1)
			}
			return nil
		}

		w := newListWorld(t, server, Objects{})
		w.beginList("a")
		for w.listOf("a").active {
			_, _ = w.part(t.Context())
		}

		if names := w.drain(); !expired || len(names) != 2 {
			t.Errorf("names %v, want two", names)
		}
	}
}

// A resync during a list is followed by another list.
func TestAResyncDuringAListIsNotLost(t *testing.T) {
	server := &pages{list: func(*metav1.PartialObjectMetadataList, *client.ListOptions) error { return nil }, Client: fake.NewClientBuilder().Build()}
	w := newListWorld(t, server, Objects{})
	w.beginList("a")
	w.beginList("a")

	for w.listOf("a").active {
		if _, err := w.part(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	if server.calls != 2 {
		t.Errorf("%d lists, want 2", server.calls)
	}
}

// Names that fail are retried by the queue, up to a bound. A list replaces the others.
func TestNamesThatFailAreBounded(t *testing.T) {
	w := newListWorld(t, fake.NewClientBuilder().Build(), Objects{})
	w.failing = errors.New("refused")
	final := 0

	for n := range mostFailing + 2 {
		r := mcreconcile.Request{ClusterName: "a"}
		r.Namespace = "default"
		r.Name = strconv.Itoa(n)
		if _, err := w.lanes.Regular.Reconcile(t.Context(), r); errors.Is(err, reconcile.TerminalError(nil)) {
			final++
		}
	}

	if final != 2 || len(w.listOf("a").failing) != mostFailing || !w.listOf("a").dropped {
		t.Errorf("%d are not retried, %d are, want 2 and %d", final, len(w.listOf("a").failing), mostFailing)
	}
}

// The attacks on any program, for a list and a read of an object.
func TestAttacksOnAClusterWithoutCache(t *testing.T) {
	remotetest.Run(t, func(t *testing.T, server *remotetest.Server) func(context.Context) error {
		t.Helper()

		server.Put("/api/v1/namespaces/default/configmaps/x", map[string]any{
			"kind": "ConfigMap", "apiVersion": "v1", "metadata": map[string]any{"name": "x", "namespace": "default"},
		})
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "a"},
			Data:       map[string][]byte{"kubeconfig": server.Kubeconfig()},
		}
		known := meta.NewDefaultRESTMapper(nil)
		known.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
		connect := remote.NewKubeconfigs(fake.NewClientBuilder().WithObjects(secret).Build(), "kubeconfig",
			client.ObjectKeyFromObject, remote.KubeconfigOptions{
				Scheme: scheme.Scheme, Mapper: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return known, nil },
			})
		there := &lazy{
			connect: func(ctx context.Context) (client.Client, error) { return connect(ctx, secret) },
			scheme:  scheme.Scheme, mapper: known,
		}
		w := newListWorld(t, there, Objects{})
		object := mcreconcile.Request{ClusterName: "a"}
		object.Namespace = "default"
		object.Name = "x"

		return func(ctx context.Context) error {
			w.forgetCluster("a")
			w.listed = time.Time{}
			w.beginList("a")
			_, listed := w.part(ctx)
			_, read := w.lanes.Regular.Reconcile(ctx, object)

			for w.queue.Len() > 0 { // The names are not reconciled here.
				r, _ := w.queue.Get()
				w.queue.Done(r)
			}

			return errors.Join(listed, read)
		}
	})
}
