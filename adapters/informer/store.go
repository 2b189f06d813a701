package informer

import (
	"context"
	"iter"
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

// store takes the states of a watch. One goroutine uses it.
type store interface {
	// set takes the present state of an object.
	set(s *state)
	// remove takes the last state of an object that is gone.
	remove(s *state)
	// replace takes a complete list of states.
	replace(all []any)
}

func statesOf(all []any) iter.Seq[*state] {
	return func(yield func(*state) bool) {
		for _, object := range all {
			if s, ok := object.(*state); ok && !yield(s) {
				return
			}
		}
	}
}

// proofs gives objects to the store of a follower. It reports that the API server serves the watch.
type proofs struct{ *follower }

var (
	_ cache.ReflectorStore         = proofs{}
	_ cache.ReflectorBookmarkStore = proofs{}
)

func (p proofs) Add(object any) error {
	p.works()
	if s, ok := object.(*state); ok {
		p.store.set(s)
	}
	return nil
}

func (p proofs) Update(object any) error { return p.Add(object) }

func (p proofs) Delete(object any) error {
	p.works()
	if s, ok := object.(*state); ok {
		p.store.remove(s)
	}
	return nil
}

func (p proofs) Bookmark(string) error {
	p.works()
	return nil
}

// Replace implements [cache.ReflectorStore]. A list alone proves nothing: the right to watch may be
// missing.
func (p proofs) Replace(all []any, _ string) error {
	p.store.replace(all)
	if p.streams.Load() {
		p.works()
	}
	return nil
}

func (proofs) Resync() error { return nil }

// objects is the [store] of a watch. It compares each state with the last one, and offers the
// changes that matter.
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

	known map[types.NamespacedName]*digest
	// listed is whether known is complete.
	listed bool
}

func (o *objects) set(s *state) { o.observe(s, o.known[s.name]) }

func (o *objects) remove(s *state) { o.removed(s.name, s.digest) }

// replace makes a resync of the first list, because nothing is known of the time before. Each later
// one is compared with the known objects: an object that is missing was deleted. A resync follows
// the comparison, for objects that were created and deleted between two lists. The operator may
// know them from a reconcile in that time.
func (o *objects) replace(all []any) {
	before := o.known
	o.known = make(map[types.NamespacedName]*digest, len(all))
	for s := range statesOf(all) {
		if !o.listed {
			o.keep(s)
			continue
		}
		last := before[s.name]
		delete(before, s.name)
		o.observe(s, last)
	}
	for name, last := range before {
		o.removed(name, last)
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
	for _, d := range o.known {
		c := core.Change{New: decode(d)}
		if owner, err := c.Owner(); err == nil && owner != (types.NamespacedName{}) {
			owners[owner] = true
		}
	}
	return owners
}

// reset forgets all objects: the next list is the first one again.
func (o *objects) reset() { o.known, o.listed = nil, false }

func (o *objects) keep(s *state) {
	o.known[s.name] = s.digest
	if s.digest.generation == 0 {
		o.uncounted()
	}
}

// observe takes the present state of an object, and the last one, nil if there was none.
func (o *objects) observe(s *state, last *digest) {
	o.keep(s)
	switch {
	case last == nil || last.uid != s.digest.uid:
		o.offer(s.name, o.appeared(s))
	case *last == *s.digest:
		o.opts.Hooks.Observed(o.watch.Manager, decisionUnchanged)
	default:
		o.offer(s.name, o.change(s.name, core.OperationUpdate, decode(last), decode(s.digest)))
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

func (o *objects) removed(name types.NamespacedName, last *digest) {
	delete(o.known, name)
	o.offer(name, o.change(name, core.OperationDelete, decode(last), nil))
}

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
func decode(d *digest) *core.Object {
	object, err := core.DecodeObject(d.json())
	if err != nil { // An object with more members than a filter reads differs from every other.
		return nil
	}
	return object
}

// namespaces is the [store] with the labels of all namespaces. It may be read concurrently.
type namespaces struct {
	mu    sync.RWMutex
	known map[string]labels.Set
}

// selects reports whether a selector matches a namespace. A namespace that is not known counts as
// selected: a superfluous event costs one look, and a missing one is lost.
func (n *namespaces) selects(selector labels.Selector, namespace string) bool {
	if namespace == "" {
		return true
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	set, known := n.known[namespace]
	return !known || selector.Matches(set)
}

func (n *namespaces) set(s *state) {
	set := labelsOf(s)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known[s.name.Name] = set
}

func (n *namespaces) remove(s *state) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, s.name.Name)
}

func (n *namespaces) replace(all []any) {
	known := make(map[string]labels.Set, len(all))
	for s := range statesOf(all) {
		known[s.name.Name] = labelsOf(s)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known = known
}

func labelsOf(s *state) labels.Set {
	set, r := labels.Set{}, rawjson.NewReader([]byte(s.labels))
	_ = r.Object(func(name []byte) error { // The API server sends valid labels.
		value, err := r.Text()
		set[string(name)] = value
		return err
	})
	return set
}
