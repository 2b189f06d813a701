package listener

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Hooks are optional callbacks, called concurrently: they must return at once. All strings are from small fixed
// sets and may be metric labels, as far as verifiers and handlers keep to that in the reasons of their errors.
type Hooks struct {
	// Answered is called after each request. Contract and manager are empty when the request names none that is known,
	// reason is empty when the event was taken.
	Answered func(contract string, manager core.Manager, status int, reason string, took time.Duration)
	// InFlight is called with 1 before the verifier and the handler are called for a request, and with -1 after.
	InFlight func(delta int)
	// HandshakeFailed is called for each connection whose TLS handshake failed: no request came of it.
	HandshakeFailed func()
	// ConnectionDropped is called for each connection that had to end for Options.MaxConnections: [DroppedForAnother] or [DroppedAtOnce].
	ConnectionDropped func(reason string)
}
