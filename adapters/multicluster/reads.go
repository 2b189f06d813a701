package multicluster

import (
	"context"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
)

// takeRequest takes the request of an object that is about to be reconciled: the list may request
// another object in its place. It returns the number of the newest list, and whether that list
// lacks the object. If so, the name is forgotten.
func (o *objects) takeRequest(ctx context.Context, r mcreconcile.Request) (number uint32, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()

	l := o.listOf(r.ClusterName)
	_, listed := l.waiting[r.NamespacedName]
	delete(l.waiting, r.NamespacedName)
	number = max(l.number, absent+1)

	last, isKnown := l.known.numbers[r.NamespacedName]
	gone = isKnown && last == absent

	switch {
	case gone:
		l.known.forgetName(r.NamespacedName) // Once is enough.
	case isKnown || listed:
		o.rememberName(ctx, r, number, listed)
	}

	return number, gone
}

// noteRead notes whether a reconcile has read its object. If the last list lacks the object, the
// name stays forgotten unless the reconcile has read the object.
func (o *objects) noteRead(ctx context.Context, r mcreconcile.Request, number uint32, gone bool, read *objectRead) {
	o.mu.Lock()
	defer o.mu.Unlock()

	_, isGuess := o.listOf(r.ClusterName).known.guessed[r.NamespacedName]
	switch {
	case read.found.Load():
		o.rememberName(ctx, r, number, true)
	case gone: // The name stays forgotten.
	case !read.missed.Load(): // The reconcile may have read the object elsewhere.
		o.rememberName(ctx, r, number, false)
	case isGuess:
		o.listOf(r.ClusterName).known.forgetName(r.NamespacedName)
	}
}

// rememberName stores a name with the number of a list. If there is no room, it logs that once for
// each cluster. The caller holds the lock.
func (o *objects) rememberName(ctx context.Context, r mcreconcile.Request, number uint32, seen bool) {
	l := o.listOf(r.ClusterName)
	if !isName(r.NamespacedName) {
		return
	}

	number = max(number, l.known.numbers[r.NamespacedName]) // A list may have had it since.
	if l.known.keepName(r.NamespacedName, number, seen, o.Remembered) || l.isFullLogged {
		return
	}

	l.isFullLogged = true
	ctrl.LoggerFrom(ctx).Info("more objects than are remembered: "+
		"a missed deletion of an object that is not remembered goes unnoticed",
		"cluster", r.ClusterName, "kind", o.Kind.Kind, "remembered", o.Remembered)
}

// noteEnd notes the end of a reconcile, and returns the error for its queue.
func (o *objects) noteEnd(r mcreconcile.Request, err error) error {
	if err != nil {
		return o.noteFailure(r, err)
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	delete(o.listOf(r.ClusterName).failing, r.NamespacedName)
	return nil
}

// noteFailure bounds the names that fail: the workqueue would keep each of them for ever.
func (o *objects) noteFailure(r mcreconcile.Request, err error) error {
	o.mu.Lock()
	l := o.listOf(r.ClusterName)

	_, isKnown := l.failing[r.NamespacedName]
	if isKnown || len(l.failing) < mostFailing {
		l.failing[r.NamespacedName] = struct{}{}
		o.mu.Unlock()
		return err
	}

	first := !l.dropped
	l.dropped = true
	o.mu.Unlock()

	if first {
		o.lanes.Regular.Add(failingPause, handler.LowPriority, mcreconcile.Request{ClusterName: r.ClusterName})
	}

	return reconcile.TerminalError(err)
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
