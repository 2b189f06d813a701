// Package testpki makes throw-away certificates for tests and demonstrations: certificate authorities, leaves with any
// flaw, and files as a Kubernetes secret volume presents them.
//
// It imports the standard library only, works in FIPS mode (ECDSA P-256, SHA-256), and has no place in production:
// private keys are kept in memory and handed out freely.
package testpki
