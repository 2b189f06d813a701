// Package listener receives the events of runtimes in the control plane. An operator embeds it.
//
// # Overview
//
// A [Listener] is an [http.Handler] for all wire contracts, and a server with Start. For each
// request:
//
//  1. [Peers] identify the sender, by its TLS certificate or by a header of a gateway.
//  2. A [core.Verifier] decides for each event whether that sender may trigger it.
//  3. The [core.Handler] of the manager takes the event. Its nil is the acknowledgement.
//
// The answer to a failure classifies it: for one event, for the sender, for the manager, or for
// now.
//
// # Usage
//
// Call [New] with the three parts, and run Start on every replica. The examples show it.
//
//   - Peers: [FromTLS] if runtimes connect to the listener itself, [FromXFCC] behind a
//     gateway.
//   - Verifier: [SANPinning] with the registered domain of each runtime. [AllOf] and [AnyOf]
//     combine verifiers. [Forbidden] makes the error of one's own.
//   - Options: TLS, limits, hooks for metrics. [Options].Fleet observes the freshness of each
//     runtime.
//
// An operator with controller-runtime uses AddListener and SourceFor of package
// adapters/controllerruntime, which make the handler and end TLS. Unit tests connect to a listener
// in memory with package listenertest.
//
// # Rationale
//
// Peers and verifier have no default, because a wrong one would admit every sender.
//
// A certificate names the runtime, but any CA mistake could issue it for another one. So SAN
// pinning compares it with a domain that the runtime cannot change.
//
// An acknowledgement is final, because the sender then forgets the event. So a handler returns nil
// once the event is enqueued. A replica that does not lead answers 503, and the sender tries
// another one.
//
// Each runtime has a share of requests, events and memory, so that one cannot starve the others. A
// sender without a certificate costs a bounded connection, and no more.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package listener
