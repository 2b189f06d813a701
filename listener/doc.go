// Package listener is the endpoint that an operator in the control plane embeds to receive events from runtimes.
//
// A [Listener] finds out who sent a request ([PeerSource]), asks a verifier whether that peer may trigger what it asks
// for, and hands the event to the handler of the manager that it is for. It answers so that a sender knows what
// to do: an event is acknowledged only when the handler has taken it.
//
// How a peer is found has no default, as a wrong one would let everybody in: [FromTLS] or [FromTLSWithRoots] where runtimes
// connect straight to the listener, [FromXFCC] behind a gateway.
package listener
