package admission

import (
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// Acceptor takes the events that a [Handler] makes; an outbox is one.
//
// Accept must return at once whatever the control plane does, as the API server waits for it. It is called concurrently. The
// event is the acceptor's from then on: nothing of it belongs to the request.
type Acceptor interface {
	Accept(manager core.Manager, event core.WatchEvent) outbox.Outcome
}

// AcceptorFunc makes a function an [Acceptor].
type AcceptorFunc func(manager core.Manager, event core.WatchEvent) outbox.Outcome

// Accept calls f.
func (f AcceptorFunc) Accept(manager core.Manager, event core.WatchEvent) outbox.Outcome {
	return f(manager, event)
}
