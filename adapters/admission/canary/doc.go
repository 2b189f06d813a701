// Package canary proves that the API server of a runtime still calls its agent: a webhook that was removed, bypassed or
// broken is silent, and silence is what an idle runtime sounds like, too.
//
// A [Canary] writes a nonce into one Lease at an interval. The webhook for that Lease (see [Path]) reaches a [Handler], of this
// replica or another, which answers with the nonce as a warning; an API server passes warnings on to who made the write. So a
// write whose answer carries its nonce has come through the webhook, whichever replica took it.
package canary

// Path is where a [Handler] belongs.
const Path = "/canary"

// NonceAnnotation is where a Lease carries the nonce of its last write.
const NonceAnnotation = "operator.kyma-project.io/canary-nonce"

// warningPrefix begins the warning that carries a nonce back.
const warningPrefix = "runtime-watcher canary "
