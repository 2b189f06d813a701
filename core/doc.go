// Package core defines the types and the ports of Runtime Watcher. A control plane runs operators
// for many remote clusters, called runtimes. When an object in a runtime changes, the operator
// reconciles that runtime immediately.
//
// # Overview
//
// In the runtime, a change source makes a [Change] of each write. A [Filter], such as [Changed],
// keeps the changes that matter. Their [WatchEvent]s go to an [Acceptor], which is usually an
// outbox. The outbox sends a [Batch] through a [Forwarder] until it is acknowledged.
//
// In the control plane, a listener makes a [Peer] of the sender's certificate. A [Verifier] decides
// whether that peer may trigger the event. A [Handler] receives the verified [Delivery] and
// enqueues the runtime.
//
// # Usage
//
// An operator embeds package listener, or adapters/controllerruntime, which adds the workqueue. The
// operator implements a [Handler] or a map function and reads the state of the runtime itself.
//
// A program in a runtime composes a change source, core/outbox and a [Forwarder], such as
// adapters/httpmtls. The example of a change source below needs only this package.
//
// An adapter of a port implements one method and passes the suite of the port in core/coretest.
// Other tests use the mocks in core/coremock.
//
//   - core/outbox keeps events until they are acknowledged
//   - core/contract encodes batches and answers
//   - core/fleet determines whether changes of a runtime would arrive
//
// # Rationale
//
// An event is a hint to reconcile, never the truth. Therefore events of one object may merge,
// arrive twice or arrive late, but must not vanish. If an event is lost, a resync of the runtime
// replaces it.
//
// A forwarder classifies an error, and the outbox retries. The first question is which side an
// error belongs to: to one event ([EventErrors]), to the sender, to the manager or to the path.
// Therefore the refusal of one event delays no other event.
//
// The package does no I/O, starts no goroutine and depends on no transport. Adapters do all of
// this.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package core
