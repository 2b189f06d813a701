// Package canary proves that the API server of a runtime still calls its agent. Without it, an idle
// runtime and a removed webhook look alike.
//
// A [Canary] writes a nonce into one Lease at an interval. The webhook for that Lease calls a
// [Handler] in any replica at [Path]. The handler answers with the nonce as a warning, which an API
// server returns to the writer. So the webhook saw a write if its answer has its nonce.
//
// The Lease, the webhook and the permission to patch the Lease must exist. The canary creates none
// of them. ConfigurationOptions of adapters/admission adds the webhook.
package canary

// Path is the URL path of a [Handler] below its endpoint.
const Path = "/canary"

// nonceAnnotation is written and read by agents alone, so that operators have no other name for it.
const nonceAnnotation = "runtime-watcher/canary-nonce"

const warningPrefix = "runtime-watcher canary "
