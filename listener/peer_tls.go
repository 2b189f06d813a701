package listener

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// FromTLS takes the peer from the client certificate of the TLS connection. The handshake must have verified it: with
// [tls.RequireAndVerifyClientCert] strangers do not even get an answer, with [tls.VerifyClientCertIfGiven] those without
// certificate get 401. Validity, key usage and identity are checked again for each request, as a connection may outlive
// a certificate.
func FromTLS(opts PeerOptions) PeerSource {
	return &handshakePeers{checker: newChecker(opts), invalid: opts.validate()}
}

// FromTLSWithRoots takes the peer from the client certificate of the TLS connection and checks its chain itself, for
// each request and against the CA bundle of the moment: a CA that is taken out of the bundle loses its open connections, too, and each
// refusal is answered 401 and counted with its reason. The server then has to ask for a certificate, no more:
// [tls.RequestClientCert].
func FromTLSWithRoots(roots RootsFunc, opts PeerOptions) PeerSource {
	return &connectionPeers{checker: newChecker(opts), roots: roots, invalid: opts.validate()}
}

var (
	errNoCertificate = Unauthenticated(ReasonNoCertificate, "want a client certificate on a TLS connection")
	errNotVerified   = Unauthenticated(ReasonUntrustedChain, "want a client certificate that the TLS handshake has verified")
	errRootsMissing  = errors.New("function for the CA bundle is nil")
)

// handshakePeers believes what the handshake has verified.
type handshakePeers struct {
	*checker

	invalid error
}

func (p *handshakePeers) validate() error { return p.invalid }

func (p *handshakePeers) needsTLS() {}

// Peer implements [PeerSource].
func (p *handshakePeers) Peer(r *http.Request) (core.Peer, error) {
	switch {
	case r.TLS == nil || len(r.TLS.PeerCertificates) == 0:
		return core.Peer{}, errNoCertificate
	case len(r.TLS.VerifiedChains) == 0:
		return core.Peer{}, errNotVerified
	}

	key := cacheKey(sha256.Sum256(r.TLS.PeerCertificates[0].Raw))
	if peer, ok := p.remembered(key, nil); ok {
		return peer, nil
	}

	chain := longest(r.TLS.VerifiedChains)
	if err := recheck(chain, p.now()); err != nil {
		return core.Peer{}, err
	}

	return p.accept(key, chain, nil)
}

// recheck checks what time may have changed since the handshake, and what a handshake may have been told not to check.
func recheck(chain []*x509.Certificate, now time.Time) error {
	notBefore, notAfter := validity(chain)

	switch {
	case now.Before(notBefore):
		return Unauthenticated(ReasonNotYetValid, "chain is valid from %s", notBefore.Format(time.RFC3339))
	case now.After(notAfter):
		return Unauthenticated(ReasonExpired, "chain was valid until %s", notAfter.Format(time.RFC3339))
	case !forClients(chain[0]):
		return Unauthenticated(ReasonWrongKeyUsage, "want a certificate for client authentication")
	default:
		return nil
	}
}

func forClients(cert *x509.Certificate) bool {
	if len(cert.ExtKeyUsage) == 0 && len(cert.UnknownExtKeyUsage) == 0 {
		return true
	}

	return slices.ContainsFunc(cert.ExtKeyUsage, func(usage x509.ExtKeyUsage) bool {
		return usage == x509.ExtKeyUsageClientAuth || usage == x509.ExtKeyUsageAny
	})
}

// connectionPeers verifies the certificate of the connection itself.
type connectionPeers struct {
	*checker

	roots   RootsFunc
	invalid error
}

func (p *connectionPeers) validate() error {
	if p.roots == nil {
		return errors.Join(p.invalid, errRootsMissing)
	}

	return p.invalid
}

func (p *connectionPeers) needsTLS() {}

// Peer implements [PeerSource].
func (p *connectionPeers) Peer(r *http.Request) (core.Peer, error) {
	return p.fromConnection(r.TLS, p.roots())
}

func (c *checker) fromConnection(state *tls.ConnectionState, roots *x509.CertPool) (core.Peer, error) {
	switch {
	case roots == nil:
		return core.Peer{}, errNoRoots
	case state == nil || len(state.PeerCertificates) == 0:
		return core.Peer{}, errNoCertificate
	}

	key := keyOf(state.PeerCertificates)
	if peer, ok := c.remembered(key, roots); ok {
		return peer, nil
	}

	return c.check(key, state.PeerCertificates[0], state.PeerCertificates[1:], roots)
}

// keyOf hashes certificates one after the other: DER tells where each of them ends.
func keyOf(certs []*x509.Certificate) cacheKey {
	if len(certs) == 1 {
		return sha256.Sum256(certs[0].Raw)
	}

	hash := sha256.New()
	for _, cert := range certs {
		hash.Write(cert.Raw)
	}

	return cacheKey(hash.Sum(nil))
}
