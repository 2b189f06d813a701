package controllerruntime

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

const (
	// mostOpen is the number of requests for the changes of one runtime that wait in the queue. A
	// resync replaces the others. A pod of a runtime can name objects without end.
	mostOpen = 1000
	// mostOpenOfAll bounds the requests of all runtimes that are remembered. Each takes about 100
	// bytes. Beyond it, each runtime has fewOpen of them.
	mostOpenOfAll = 1 << 17
	fewOpen       = 20
	// replaceWait is the time between two resyncs of a runtime that replace changes.
	replaceWait = time.Second
	// mostReplacing bounds the resyncs that wait for that time.
	mostReplacing = 1 << 12
	// overflowPace is the time between two log lines about one runtime.
	overflowPace = 10 * time.Minute
)

// errNoRoom leaves an event with its sender, because no resync can replace it.
var errNoRoom error = &reasons.Error{
	Text: "too many requests of this runtime wait for a reconcile", Label: reasons.TooFast,
}

// open are the requests for changes that may be in the queue. The lock of the target guards them. A
// queue does not report its requests: a request leaves when a reconcile calls Client, and all of
// them leave when no request is ready.
type open[request comparable] struct {
	of   map[core.RuntimeID]map[request]struct{}
	size int
}

// replaced identifies a resync that replaces changes.
type replaced struct {
	runtime core.RuntimeID
	owner   types.NamespacedName
}

// addRequest counts a request, and reports false if there is no room for it. Nothing is ready in an
// empty queue, so that all earlier requests have left it.
func (o *open[request]) addRequest(runtime core.RuntimeID, r request, isEmpty bool) (hasRoom bool) {
	isPast := isEmpty && o.size > 0
	if isPast || o.of == nil {
		o.of = make(map[core.RuntimeID]map[request]struct{})
		o.size = 0
	}

	own := o.of[runtime]
	_, known := own[r]
	if known {
		return true
	}

	isCrowded := o.size >= mostOpenOfAll && len(own) >= fewOpen
	if isCrowded || len(own) >= mostOpen {
		return false
	}

	if own == nil {
		own = make(map[request]struct{})
		o.of[runtime] = own
	}

	own[r] = struct{}{}
	o.size++
	return true
}

// removeRequest removes a request that a reconcile has begun with.
func (o *open[request]) removeRequest(runtime core.RuntimeID, r request) {
	own := o.of[runtime]
	if _, known := own[r]; !known {
		return
	}

	delete(own, r)
	o.size--
	if len(own) == 0 {
		delete(o.of, runtime)
	}
}
