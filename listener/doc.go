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
// The answer to a failure classifies it: it applies to one event, to the sender, to the manager, or
// only to this attempt.
//
// # Usage
//
// Call [New] with the three parts, and run Start on every replica. The examples show it.
//
//   - Peers: [FromTLS] if runtimes connect to the listener itself, [FromXFCC] behind a
//     gateway.
//   - Verifier: [SANPinning] with the registered domain of each runtime. [AllOf] and [AnyOf]
//     combine verifiers. A verifier that you write returns errors made by [Forbidden].
//   - Options: TLS, limits, hooks for metrics. [Options].Fleet observes the freshness of each
//     runtime.
//
// An operator built on controller-runtime uses AddListener and SourceFor of package
// adapters/controllerruntime, which make the handler and terminate TLS. Unit tests connect to a
// listener in memory with package listenertest.
//
// # Rationale
//
// Peers and verifier have no default, because a wrong one would admit every sender.
//
// A certificate names the runtime, but a CA could issue it for another runtime by mistake.
// Therefore SAN pinning compares the certificate with a domain that the runtime cannot change.
//
// An acknowledgement is final, because the sender then forgets the event. Therefore a handler
// must not return nil before the event is enqueued. A replica that does not lead answers with 503,
// and the sender tries another replica.
//
// Each runtime has a share of requests, events and memory, so that one runtime cannot starve the
// other runtimes. A sender without a certificate costs at most one bounded connection.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package listener
