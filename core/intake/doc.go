// Package intake is the receiver's half of the transport, as package outbox is the sender's. Every
// transport goes through it.
//
// A transport turns a message into a [Request] with the [core.Peer] that it has identified, and a
// [Verdict] into its answer. [Intake.Receive] does everything between:
//
//  1. It compares the claim of the batch with the peer.
//  2. It charges the share of the runtime, and takes a slot.
//  3. It verifies each event, and hands it to the handler of its manager.
//  4. It decides which side each failure belongs to: one event, the sender, or this replica.
//  5. It hands the batch to the fleet.
//
// The package knows no transport: nothing here may depend on requests of HTTP, on connections or on
// subjects.
package intake
