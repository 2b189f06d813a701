package multicluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
)

const (
	// mostPage is the number of objects of one request of a list.
	mostPage = 250
	// shrink divides the page after an answer that is too large.
	shrink = 4
	// ready is the length of the queue above which lists wait.
	ready = 1000
	// mostNames is the number of names of one list that wait in the queue.
	mostNames = 500
	// mostFailing is the number of names of one cluster that the queue tries again, each with its
	// backoff. A list after failingPause replaces the others.
	mostFailing  = 1000
	failingPause = 10 * time.Minute
	// partPages and mostPages are the numbers of requests of a part of a list, and of all parts.
	partPages, mostPages = 20, 10_000
	listDeadline         = time.Hour
	pause                = time.Second
)

// list is that of the objects of one cluster, and the names that are remembered. The lock of
// objects guards it. Only one part is read at a time.
type list struct {
	// The list that is read. number is that of the newest one, and page its largest page, which
	// stays small for the next list after large answers.
	active   bool
	again    bool // a newer resync waits for its end
	number   uint32
	begun    time.Time
	page     int64
	position position
	total    int  // names
	pages    int  // requests
	whole    bool // nothing was left out
	ended    bool // its last page is read, and not all objects that it lacks are requested

	// waiting has the names that were requested for a list and not yet reconciled.
	waiting map[types.NamespacedName]struct{}
	known   known
	full    bool // known is, which was logged
	// failing has the names with a failed last reconcile. dropped means that a list replaces
	// others.
	failing map[types.NamespacedName]struct{}
	dropped bool
}

// position is where the next part of a list begins: behind a number of objects of the page at
// token.
type position struct {
	token string
	skip  int
}

// absent is the number of no list.
const absent = 0

// continuation requests the next part of a list. No object has such a namespace.
func continuation(name multicluster.ClusterName) mcreconcile.Request {
	r := mcreconcile.Request{ClusterName: name}
	r.Namespace = "/list"
	return r
}

// listOf returns the list of a cluster. The caller holds the lock.
func (o *objects) listOf(name multicluster.ClusterName) *list {
	l := o.lists[name]
	if l == nil {
		l = &list{
			page:    mostPage,
			known:   newKnown(),
			waiting: make(map[types.NamespacedName]struct{}),
			failing: make(map[types.NamespacedName]struct{}),
		}

		o.lists[name] = l
	}
	return l
}

func (o *objects) forgetCluster(name multicluster.ClusterName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.lists, name)
}

// noteEnd bounds the names that fail: the workqueue would keep each of them for ever.
func (o *objects) noteEnd(r mcreconcile.Request, err error) error {
	o.mu.Lock()
	l := o.listOf(r.ClusterName)

	if err == nil {
		delete(l.failing, r.NamespacedName)
		o.mu.Unlock()
		return nil
	}

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

// replace returns a resync in place of a change beyond those that may wait.
func (o *objects) replace(r mcreconcile.Request) mcreconcile.Request {
	o.mu.Lock()
	defer o.mu.Unlock()

	if r == continuation(r.ClusterName) {
		return r
	}

	delete(o.listOf(r.ClusterName).waiting, r.NamespacedName)
	return mcreconcile.Request{ClusterName: r.ClusterName}
}

// beginList begins a list, or another one after that which is read now: its first pages may be
// older than the changes that the resync replaces.
func (o *objects) beginList(name multicluster.ClusterName) {
	o.mu.Lock()
	l := o.listOf(name)
	active := l.active
	if active {
		l.again = true
	} else {
		l.begin()
	}

	o.mu.Unlock()
	if !active { // Otherwise, the next part is in the queue already.
		o.lanes.Regular.Add(0, 0, continuation(name))
	}
}

func (l *list) begin() {
	l.active = true
	l.again = false
	l.dropped = false
	l.number = max(l.number, absent+1) + 1
	l.begun = time.Now()
	l.position = position{}
	l.total = 0
	l.pages = 0
	l.whole = true
	l.ended = false
}

// hasTurn is false while many requests are ready, unless there was no list for a pause: a loud
// cluster could keep the queue long for ever.
func (o *objects) hasTurn() bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.queue != nil && o.queue.Len() > ready && time.Since(o.listed) < pause {
		return false
	}

	o.listed = time.Now()
	return true
}

// listPart reads pages until enough names wait in the queue.
func (o *objects) listPart(
	ctx context.Context, name multicluster.ClusterName, reader client.Reader,
) (reconcile.Result, error) {
	later := reconcile.Result{RequeueAfter: pause}
	if !o.hasTurn() {
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
		if o.isSpent(ctx, name, l) {
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

// isSpent reports whether a list must end before its last page.
func (o *objects) isSpent(ctx context.Context, name multicluster.ClusterName, l *list) bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	if l.total < o.MostListed && l.pages < mostPages && time.Since(l.begun) < listDeadline {
		return false
	}

	ctrl.LoggerFrom(ctx).Info(
		"list ends before its last page: the other objects wait for their changes, or for the next resync",
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

	if err := o.request(name, l, namesOf(items)); err != nil {
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

func isName(key types.NamespacedName) bool {
	const most = validation.DNS1123SubdomainMaxLength
	return key.Name != "" && len(key.Name) <= most && len(key.Namespace) <= most
}

// request enqueues objects, and notes that the list has them.
func (o *objects) request(name multicluster.ClusterName, l *list, names []types.NamespacedName) error {
	requests := make([]mcreconcile.Request, len(names))
	o.mu.Lock()

	for i, key := range names {
		requests[i] = mcreconcile.Request{Request: reconcile.Request{NamespacedName: key}, ClusterName: name}
		l.waiting[key] = struct{}{}
		if _, known := l.known.numbers[key]; known {
			l.known.numbers[key] = l.number
		}
	}

	o.mu.Unlock()
	return o.Source.Resync(requests...)
}

// afterError goes on behind a token that has expired, without those objects that were written in
// the meantime: their events request them. Other errors begin the page again.
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

// afterLargeAnswer reads on in the next reconcile, with a budget of its own. If the first page was
// too large, the next one is smaller.
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

// endList requests the objects that the list lacks, and begins the next list if there is one to do.
func (o *objects) endList(name multicluster.ClusterName, l *list) (reconcile.Result, error) {
	o.mu.Lock()
	var gone []types.NamespacedName

	for key, number := range l.known.numbers {
		if l.whole && number != absent && number < l.number && len(gone) < mostNames {
			gone = append(gone, key)
		}
	}

	o.mu.Unlock()

	if err := o.request(name, l, gone); err != nil {
		return reconcile.Result{}, err
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	for _, key := range gone {
		l.known.numbers[key] = absent
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

	l.begin()
	return reconcile.Result{RequeueAfter: time.Millisecond}, nil
}
