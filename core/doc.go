// Package core is the hexagon of Runtime Watcher: the words of the domain and the ports around it.
//
// A source in a remote cluster (a runtime) turns what it sees into [Change] values. A [Filter] keeps those that
// matter, and what is kept leaves the runtime as a [WatchEvent] through a [Forwarder]. In the control plane a
// [Verifier] decides whether the [Peer] that sent an event may trigger what it asks for, and a [Handler] receives
// the verified [Delivery].
//
// The package does no I/O, starts no goroutine and knows no transport: adapters do.
package core
