package multicluster

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
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

// list is the list of the objects of one cluster, with the names that are remembered. The lock of
// objects guards it. Only one part is read at a time: a reconcile begins a list, and reads a part
// for each continuation.
type list struct {
	// The list that is being read. number is the number of the newest list, and page is its largest
	// page, which stays small for the next list after large answers.
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

	// waiting contains the names that were requested for a list and not yet reconciled.
	waiting map[types.NamespacedName]struct{}
	known   known
	// isFullLogged means that a line has said that known has no room.
	isFullLogged bool
	// failing contains the names with a failed last reconcile. dropped means that a list replaces
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

// continuation requests the next part of a list. No object has such a namespace.
func continuation(name multicluster.ClusterName) mcreconcile.Request {
	r := mcreconcile.Request{ClusterName: name}
	r.Namespace = "/list"
	return r
}

// beginNext begins the next list at its first page.
func (l *list) beginNext() {
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
