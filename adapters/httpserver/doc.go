// Package httpserver is an HTTP server for ports that untrusted clients can reach. It bounds open
// connections and concurrent TLS handshakes, shares both fairly between the origins of the
// connections, and reports each failed handshake with its cause.
//
// An origin is what connections are counted by: a remote address, or the name that [SetOrigin]
// gives.
package httpserver
