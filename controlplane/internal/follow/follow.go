// Package follow watches the metadata of objects. It keeps a version of each object but never its
// content, so that a follower of Secrets holds no keys.
package follow

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects follows the objects of one kind in one namespace. Create it with [New] and call Run. Its
// methods may be called concurrently.
type Objects struct {
	kind    schema.GroupVersionKind
	version func(*metav1.PartialObjectMetadata) string

	problem string                      // of Run
	store   atomic.Pointer[cache.Store] // of versioned, by name
}

type versioned struct{ name, version string }

// GetObjectMeta implements [metav1.ObjectMetaAccessor], for the key in a store.
func (v versioned) GetObjectMeta() metav1.Object { return &metav1.ObjectMeta{Name: v.name} }

// New returns a follower. version returns a text that changes with each change that matters.
func New(kind schema.GroupVersionKind, version func(*metav1.PartialObjectMetadata) string) *Objects {
	return &Objects{kind: kind, version: version}
}

// Version returns the version of an object. It is empty if the object does not exist, or if the
// objects have not been listed yet, as before Run.
func (o *Objects) Version(name string) string {
	store := o.store.Load()
	if store == nil {
		return ""
	}

	found, _, _ := (*store).GetByKey(name)
	known, _ := found.(versioned)
	return known.version
}

// Run follows until ctx ends. It retries within 60 s while the kind or a right is missing. The
// function changed gets each new version and the last version of a deleted object. It gets no
// version from the first list.
func (o *Objects) Run(
	ctx context.Context, c client.WithWatch, changed func(name, version string), opts ...client.ListOption,
) {
	quiet := logr.Discard() // note logs the errors.
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		Logger:     &quiet,
		ObjectType: &metav1.PartialObjectMetadata{},
		Transform:  o.transform,
		Handler:    handler(changed),
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
				found := o.newList()
				page := &client.ListOptions{Raw: &raw, Limit: raw.Limit, Continue: raw.Continue}
				err := c.List(ctx, found, append(slices.Clone(opts), page)...)
				o.noteProblem(ctx, err)

				return found, err
			},
			WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
				events, err := c.Watch(ctx, o.newList(), append(slices.Clone(opts), &client.ListOptions{Raw: &raw})...)
				o.noteProblem(ctx, err)
				return events, err
			},
		},
	})

	o.store.Store(&store)
	informer.RunWithContext(logr.NewContext(ctx, quiet))
}

// transform may get an object that it has returned before.
func (o *Objects) transform(object any) (any, error) {
	if meta, ok := object.(*metav1.PartialObjectMetadata); ok {
		return versioned{meta.Name, o.version(meta)}, nil
	}
	return object, nil
}

func handler(changed func(name, version string)) cache.ResourceEventHandler {
	report := func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		if known, ok := object.(versioned); ok {
			changed(known.name, known.version)
		}
	}

	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, first bool) {
			if !first {
				report(object)
			}
		},
		UpdateFunc: func(before, after any) {
			if before != after {
				report(after)
			}
		},
		DeleteFunc: report,
	}
}

func (o *Objects) newList() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(o.kind.GroupVersion().WithKind(o.kind.Kind + "List"))
	return list
}

func (o *Objects) noteProblem(ctx context.Context, err error) {
	text := fmt.Sprint(err)
	if ctx.Err() != nil || text == o.problem {
		return
	}

	o.problem = text
	if err != nil {
		ctrl.Log.WithName("follow").Info("cannot watch metadata, so changes wait for the next reconcile",
			"kind", o.kind.Kind, "problem", text)
	}
}

// ResourceVersion is a version that changes with each change of an object.
func ResourceVersion(meta *metav1.PartialObjectMetadata) string {
	return string(meta.UID) + "/" + meta.ResourceVersion
}

// Owned returns a function for Run. It calls changed with the name that a version begins with, as
// <namespace>/<name> before a space, and not without one.
func Owned(changed func(owner types.NamespacedName)) func(name, version string) {
	return func(_, version string) {
		owner, _, _ := strings.Cut(version, " ")
		if namespace, name, _ := strings.Cut(owner, "/"); name != "" {
			changed(types.NamespacedName{Namespace: namespace, Name: name})
		}
	}
}
