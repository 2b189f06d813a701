// Package testpki makes throw-away certificates for tests and demonstrations: certificate
// authorities, leaves with any flaw, and files as a Kubernetes secret volume presents them.
//
// It imports the standard library only and works in FIPS mode (ECDSA P-256, SHA-256). It is not for
// production: every caller can read the private keys.
package testpki
