// Package listener is the endpoint that an operator in the control plane embeds to receive events
// from runtimes.
//
// A [Listener] identifies the sender of a request with [Peers]. A [core.Verifier] decides whether
// that peer may trigger the event. The [core.Handler] of the manager then takes the event, which
// the answer acknowledges. An answer to a failure classifies it for the sender.
//
// Peers have no default, as a wrong one would admit every sender. Use [FromTLSWithRoots] if
// runtimes connect to the listener itself, and [FromXFCC] behind a gateway.
package listener
