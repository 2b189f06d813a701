package outbox

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Hooks are optional callbacks of an [Outbox]. They are called concurrently and without its lock,
// and must return promptly: forwarding waits for them.
type Hooks struct {
	// Attempted is called after each call of the forwarder. events is the number of events of the
	// batch, 0 for a lone heartbeat.
	Attempted func(manager core.Manager, events int, took time.Duration, err error)
}
