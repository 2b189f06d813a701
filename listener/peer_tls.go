package listener

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// FromTLSWithRoots takes the peer from the client certificate of the TLS connection, and verifies
// its chain against the current CA bundle. Options.TLS must request a client certificate. A
// connection of a CA that is removed from the bundle is refused from its next request on.
//
// roots returns the current CA bundle. It is called for every request and must not block. It must
// return a new pool rather than change one that it has returned. Nil means that there is no bundle
// yet: requests are then answered 503. The roots of the system are never used.
//
// With [tls.RequestClientCert], each refusal is answered 401 and counted with its reason. With
// [tls.RequireAndVerifyClientCert], as keys.ServerTLSConfig sets it, most strangers fail in the
// handshake. Hooks.HandshakeFailed then gets the cause.
//
// Start verifies a chain once, in the handshake, where slots bound the cost. A request needs a
// comparison only. A chain of more than 10 certificates is refused unverified.
func FromTLSWithRoots(roots func() *x509.CertPool, opts PeerOptions) Peers {
	invalid := opts.validate()
	if roots == nil {
		invalid = errors.Join(invalid, errRootsMissing)
	}
	check := newChecker(opts)
	return Peers{
		identify: func(r *http.Request) (core.Peer, error) { return check.fromRequest(r, roots()) },
		// The verdict is remembered for the requests.
		checkHandshake: func(state *tls.ConnectionState) { _, _ = check.fromConnection(state, roots()) },
		ownsConnection: true,
		invalid:        invalid,
	}
}

var (
	errNoCertificate = Unauthenticated(reasonNoCertificate, "want a client certificate on a TLS connection")
	errRootsMissing  = errors.New("function for the CA bundle is nil")
)
