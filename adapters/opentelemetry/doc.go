// Package opentelemetry makes one trace of a change: from the request to the API server of a
// runtime to the reconcile in the control plane.
//
// Create a [Tracing] on each side, and wrap the ports with it:
//
//	API server     traceparent header
//	agent          Webhook, Acceptor, Forwarder
//	control plane  Verifier, Handler, Queue
//
// The trace travels in [core.WatchEvent].TraceParent, and so with contract v3 only. It is a W3C
// trace context (https://www.w3.org/TR/trace-context/, section 3.2). Events that merge have the
// trace of the newest. Resyncs of an agent or a fleet, and heartbeats, have none.
//
// A span ends while an API server or a runtime waits for its answer. So the span processor must not
// block: it must collect spans, and drop those for which it has no room.
//
// The package needs the API of OpenTelemetry only. The program chooses SDK and exporter.
package opentelemetry
