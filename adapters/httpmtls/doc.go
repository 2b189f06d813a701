// Package httpmtls sends events to the control plane over HTTPS with a client certificate.
//
// [Forwarder] is the [core.Forwarder]. It has one pool of reused connections, uses TLS 1.3 only,
// and makes a few short retries. Its errors classify themselves for the outbox. [NewFallback]
// combines two of them, for a control plane that may not know the newest contract. Package keys has
// the key material.
//
// Nothing here restricts curves or cipher suites beyond TLS 1.3. The standard library chooses them,
// also in FIPS mode.
package httpmtls
