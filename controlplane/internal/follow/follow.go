// Package follow watches the metadata of objects. It keeps a version of each object, and never its
// content, so that a follower of Secrets holds no key.
package follow

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

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

	problem string // of Run

	mu       sync.Mutex
	versions map[string]string // by name, nil until the objects were listed
}

// New returns a follower. version returns a text that changes with each change that matters.
func New(kind schema.GroupVersionKind, version func(*metav1.PartialObjectMetadata) string) *Objects {
	return &Objects{kind: kind, version: version}
}

// Version returns the version of an object. It is empty if there is no such object, or while the
// objects were not listed, as before Run.
func (o *Objects) Version(name string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.versions[name]
}

// Run follows until ctx ends. It retries within 60 s while the kind or a right is missing. changed
// gets each new version, and the last version of an object that is gone. It gets none of the first
// list.
func (o *Objects) Run(
	ctx context.Context, c client.WithWatch, changed func(name, version string), opts ...client.ListOption,
) {
	list := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
			found := o.newList()
			page := &client.ListOptions{Raw: &raw, Limit: raw.Limit, Continue: raw.Continue}
			err := c.List(ctx, found, append(slices.Clone(opts), page)...)
			o.note(ctx, err)
			return found, err
		},
		WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
			events, err := c.Watch(ctx, o.newList(), append(slices.Clone(opts), &client.ListOptions{Raw: &raw})...)
			o.note(ctx, err)
			return events, err
		},
	}
	quiet := logr.Discard() // note logs the errors.
	reflector := cache.NewReflectorWithOptions(list, &metav1.PartialObjectMetadata{}, store{o, changed},
		cache.ReflectorOptions{Name: o.kind.Kind, Logger: &quiet})
	reflector.RunWithContext(logr.NewContext(ctx, quiet))
}

func (o *Objects) newList() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(o.kind.GroupVersion().WithKind(o.kind.Kind + "List"))
	return list
}

// note logs a new reason why the objects cannot be followed.
func (o *Objects) note(ctx context.Context, err error) {
	text := fmt.Sprint(err)
	if ctx.Err() != nil || text == o.problem {
		return
	}
	if o.problem = text; err != nil {
		ctrl.Log.WithName("follow").Info("metadata cannot be watched, so changes wait for the next reconcile",
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

type store struct {
	*Objects

	changed func(name, version string)
}

var _ cache.TransformingStore = store{}

// Transformer drops the fields that no follower reads, before a list is complete.
func (s store) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		if meta, ok := object.(*metav1.PartialObjectMetadata); ok {
			meta.ManagedFields = nil
		}
		return object, nil
	}
}

func (s store) Add(object any) error    { return s.set(object, false) }
func (s store) Update(object any) error { return s.set(object, false) }
func (s store) Delete(object any) error { return s.set(object, true) }
func (s store) Resync() error           { return nil }

func (s store) set(object any, gone bool) error {
	meta, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil
	}
	version := s.version(meta)
	s.mu.Lock()
	before := s.versions[meta.Name]
	if gone {
		delete(s.versions, meta.Name)
	} else {
		s.versions[meta.Name] = version
	}
	s.mu.Unlock()
	if gone || before != version {
		s.changed(meta.Name, version)
	}
	return nil
}

func (s store) Replace(objects []any, _ string) error {
	listed := make(map[string]string, len(objects))
	for _, object := range objects {
		if meta, ok := object.(*metav1.PartialObjectMetadata); ok {
			listed[meta.Name] = s.version(meta)
		}
	}
	s.mu.Lock()
	before := s.versions
	s.versions = listed // Its only writer is the goroutine of the reflector, which is here.
	s.mu.Unlock()
	if before == nil {
		return nil
	}
	for name, version := range listed {
		if before[name] != version {
			s.changed(name, version)
		}
	}
	for name, version := range before {
		if _, here := listed[name]; !here {
			s.changed(name, version)
		}
	}
	return nil
}
