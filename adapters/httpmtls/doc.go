// Package httpmtls carries events to the control plane over HTTPS with a client certificate, and holds the key material for
// both ends of such a connection.
//
// [Forwarder] is the [core.Forwarder]: one pool of reused connections, TLS 1.3 only, a few short retries, and errors that
// say of themselves whether and when another attempt makes sense.
//
// [Source] is the port for key material. A [Material] is one by itself, and never changes; [Files] reads the files of a
// Kubernetes secret volume and follows their rotation. [ClientTLSConfig], [ServerTLSConfig] and [WebhookTLSConfig] turn
// a source into a [tls.Config].
//
// Nothing here restricts curves or cipher suites beyond TLS 1.3, so that the choice is that of the standard library, also
// in FIPS mode.
package httpmtls
