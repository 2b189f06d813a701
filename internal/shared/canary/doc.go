// Package canary proves that the API server of a runtime still calls its agent. Without this proof,
// a runtime without changes and a runtime without its webhook look the same.
//
// A [Canary] writes a nonce into one Lease at an interval. The webhook for that Lease calls a
// [Handler] in any replica at [Path]. The handler answers with the nonce as a warning, which the
// API server returns to the writer. So the API server called the webhook if the answer to a write
// contains the nonce.
//
// The Lease, the webhook and the permission to patch the Lease must exist. The canary creates none
// of them. ConfigurationOptions of adapters/admission adds the webhook.
package canary

// Path is the URL path of a [Handler] below its endpoint.
const Path = "/canary"

// nonceAnnotation is written and read only by agents, so operators cannot rename it.
const nonceAnnotation = "runtime-watcher/canary-nonce"

const warningPrefix = "runtime-watcher canary "
