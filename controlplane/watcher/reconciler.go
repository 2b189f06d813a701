package watcher

import (
	"sync"
	"time"

	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	conflictPause = time.Second
	countInterval = 30 * time.Second
	maxPort       = 65535
)

// reconciler keeps the route and the status of each Watcher. The workers of its controller call it,
// and only seen changes after set-up.
type reconciler struct {
	client   client.Client
	fresh    client.Reader // without cache
	gateways client.Reader
	events   events.EventRecorder
	routing  routing // nil: no routes
	opts     Options
	seen     sync.Map // the UID of each Watcher, by its name. One reconcile of a Watcher runs at a time.
}

func (r *reconciler) routeKind() string {
	if r.routing == nil {
		return ""
	}
	return r.routing.kind()
}
