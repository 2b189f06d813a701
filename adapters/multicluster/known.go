package multicluster

import (
	"context"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
)

// known are the names of a cluster that are missed when a list lacks them. A sender of an event
// chooses its name, so a name of an event alone gives way to that of an object that a list or a
// reconcile has seen. The lock of objects guards it.
type known struct {
	// numbers has the number of the list that had a name last. It is absent if the next reconcile
	// is about an object that a list lacks.
	numbers map[types.NamespacedName]uint32
	// guessed has those names that only an event has named.
	guessed map[types.NamespacedName]struct{}
}

func newKnown() known {
	return known{numbers: make(map[types.NamespacedName]uint32), guessed: make(map[types.NamespacedName]struct{})}
}

// keepName keeps a name with the number of a list, and reports false if there are too many.
func (k *known) keepName(name types.NamespacedName, number uint32, seen bool, most int) bool {
	_, is := k.numbers[name]
	if !is && len(k.numbers) >= most && (!seen || !k.evictGuess()) {
		return false
	}

	k.numbers[name] = number
	switch {
	case seen:
		delete(k.guessed, name)
	case !is:
		k.guessed[name] = struct{}{}
	}

	return true
}

func (k *known) evictGuess() bool {
	for name := range k.guessed {
		k.forgetName(name)
		return true
	}
	return false
}

func (k *known) forgetName(name types.NamespacedName) {
	delete(k.numbers, name)
	delete(k.guessed, name)
}

// noteBegin notes that an object is about to be reconciled. It returns the number of the newest
// list, and whether that list lacks the object.
func (o *objects) noteBegin(ctx context.Context, r mcreconcile.Request) (number uint32, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()

	l := o.listOf(r.ClusterName)
	_, listed := l.waiting[r.NamespacedName]
	delete(l.waiting, r.NamespacedName)
	number = max(l.number, absent+1)

	last, is := l.known.numbers[r.NamespacedName]
	gone = is && last == absent

	switch {
	case gone:
		l.known.forgetName(r.NamespacedName) // Once is enough.
	case is || listed:
		o.keepName(ctx, r, number, listed)
	}

	return number, gone
}

// noteRead notes whether a reconcile has read its object. If the last list lacks the object, only a
// read of it counts.
func (o *objects) noteRead(ctx context.Context, r mcreconcile.Request, number uint32, gone bool, read *objectRead) {
	o.mu.Lock()
	defer o.mu.Unlock()

	_, isGuess := o.listOf(r.ClusterName).known.guessed[r.NamespacedName]
	switch {
	case read.found.Load():
		o.keepName(ctx, r, number, true)
	case gone:
	case !read.missed.Load(): // The reconcile may have read the object elsewhere.
		o.keepName(ctx, r, number, false)
	case isGuess:
		o.listOf(r.ClusterName).known.forgetName(r.NamespacedName)
	}
}

// keepName logs the first name of a cluster that is not remembered. The caller holds the lock.
func (o *objects) keepName(ctx context.Context, r mcreconcile.Request, number uint32, seen bool) {
	l := o.listOf(r.ClusterName)
	if !isName(r.NamespacedName) {
		return
	}

	number = max(number, l.known.numbers[r.NamespacedName]) // A list may have had it since.
	if l.known.keepName(r.NamespacedName, number, seen, o.Remembered) || l.full {
		return
	}

	l.full = true
	ctrl.LoggerFrom(ctx).Info("more objects than are remembered: "+
		"a missed deletion of an object that is not remembered goes unnoticed",
		"cluster", r.ClusterName, "kind", o.Kind.Kind, "remembered", o.Remembered)
}

// objectRead is a client that notes whether reads of one object have found it.
type objectRead struct {
	client.Client

	kind schema.GroupVersionKind
	name types.NamespacedName
	// found means that a read has found the object, and missed that one has not.
	found, missed atomic.Bool
}

func (o *objectRead) Get(
	ctx context.Context, name client.ObjectKey, object client.Object, opts ...client.GetOption,
) error {
	err := o.Client.Get(ctx, name, object, opts...)
	if name != o.name {
		return err // As it is.
	}

	kind, unknown := o.GroupVersionKindFor(object)
	if unknown != nil || kind.GroupKind() != o.kind.GroupKind() {
		return err // As it is.
	}

	switch {
	case err == nil:
		o.found.Store(true)
	case client.IgnoreNotFound(err) == nil:
		o.missed.Store(true)
	}

	return err // As it is.
}
