// Package core is the hexagon of Runtime Watcher: the words of the domain and the ports around it.
//
// A change source in a remote cluster (a runtime) makes [Change] values of the writes that it sees.
// A [Filter] keeps those that matter. Their [WatchEvent]s go to an [Acceptor], such as an outbox,
// and leave the runtime in a [Batch] through a [Forwarder]. In the control plane a [Verifier]
// decides whether the [Peer] that sent an event may trigger it, and a [Handler] receives the
// verified [Delivery].
//
// The package does no I/O, starts no goroutine and knows no transport: adapters do.
package core
