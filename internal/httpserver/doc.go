// Package httpserver is an HTTP server for ports that untrusted clients can reach. It bounds open
// connections and concurrent TLS handshakes. It shares both fairly between the origins of the
// connections, and reports each failed handshake with its cause.
//
// The origin of a connection is its remote IPv4 address or IPv6 /64 network, because one host may
// use any address in such a network. [SetOrigin] replaces it by a name.
package httpserver
