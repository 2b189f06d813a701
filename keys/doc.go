// Package keys holds the key material of both ends of a connection: certificates, private keys and
// trusted CAs, their reloading from files, and the TLS configurations that use them.
//
// A [Source] is the port. [*Material] is one fixed generation, [*Files] reads a mounted Secret
// again and again. The functions that return a [tls.Config] ask the source at each handshake, so
// that new key material counts at once and old connections stay open.
package keys
