// Package natsjetstream carries batches through NATS JetStream, as an alternative to HTTP between
// runtimes and an operator.
//
//	runtime        Forwarder  publishes to watch.<manager>.<runtime>
//	NATS server    stream     watch-<manager> stores the batch until it is handled
//	control plane  Consumer   verifies the batch, enqueues its events and acknowledges it
//
// The payload is that of contract v3. The NATS server checks the certificate of a runtime, and lets
// it publish under its own name only. The operator trusts the subject; see docs/security.md.
//
// # Acknowledgement
//
// [Forwarder].Forward returns nil when the operator has enqueued every event. It also returns nil
// when the stream has stored the batch and no answer of the operator came in time. From then on the
// stream owns the batch, and delivers it until the operator takes it.
//
// A [Consumer] acknowledges a message to the stream when all its events are enqueued. It offers
// refused events to the forwarder that waits for the answer. If that confirms, its outbox owns them
// again. Otherwise the stream keeps the message, and delivers it again after a while. An event that
// is refused for longer than [Options.GiveUpAfter] is terminated and counted. The fleet misses its
// number, and requests a resync of that runtime.
package natsjetstream
