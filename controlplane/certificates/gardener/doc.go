// Package gardener issues certificates with cert-management of Gardener, for control planes without
// cert-manager.
//
// [NewClient] translates between the two: package certificates writes and reads Certificates and
// Issuers of cert-manager, and the API server gets those of cert.gardener.cloud/v1alpha1. Secrets
// and all other objects pass unchanged.
//
// cert-management differs in these points:
//
//   - It has no self-signed CAs. The client makes the key and the certificate of a CA itself, and
//     stores them in the Secret of the CA. CAIssuer of the options is refused.
//   - All certificates are for clients and for servers. They are valid for 90 days and are renewed
//     30 days before the end, so Duration and RenewBefore should keep their defaults.
//   - Issuers are in the namespace that is set in cert-management, unless the options name one.
package gardener
