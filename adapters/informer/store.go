package informer

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// kept is the last known state of one object.
type kept struct {
	uid    types.UID
	digest string
}

// objects is the [cache.ReflectorStore] of a watch. It compares each state with the last one, and
// offers the changes that matter. One goroutine uses it.
type objects struct {
	watch    *watched
	resource *resource
	acceptor core.Acceptor
	// selects reports whether a namespace is watched.
	selects func(namespace string) bool
	// uncounted is called when an object does not count generations, although they stand for the
	// spec.
	uncounted func()
	opts      *Options

	known map[types.NamespacedName]kept
	// listed is whether known is complete.
	listed bool
}

var _ cache.ReflectorStore = (*objects)(nil)

// Add implements [cache.ReflectorStore].
func (o *objects) Add(object any) error {
	if s, ok := object.(*state); ok {
		o.observe(s)
	}
	return nil
}

// Update implements [cache.ReflectorStore].
func (o *objects) Update(object any) error { return o.Add(object) }

// Delete implements [cache.ReflectorStore].
func (o *objects) Delete(object any) error {
	if s, ok := object.(*state); ok {
		o.remove(s.name, kept{s.uid, s.digest})
	}
	return nil
}

// Resync implements [cache.ReflectorStore].
func (*objects) Resync() error { return nil }

// Replace implements [cache.ReflectorStore]. It takes a complete list. The first one makes a
// resync. Each later one is compared with the known objects: an object that is missing was deleted.
// A resync follows the comparison, for objects that were created and deleted between two lists. The
// operator may know them from a look in that time.
func (o *objects) Replace(all []any, _ string) error {
	if !o.listed {
		o.first(all)
		return nil
	}
	found := make(map[types.NamespacedName]bool, len(all))
	for _, object := range all {
		if s, ok := object.(*state); ok {
			found[s.name] = true
			o.observe(s)
		}
	}
	for name, last := range o.known {
		if !found[name] {
			o.remove(name, last)
		}
	}
	o.resync()
	return nil
}

// first takes the first list. The events of its objects are one resync, because nothing is known of
// the time before.
func (o *objects) first(all []any) {
	o.known = make(map[types.NamespacedName]kept, len(all))
	for _, object := range all {
		if s, ok := object.(*state); ok {
			o.keep(s)
		}
	}
	o.listed = true
	o.resync()
}

// resync asks for a look at the whole runtime.
func (o *objects) resync() {
	now := o.opts.Now()
	if !o.opts.RequireOwner {
		o.acceptor.Accept(o.watch.Manager, core.WatchEvent{Resync: true, Time: now})
		return
	}
	for owner := range o.owners() {
		o.acceptor.Accept(o.watch.Manager, core.WatchEvent{Resync: true, Owner: owner, Time: now})
	}
}

// owners returns those that known objects name.
func (o *objects) owners() map[types.NamespacedName]bool {
	owners := make(map[types.NamespacedName]bool)
	for _, k := range o.known {
		c := core.Change{New: decode(k.digest)}
		if owner, err := c.Owner(); err == nil && owner != (types.NamespacedName{}) {
			owners[owner] = true
		}
	}
	return owners
}

// reset forgets all objects: the next list is the first one again.
func (o *objects) reset() { o.known, o.listed = nil, false }

func (o *objects) keep(s *state) {
	o.known[s.name] = kept{s.uid, s.digest}
	if !s.counted {
		o.uncounted()
	}
}

// observe takes the present state of an object.
func (o *objects) observe(s *state) {
	last, known := o.known[s.name]
	o.keep(s)
	switch {
	case !known || last.uid != s.uid:
		o.offer(s.name, o.appeared(s))
	case last.digest == s.digest:
		o.opts.Hooks.Observed(o.watch.Manager, decisionUnchanged)
	default:
		o.offer(s.name, o.change(s.name, core.OperationUpdate, decode(last.digest), decode(s.digest)))
	}
}

// appeared returns the change of an object that was not known. If the status is watched, a status
// that is there already counts.
func (o *objects) appeared(s *state) *core.Change {
	now := decode(s.digest)
	if o.watch.Field == core.FieldStatus && now.Field("status") != nil {
		return o.change(s.name, core.OperationUpdate, nil, now)
	}
	return o.change(s.name, core.OperationCreate, nil, now)
}

func (o *objects) remove(name types.NamespacedName, last kept) {
	delete(o.known, name)
	o.offer(name, o.change(name, core.OperationDelete, decode(last.digest), nil))
}

// change returns a change of the watched part.
func (o *objects) change(
	name types.NamespacedName, operation core.Operation, before, now *core.Object,
) *core.Change {
	c := &core.Change{Operation: operation, Old: before, New: now, Name: name, GVK: o.resource.kind}
	if o.watch.Field == core.FieldStatus {
		c.Subresource = string(core.FieldStatus)
	}
	return c
}

// offer makes an event of a change that matters, and gives it to the acceptor.
func (o *objects) offer(name types.NamespacedName, c *core.Change) {
	decision := o.decide(name, c)
	o.opts.Hooks.Observed(o.watch.Manager, decision)
	o.opts.Logger.LogAttrs(context.Background(), slog.LevelDebug, "change observed",
		slog.String("watch", o.watch.name), slog.String("operation", string(c.Operation)),
		slog.String("object", name.String()), slog.String("decision", decision))
}

// The decisions beside the outcomes of an acceptor.
const (
	decisionUnchanged  = "unchanged"
	decisionIrrelevant = "irrelevant"
	decisionNoName     = "no_name"
	decisionNoOwner    = "no_owner"
)

func (o *objects) decide(name types.NamespacedName, c *core.Change) string {
	switch matters := o.selects(o.namespaceOf(name)) && o.opts.Filter(c); {
	case !matters && c.Operation == core.OperationUpdate:
		return decisionUnchanged
	case !matters:
		return decisionIrrelevant
	}
	event, err := c.Event(o.opts.Now())
	if err != nil {
		return decisionNoName
	}
	event.Owner, err = c.Owner()
	if o.opts.RequireOwner && (err != nil || event.Owner == (types.NamespacedName{})) {
		return decisionNoOwner
	}
	return string(o.acceptor.Accept(o.watch.Manager, event))
}

// namespaceOf returns the namespace for the selector of namespaces. A Namespace is its own.
func (o *objects) namespaceOf(name types.NamespacedName) string {
	if o.resource.isNamespaces() {
		return name.Name
	}
	return name.Namespace
}

// decode reads a digest, which was made by this package.
func decode(digest string) *core.Object {
	object, err := core.DecodeObject([]byte(digest))
	if err != nil { // An object with more members than a filter reads differs from every other.
		return nil
	}
	return object
}
