package listener

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Hooks are optional callbacks. They are called concurrently and must not block. All strings are
// from small fixed sets and may be metric labels, provided that the reasons of errors of verifiers
// and handlers are.
type Hooks struct {
	// Answered is called after each request. Contract and manager are empty when the request names
	// none that is known. Reason is empty when the event was taken, unless [ObserveOnly] took it.
	Answered func(contract string, manager core.Manager, status int, reason string, took time.Duration)
	// InFlight is called with 1 before the verifier and the handler are called for a request, and
	// with -1 after.
	InFlight func(delta int)
	// HandshakeFailed is called for each failed TLS handshake. Cause is as in package httpserver.
	HandshakeFailed func(cause string)
	// ConnectionDropped is called for each connection that was closed for Options.MaxConnections.
	// Reason is "displaced" or "no_slot", as in package httpserver.
	ConnectionDropped func(reason string)
}
