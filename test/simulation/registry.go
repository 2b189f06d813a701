package simulation

import (
	"context"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// runtimeLabel has the identity of a runtime, on the object that stands for it in the control plane.
const runtimeLabel = "kyma-project.io/runtime-id"

func kymas() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// kyma returns the object that stands for a runtime.
func (r *RuntimePlan) kyma() *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kymas())
	object.Namespace, object.Name = ownerNamespace, r.owner(0)
	object.Labels = map[string]string{runtimeLabel: r.Name}
	object.Annotations = map[string]string{controllerruntime.DomainAnnotation: domainOf(r.Name)}
	return object
}

// register fills the cache of a new process, which is synced after 2 s.
func (o *operator) register() {
	const coldCache = 2 * time.Second
	o.registry = controllerruntimetest.NewCache()
	o.registry.SetSynced(false)
	time.AfterFunc(coldCache, func() { o.registry.SetSynced(true) })
	for i := range o.world.plan.Runtimes {
		if r := &o.world.plan.Runtimes[i]; r != o.world.deleted {
			o.registry.Set(r.kyma())
		}
	}
	o.runtimes = lab.Must(controllerruntime.NewRuntimes(context.Background(), o.registry, kymas(),
		controllerruntime.ByLabel(runtimeLabel), controllerruntime.RuntimesOptions{Fleet: o.fleet}))
}

// twoOwners are the domains of SAN pinning. Two owners of one runtime need a rule of the operator.
type twoOwners struct{ next listener.Domains }

// Domain implements [listener.Domains].
func (t twoOwners) Domain(ctx context.Context, id core.RuntimeID, event *core.WatchEvent) (string, error) {
	about := *event
	about.Owner.Name = strings.TrimSuffix(event.Owner.Name, otherOwner)
	return t.next.Domain(ctx, id, &about)
}

// registered maps a delivery to whole runtimes by the objects in the control plane.
func (c *controller) registered(ctx context.Context, d core.Delivery) (requests []request, err error) {
	enqueue := controllerruntime.EnqueueOwner(controllerruntime.EnqueueByRuntime(c.operator.runtimes))
	named, err := enqueue(ctx, d)
	for _, one := range named {
		of := c.operator.world.plan.runtimeOf(one.NamespacedName)
		c.operator.world.history.Delivered(string(d.Runtime), of, d.Manager, d.Event)
		requests = append(requests, request{runtime: of})
	}
	return requests, err
}

// runtimeOf returns the runtime that an object stands for.
func (p *Plan) runtimeOf(object types.NamespacedName) string {
	return strings.TrimPrefix(object.Name, p.Runtimes[0].Label)
}

// deleteRuntime deletes the object of a runtime, and returns the function that creates it again.
func (w *world) deleteRuntime(r *RuntimePlan) (create func()) {
	w.register(r, func(o *operator) {
		o.registry.Delete(types.NamespacedName{Namespace: ownerNamespace, Name: r.owner(0)})
	})
	mend := w.history.Break(r.Name, string(RuntimeDeleted))
	return func() {
		w.register(nil, func(o *operator) {
			o.registry.Set(r.kyma())
			for _, c := range o.controllers { // They watch these objects.
				c.queue.Add(request{runtime: r.Name})
			}
		})
		mend()
	}
}

// register changes the objects in each process, and in later ones.
func (w *world) register(deleted *RuntimePlan, change func(*operator)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deleted = deleted
	for _, o := range w.operators {
		if o != nil {
			change(o)
		}
	}
}

func widgets() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
}

// readThere reads one object of a runtime, or all.
func readThere(there client.Reader, name string) {
	if name == "" {
		_ = there.List(context.Background(), new(metav1.PartialObjectMetadataList))
		return
	}
	key := client.ObjectKey{Namespace: "default", Name: name}
	_ = there.Get(context.Background(), key, new(metav1.PartialObjectMetadata)) // It may be absent.
}

// reader reads the objects of a cluster.
type reader struct {
	client.Client

	cluster *cluster
}

// GroupVersionKindFor implements [client.Client].
func (reader) GroupVersionKindFor(runtime.Object) (schema.GroupVersionKind, error) {
	return widgets(), nil
}

// Get implements [client.Reader].
func (r reader) Get(_ context.Context, name client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	object, known := r.cluster.read()[name.Name]
	if !known || !object.exists {
		return apierrors.NewNotFound(schema.GroupResource{Group: widgets().Group, Resource: "widgets"}, name.Name)
	}
	into.SetUID(types.UID(object.uid))
	into.SetResourceVersion(strconv.Itoa(object.version))
	return nil
}

// List implements [client.Reader].
func (r reader) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	list, _ := into.(*metav1.PartialObjectMetadataList)
	for _, object := range r.cluster.read() {
		if object.exists {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				UID: types.UID(object.uid), ResourceVersion: strconv.Itoa(object.version),
			}})
		}
	}
	return nil
}
