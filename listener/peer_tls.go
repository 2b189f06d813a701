package listener

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"slices"
	"time"

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

// FromTLS takes the peer from the client certificate that the TLS handshake has verified, as with
// [tls.RequireAndVerifyClientCert]. Validity, key usage and identity are checked for each request.
//
// A connection stays open when its CA is removed from the bundle, at the longest until its
// certificate expires. Prefer [FromTLSWithRoots], which refuses it at once and names the cause to
// metrics.
func FromTLS(opts PeerOptions) Peers {
	check := newChecker(opts)
	return Peers{identify: check.fromHandshake, ownsConnection: true, invalid: opts.validate()}
}

var (
	errNoCertificate = Unauthenticated(reasonNoCertificate, "want a client certificate on a TLS connection")
	errNotVerified   = Unauthenticated(reasonUntrustedChain,
		"want a client certificate that the TLS handshake has verified")
	errRootsMissing = errors.New("function for the CA bundle is nil")
)

// fromHandshake relies on the verification of the handshake.
func (c *checker) fromHandshake(r *http.Request) (core.Peer, error) {
	switch {
	case r.TLS == nil || len(r.TLS.PeerCertificates) == 0:
		return core.Peer{}, errNoCertificate
	case len(r.TLS.VerifiedChains) == 0:
		return core.Peer{}, errNotVerified
	}
	key := keyOf(r.TLS.PeerCertificates[:1])
	if v, ok := c.good.get(key); ok && v.holds(c.now(), nil) {
		return v.peer, nil
	}
	chain := longest(r.TLS.VerifiedChains)
	if err := recheck(chain, c.now()); err != nil {
		return core.Peer{}, err
	}
	return c.accept(key, chain, nil)
}

// recheck checks the validity, which may have ended since the handshake, and the key usage, which a
// handshake can be configured to ignore.
func recheck(chain []*x509.Certificate, now time.Time) error {
	notBefore, notAfter := validity(chain)
	switch {
	case now.Before(notBefore):
		return Unauthenticated(reasonNotYetValid, "chain is valid from %s", notBefore.Format(time.RFC3339))
	case now.After(notAfter):
		return Unauthenticated(reasonExpired, "chain was valid until %s", notAfter.Format(time.RFC3339))
	case !forClients(chain[0]):
		return Unauthenticated(reasonWrongKeyUsage, "want a certificate for client authentication")
	default:
		return nil
	}
}

// forClients reports whether a certificate may be used for client authentication. Without extended
// key usages it may be used for anything (RFC 5280, section 4.2.1.12).
func forClients(cert *x509.Certificate) bool {
	if len(cert.ExtKeyUsage) == 0 && len(cert.UnknownExtKeyUsage) == 0 {
		return true
	}
	return slices.ContainsFunc(cert.ExtKeyUsage, func(usage x509.ExtKeyUsage) bool {
		return usage == x509.ExtKeyUsageClientAuth || usage == x509.ExtKeyUsageAny
	})
}
