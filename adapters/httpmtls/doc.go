// Package httpmtls sends events to the control plane over HTTPS with a client certificate, and has
// the key material for both ends of such a connection.
//
// [Forwarder] is the [core.Forwarder]: one pool of reused connections, TLS 1.3 only, a few short
// retries, and errors that classify themselves for the outbox.
//
// [Source] is the port for key material. A [Material] is one that never changes. [Files] polls the
// files of a Kubernetes secret volume, and adapters/controlplane/keysource reads a Secret itself.
// [ClientTLSConfig], [ServerTLSConfig] and [WebhookTLSConfig] turn a source into a [tls.Config].
//
// Nothing here restricts curves or cipher suites beyond TLS 1.3, so that the standard library
// chooses them, also in FIPS mode.
package httpmtls
