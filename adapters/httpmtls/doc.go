// Package httpmtls sends events to the control plane over HTTPS with a client certificate. It also
// has the key material for both ends of such a connection.
//
// [Forwarder] is the [core.Forwarder]. It has one pool of reused connections, uses TLS 1.3 only,
// and makes a few short retries. Its errors classify themselves for the outbox. [NewFallback]
// combines two of them, for a control plane that may not know the newest contract.
//
// [Source] is the port for key material. A [Material] is one that never changes. [Files] polls the
// files of a Kubernetes secret volume, and controlplane/keysource reads a Secret itself.
// [ClientTLSConfig], [ServerTLSConfig] and [WebhookTLSConfig] turn a source into a [tls.Config].
//
// Nothing here restricts curves or cipher suites beyond TLS 1.3. The standard library chooses them,
// also in FIPS mode.
package httpmtls
