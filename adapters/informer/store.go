package informer

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// objects offers the changes that matter. One goroutine uses it.
type objects struct {
	watch    *watched
	resource *resource
	acceptor core.Acceptor
	// namespaces contains the states of all namespaces, with their labels.
	namespaces cache.Store
	// uncounted is called when an object does not count generations, although a generation is
	// compared in place of the spec.
	uncounted func()
	opts      *Options

	known map[types.NamespacedName]*digest
	// listed says whether known is complete.
	listed bool
}

// Add notes the current state of an object.
func (o *objects) Add(object any) error {
	if s, ok := object.(*state); ok {
		o.observeState(s, o.known[s.name])
	}
	return nil
}

func (o *objects) Update(object any) error { return o.Add(object) }

// Delete notes the last state of a deleted object.
func (o *objects) Delete(object any) error {
	if s, ok := object.(*state); ok {
		o.removeObject(s.name, s.digest)
	}
	return nil
}

func (*objects) Resync() error { return nil }

// Replace turns the first list into a resync, because nothing is known about earlier changes. Each
// later list is compared with the known objects: an object that is missing was deleted. A resync
// follows the comparison, for objects that were created and deleted between two lists. The operator
// may know these objects from a reconcile in that time.
func (o *objects) Replace(all []any, _ string) error {
	before := o.known
	o.known = make(map[types.NamespacedName]*digest, len(all))

	for _, object := range all {
		s, isState := object.(*state)
		if !isState {
			continue
		}
		if !o.listed {
			o.storeState(s)
			continue
		}

		last := before[s.name]
		delete(before, s.name)
		o.observeState(s, last)
	}

	for name, last := range before {
		o.removeObject(name, last)
	}

	o.listed = true
	o.acceptResyncs()
	return nil
}

// acceptResyncs offers a resync, or one for each owner.
func (o *objects) acceptResyncs() {
	now := o.opts.Now()
	if !o.opts.RequireOwner {
		o.acceptor.Accept(o.watch.Manager, core.WatchEvent{Resync: true, Time: now})
		return
	}

	for owner := range o.ownersOfKnown() {
		o.acceptor.Accept(o.watch.Manager, core.WatchEvent{Resync: true, Owner: owner, Time: now})
	}
}

func (o *objects) ownersOfKnown() map[types.NamespacedName]bool {
	owners := make(map[types.NamespacedName]bool)
	for _, d := range o.known {
		c := core.Change{New: decode(d), OwnerAnnotation: o.opts.OwnerAnnotation}
		owner, err := c.Owner()
		isValid := err == nil && owner != (types.NamespacedName{})
		if isValid {
			owners[owner] = true
		}
	}
	return owners
}

// forgetKnown makes the next list a first one.
func (o *objects) forgetKnown() {
	o.known = nil
	o.listed = false
}

func (o *objects) storeState(s *state) {
	o.known[s.name] = s.digest
	if s.digest.generation == 0 {
		o.uncounted()
	}
}

// observeState takes the present state of an object, and the last one, nil if there was none.
func (o *objects) observeState(s *state, last *digest) {
	o.storeState(s)
	switch {
	case last == nil || last.uid != s.digest.uid:
		o.acceptChange(s.name, o.changeOfNew(s))
	case *last == *s.digest:
		o.opts.Hooks.Observed(hook.Observation{Manager: o.watch.Manager, Decision: hook.DecisionUnchanged})
	default:
		o.acceptChange(s.name, o.newChange(s.name, core.OperationUpdate, decode(last), decode(s.digest)))
	}
}

// changeOfNew returns the change of an object that was not known. If the status is watched, a
// status that is there already counts.
func (o *objects) changeOfNew(s *state) *core.Change {
	now := decode(s.digest)
	if o.watch.Field == core.FieldStatus && now.Field("status") != nil {
		return o.newChange(s.name, core.OperationUpdate, nil, now)
	}
	return o.newChange(s.name, core.OperationCreate, nil, now)
}

// removeObject forgets an object and offers its deletion.
func (o *objects) removeObject(name types.NamespacedName, last *digest) {
	delete(o.known, name)
	o.acceptChange(name, o.newChange(name, core.OperationDelete, decode(last), nil))
}

func (o *objects) newChange(
	name types.NamespacedName, operation core.Operation, before, now *core.Object,
) *core.Change {
	c := &core.Change{
		Operation: operation, Old: before, New: now, Name: name, GVK: o.resource.kind,
		OwnerAnnotation: o.opts.OwnerAnnotation,
	}
	if o.watch.Field == core.FieldStatus {
		c.Subresource = string(core.FieldStatus)
	}
	return c
}

func (o *objects) acceptChange(name types.NamespacedName, c *core.Change) {
	decision := o.decideChange(name, c)
	o.opts.Hooks.Observed(hook.Observation{Manager: o.watch.Manager, Decision: decision})
	o.opts.Logger.LogAttrs(context.Background(), slog.LevelDebug, "change observed",
		slog.String("watch", o.watch.name), slog.String("operation", string(c.Operation)),
		slog.String("object", name.String()), slog.String("decision", string(decision)))
}

// decideChange offers the event of a change that matters.
func (o *objects) decideChange(name types.NamespacedName, c *core.Change) hook.Decision {
	matters := o.selectsNamespace(name) && o.opts.Filter(c)
	if !matters && c.Operation == core.OperationUpdate {
		return hook.DecisionUnchanged
	}
	if !matters {
		return hook.DecisionIrrelevant
	}

	event, err := c.Event(o.opts.Now())
	if err != nil {
		return hook.DecisionNoName
	}

	event.Owner, err = c.Owner()
	hasOwner := err == nil && event.Owner != (types.NamespacedName{})
	if o.opts.RequireOwner && !hasOwner {
		return hook.DecisionNoOwner
	}

	return hook.Decision(o.acceptor.Accept(o.watch.Manager, event))
}

// selectsNamespace reports whether the watch selects the namespace of an object. A Namespace is its
// own. A namespace that is not known counts as selected: a superfluous event costs one reconcile,
// and a missing one is lost.
func (o *objects) selectsNamespace(name types.NamespacedName) bool {
	namespace := name.Namespace
	if o.resource.isNamespaces() {
		namespace = name.Name
	}

	known, _, _ := o.namespaces.GetByKey(namespace) // It never fails.
	s, ok := known.(*state)
	return !ok || o.watch.namespaces.Matches(s.labels)
}

func decode(d *digest) *core.Object {
	object, err := core.DecodeObject(d.asJSON())
	if err != nil { // An object with more members than a filter reads differs from every other.
		return nil
	}
	return object
}
