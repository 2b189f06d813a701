package controllerruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// DomainAnnotation is the default annotation with the domain of a runtime, on the object that
// represents the runtime.
const DomainAnnotation = "skr-domain"

const (
	indexRuntime = "runtime-watcher/runtime"
	indexOwner   = "runtime-watcher/owner"
	indexDomain  = "runtime-watcher/domain"
)

// ByName identifies a runtime by the name of its object. If objects in two namespaces may have the
// same name, use [ByNamespacedName].
func ByName(object client.Object) core.RuntimeID { return core.RuntimeID(object.GetName()) }

// ByNamespacedName identifies a runtime by the namespace and the name of its object, such as
// "team-a/cluster-1". The Common Name of the client certificate must then be that text. An object
// without a namespace is identified by its name alone.
func ByNamespacedName(object client.Object) core.RuntimeID {
	if object.GetNamespace() == "" {
		return ByName(object)
	}
	return core.RuntimeID(object.GetNamespace() + "/" + object.GetName())
}

// ByLabel identifies a runtime by the value of a label of its object. An object without the label
// has no identity.
func ByLabel(label string) func(object client.Object) core.RuntimeID {
	return func(object client.Object) core.RuntimeID { return core.RuntimeID(object.GetLabels()[label]) }
}

// RuntimesOptions are the optional settings of [NewRuntimes]. The zero value is the documented
// default.
type RuntimesOptions struct {
	// DomainAnnotation is the annotation with the domain of a runtime. It must be empty if Domain
	// is set. Default: [DomainAnnotation].
	DomainAnnotation string
	// Domain returns the registered domain of a runtime from its object, for example from a field
	// of the spec. "" means that no domain is registered. It is called concurrently and must not
	// change the object. Default: the value of the annotation.
	Domain func(object client.Object) string
	// Expected reports whether the runtime of an object has an agent that sends heartbeats to a
	// manager, so that a fleet expects it. It is called concurrently and must not change the
	// object. Default: each runtime has an agent.
	Expected func(object client.Object, manager core.Manager) bool
}

// Runtimes finds the objects that represent runtimes through indexes of a cache. Runtimes answers
// from memory and is safe for concurrent use. Its errors wrap [core.ErrNotReady] until the cache is
// synced, and after the cache has stopped.
type Runtimes struct {
	// informer reports the objects, and lookup finds them.
	informer cache.Informer
	lookup   lookup
	synced   func() bool
	// kind is the kind of the objects, for errors.
	kind string
	// identify and domain read an object.
	identify func(object client.Object) core.RuntimeID
	domain   func(object client.Object) string
	opts     RuntimesOptions

	// mu orders the reports to the fleets. It protects tracked.
	mu sync.Mutex
	// tracked contains the managers for which each fleet expects the runtimes.
	tracked map[*fleet.Fleet][]core.Manager
}

// NewRuntimes adds the kind of object to a cache, usually the cache of a controller manager that
// has not started yet. NewRuntimes fails if the API server does not know the kind. The operator
// needs the rights to list and watch the kind. Call NewRuntimes once for each kind and share the
// result, because a cache accepts a kind only once.
//
// object is an empty object of the kind. With a typed object, such as &Cluster{}, Runtimes shares
// the watch of a controller For(&Cluster{}), and the functions receive objects of that type. With a
// metav1.PartialObjectMetadata, the cache holds only metadata and shares the watch of a controller
// that uses builder.OnlyMetadata, or For with such an object.
//
// identify returns the ID of the runtime that an object represents, or "" if the object has no
// identity. An object without an identity can still be the owner of an event. In that case only its
// domain proves the sender. identify may be called concurrently and must not change the object.
func NewRuntimes(
	objects cache.Cache, object client.Object, identify func(object client.Object) core.RuntimeID,
	opts RuntimesOptions,
) (*Runtimes, error) {
	if option.IsNil(object) {
		return nil, errors.New("runtimes: want an empty object of their kind, have nil")
	}

	kind := kindOf(object)
	if option.IsNil(objects) || identify == nil {
		return nil, fmt.Errorf("runtimes of kind %s: want a cache and an identify function", kind)
	}
	if opts.Domain != nil && opts.DomainAnnotation != "" {
		return nil, fmt.Errorf("runtimes of kind %s: Domain and DomainAnnotation are both set: want one of them", kind)
	}
	if err := checkKind(object); err != nil {
		return nil, fmt.Errorf("runtimes of kind %s: %w", kind, err)
	}

	opts.DomainAnnotation = cmp.Or(opts.DomainAnnotation, DomainAnnotation)
	r := &Runtimes{
		kind: kind, identify: identify, domain: opts.Domain, opts: opts,
		tracked: make(map[*fleet.Fleet][]core.Manager),
	}
	if r.domain == nil {
		r.domain = func(object client.Object) string { return object.GetAnnotations()[opts.DomainAnnotation] }
	}
	if err := r.watchObjects(objects, object); err != nil {
		return nil, err
	}
	return r, nil
}

// watchObjects adds the indexes, and the handler that updates the fleets.
func (r *Runtimes) watchObjects(objects cache.Cache, object client.Object) error {
	// The context is for a call that waits, and this one does not.
	informer, err := objects.GetInformer(context.Background(), object, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch the runtimes of kind %s: %w", r.kind, err)
	}

	r.informer = informer
	store, own, err := indexed(informer, r.indexers())
	if err != nil {
		return fmt.Errorf("index the runtimes of kind %s: %w; "+
			"call NewRuntimes once for each cache and share the result", r.kind, err)
	}

	r.lookup = lookup{store}
	handler := r.tellFleets()
	if own {
		handler = storing(store, handler)
	}

	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return fmt.Errorf("watch the runtimes of kind %s: %w", r.kind, err)
	}

	r.synced = informer.HasSynced
	if own {
		r.synced = registration.HasSynced
	}
	return nil
}

// Track makes a fleet expect the runtimes of all objects, for some managers, as
// [fleet.Fleet.Expect] does. Therefore a dead runtime also becomes stale after a restart of the
// operator. The fleet forgets a runtime when the last object of this kind that represents it is
// deleted or gets another identity. Objects of another kind do not count: use one Runtimes for each
// fleet.
//
// A listener with a Fleet and Runtimes calls Track for each of its managers. Call it for a consumer
// of NATS and for a listener that AddListener did not make. Without managers, the fleet only
// forgets runtimes. Track fails if the name of a manager is invalid or if the fleet is nil. It does
// not block.
func (r *Runtimes) Track(watched *fleet.Fleet, managers ...core.Manager) error {
	if r == nil || watched == nil {
		return errors.New("track runtimes: want runtimes and a fleet, have nil")
	}

	for _, manager := range managers {
		if _, err := core.ParseManager(string(manager)); err != nil {
			return fmt.Errorf("track the runtimes of kind %s: %w", r.kind, err)
		}
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.tracked[watched] = append(r.tracked[watched], managers...)
	for _, object := range r.lookup.allObjects() {
		r.expectLocked(object, watched, managers)
	}
	return nil
}

// tellFleets returns a handler that reports new objects and deleted objects to the fleets. It reads
// the indexes again, because an object may come and go in between.
func (r *Runtimes) tellFleets() toolscache.ResourceEventHandlerFuncs {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    r.expectRuntime,
		DeleteFunc: r.forgetRuntime,
		UpdateFunc: func(before, after any) {
			moved := r.idOf(before) != r.idOf(after)
			if moved {
				r.forgetRuntime(before)
			}
			if moved || r.opts.Expected != nil {
				r.expectRuntime(after)
			}
		},
	}
}

func (r *Runtimes) expectRuntime(object any) {
	stored, ok := object.(client.Object)
	if !ok {
		return
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	for watched, managers := range r.tracked {
		r.expectLocked(stored, watched, managers)
	}
}

// expectLocked needs the lock. An object that is gone again is not expected.
func (r *Runtimes) expectLocked(object client.Object, watched *fleet.Fleet, managers []core.Manager) {
	id := r.identify(object)
	if id == "" || len(managers) == 0 || len(r.lookup.findBy(indexRuntime, string(id))) == 0 {
		return
	}

	for _, manager := range managers {
		if r.opts.Expected == nil || r.opts.Expected(object, manager) {
			watched.Expect(id, manager)
		}
	}
}

func (r *Runtimes) forgetRuntime(object any) {
	id := r.idOf(object)
	if id == "" {
		return
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	if len(r.lookup.findBy(indexRuntime, string(id))) > 0 {
		return // Another object stands for it.
	}

	for watched := range r.tracked {
		watched.Forget(id)
	}
}

// idOf returns "" for an object without identity, and for anything else.
func (r *Runtimes) idOf(object any) core.RuntimeID {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if stored, ok := object.(client.Object); ok {
		return r.identify(stored)
	}
	return ""
}

func (r *Runtimes) indexers() toolscache.Indexers {
	return toolscache.Indexers{
		indexRuntime: valueOf(func(object client.Object) string { return string(r.identify(object)) }),
		// A Get by key fails for a namespace that is not in the cache. The index finds no object.
		indexOwner:  valueOf(func(object client.Object) string { return client.ObjectKeyFromObject(object).String() }),
		indexDomain: valueOf(func(object client.Object) string { return canonical(r.domain(object)) }),
	}
}

// canonical is equal for two domains that equal the same SAN. These are spellings of one DNS name
// (RFC 4343, section 3; RFC 1034, section 3.1) or of one IP address (RFC 4291, section 2.2).
func canonical(domain string) string {
	addr, err := netip.ParseAddr(domain)
	if err != nil { // A DNS name.
		return strings.ToLower(strings.TrimSuffix(domain, "."))
	}

	return addr.Unmap().String()
}

// Objects returns the names of the objects that represent a runtime, in no particular order. An
// empty result is not an error.
func (r *Runtimes) Objects(_ context.Context, runtime core.RuntimeID) ([]types.NamespacedName, error) {
	objects, err := r.findObjects(indexRuntime, string(runtime))
	if err != nil {
		return nil, err
	}

	names := make([]types.NamespacedName, len(objects))
	for i, object := range objects {
		names[i] = client.ObjectKeyFromObject(object)
	}
	return names, nil
}

// ID returns the runtime that an object represents, according to the function of [NewRuntimes]. It
// returns "" if there is no such object, or if the object has no identity. A reconciler needs it to
// query a fleet.
func (r *Runtimes) ID(_ context.Context, object types.NamespacedName) (core.RuntimeID, error) {
	found, err := r.findObjects(indexOwner, object.String())
	if err != nil || len(found) == 0 {
		return "", err
	}
	return r.identify(found[0]), nil
}

// findObjects returns the objects with a value in an index. They belong to the cache and must not
// be changed.
func (r *Runtimes) findObjects(index, value string) ([]client.Object, error) {
	if !r.synced() || r.informer.IsStopped() {
		return nil, fmt.Errorf("%w: the cache of %s is not synced", core.ErrNotReady, r.kind)
	}
	return r.lookup.findBy(index, value), nil
}
