package multicluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
)

// replaceByResync returns a resync in place of a change beyond those that may wait. The lanes call
// it.
func (o *objects) replaceByResync(r mcreconcile.Request) mcreconcile.Request {
	o.mu.Lock()
	defer o.mu.Unlock()

	if r == continuation(r.ClusterName) {
		return r
	}

	delete(o.listOf(r.ClusterName).waiting, r.NamespacedName)
	return mcreconcile.Request{ClusterName: r.ClusterName}
}

// beginList begins a list. If a list is active, another list follows it, because the first pages of
// the active list may be older than the changes that the resync replaces.
func (o *objects) beginList(name multicluster.ClusterName) {
	o.mu.Lock()
	l := o.listOf(name)
	active := l.active
	if active {
		l.again = true
	} else {
		l.beginNext()
	}

	o.mu.Unlock()
	if !active { // Otherwise, the next part is in the queue already.
		o.lanes.Regular.Add(0, 0, continuation(name))
	}
}

// takeTurn reports whether a list may continue now, and notes the time if it may. While many
// requests are ready, lists wait. One list may continue after each pause, because a loud cluster
// could keep the queue long for ever.
func (o *objects) takeTurn() bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.queue != nil && o.queue.Len() > ready && time.Since(o.listed) < pause {
		return false
	}

	o.listed = time.Now()
	return true
}

// listPart reads pages until enough names wait in the queue. [objects.reconcileRequest] calls it
// for each continuation.
func (o *objects) listPart(
	ctx context.Context, name multicluster.ClusterName, reader client.Reader,
) (reconcile.Result, error) {
	later := reconcile.Result{RequeueAfter: pause}
	if !o.takeTurn() {
		return later, nil
	}

	o.mu.Lock()
	l := o.listOf(name)
	room := mostNames - len(l.waiting)
	active := l.active
	ended := l.ended
	o.mu.Unlock()
	if !active {
		return reconcile.Result{}, nil
	}
	if room < mostNames/2 {
		return later, nil
	}
	if ended {
		return o.endList(name, l)
	}

	for pages := 0; ; pages++ {
		if o.endIfSpent(ctx, name, l) {
			return o.endList(name, l)
		}
		if pages == partPages {
			return later, nil
		}

		more, err := o.listPage(ctx, name, reader, l, &room)
		switch {
		case errors.Is(err, remote.ErrLargeAnswer):
			return o.afterLargeAnswer(name, l, pages == 0, err)
		case err != nil:
			return reconcile.Result{}, err
		case !more:
			return o.endList(name, l)
		case room == 0:
			return later, nil
		}
	}
}

// endIfSpent reports whether a list must end before its last page. If so, it logs that, and the
// list is not whole.
func (o *objects) endIfSpent(ctx context.Context, name multicluster.ClusterName, l *list) bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	if l.total < o.MostListed && l.pages < mostPages && time.Since(l.begun) < listDeadline {
		return false
	}

	ctrl.LoggerFrom(ctx).Info(
		"list is cut off before its last page: "+
			"the remaining objects are reconciled at their next change or the next resync",
		"cluster", name, "kind", o.Kind.Kind, "objects", l.total, "pages", l.pages,
		"after", time.Since(l.begun).String())
	l.whole = false
	return true
}

// listPage reads a page and requests its objects, as long as there is room. It reports whether
// there are more.
func (o *objects) listPage(
	ctx context.Context, name multicluster.ClusterName, reader client.Reader, l *list, room *int,
) (more bool, err error) {
	o.mu.Lock()
	at := l.position
	size := l.page
	l.pages++
	o.mu.Unlock()

	page := &metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(o.Kind.GroupVersion().WithKind(o.Kind.Kind + "List"))
	opts := append([]client.ListOption{client.Limit(size), client.Continue(at.token)}, o.Select...)
	if err := reader.List(ctx, page, opts...); err != nil {
		return false, o.afterError(name, l, err)
	}

	// A server may ignore the limit, or have fewer objects than before.
	items := page.Items[min(at.skip, len(page.Items)):]
	next := position{token: page.Continue}
	if len(items) > *room {
		items = items[:*room]
		next = position{token: at.token, skip: at.skip + *room}
	}

	if err := o.requestObjects(name, l, namesOf(items)); err != nil {
		return false, err
	}

	*room -= len(items)

	o.mu.Lock()
	defer o.mu.Unlock()

	l.position = next
	l.total += len(items)
	return next != (position{}), nil
}

// namesOf leaves out invalid names: an empty one would request the cluster, and long ones would
// fill the queue.
func namesOf(items []metav1.PartialObjectMetadata) []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(items))
	for i := range items {
		if key := client.ObjectKeyFromObject(&items[i]); isName(key) {
			names = append(names, key)
		}
	}
	return names
}

// requestObjects enqueues objects, and notes that the list has them.
func (o *objects) requestObjects(name multicluster.ClusterName, l *list, names []types.NamespacedName) error {
	requests := make([]mcreconcile.Request, len(names))
	o.mu.Lock()

	for i, key := range names {
		requests[i] = mcreconcile.Request{Request: reconcile.Request{NamespacedName: key}, ClusterName: name}
		l.waiting[key] = struct{}{}
		l.known.markListed(key, l.number)
	}

	o.mu.Unlock()
	return o.Source.Resync(requests...)
}

// afterError continues after a token that has expired. Objects that were written in the meantime
// are left out, because their events request them. After any other error, the page is read again.
func (o *objects) afterError(name multicluster.ClusterName, l *list, err error) error {
	var status apierrors.APIStatus
	if apierrors.IsResourceExpired(err) && errors.As(err, &status) {
		o.mu.Lock()
		l.position = position{token: status.Status().Continue}
		l.whole = l.whole && l.position.token == "" // It begins again.
		o.mu.Unlock()
	}
	return fmt.Errorf("list %s of cluster %s: %w", o.Kind.Kind, name, err)
}

// afterLargeAnswer continues the list in the next reconcile, which has its own budget. If the first
// page was too large, the next page is smaller.
func (o *objects) afterLargeAnswer(
	name multicluster.ClusterName, l *list, first bool, err error,
) (reconcile.Result, error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	if first && l.page == 1 {
		return reconcile.Result{}, fmt.Errorf("list %s of cluster %s, one at a time: %w", o.Kind.Kind, name, err)
	}
	if first {
		l.page = max(l.page/shrink, 1)
	}

	return reconcile.Result{RequeueAfter: time.Millisecond}, nil
}

// endList requests the objects that the list lacks, and begins the next list if a resync waits for
// it.
func (o *objects) endList(name multicluster.ClusterName, l *list) (reconcile.Result, error) {
	o.mu.Lock()
	var gone []types.NamespacedName
	if l.whole {
		gone = l.known.missingNames(l.number, mostNames)
	}
	o.mu.Unlock()

	if err := o.requestObjects(name, l, gone); err != nil {
		return reconcile.Result{}, err
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	for _, key := range gone {
		l.known.markAbsent(key)
	}

	if len(gone) == mostNames {
		l.ended = true
		return reconcile.Result{RequeueAfter: pause}, nil
	}

	l.active = false
	l.page = min(l.page*2, mostPage)
	if !l.again {
		return reconcile.Result{}, nil
	}

	l.beginNext()
	return reconcile.Result{RequeueAfter: time.Millisecond}, nil
}
