package listener

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net/netip"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// checked is a certificate that was good, and for how long that holds.
type checked struct {
	peer core.Peer
	// notBefore and notAfter bound the validity of the whole chain.
	notBefore, notAfter time.Time
	// roots are those that the chain leads to.
	roots *x509.CertPool
}

// holds reports whether the certificate is still good.
func (c *checked) holds(now time.Time, roots *x509.CertPool) bool {
	return !now.Before(c.notBefore) && !now.After(c.notAfter) && (c.roots == roots || roots.Equal(c.roots))
}

// checker checks client certificates, and remembers the good ones.
type checker struct {
	identity IdentityFunc
	now      func() time.Time
	good     *cache
}

func newChecker(opts PeerOptions) *checker {
	opts = opts.withDefaults()

	return &checker{identity: opts.Identity, now: opts.Now, good: newCache(opts.CacheSize)}
}

// remembered returns the peer that was checked under key, if that still holds.
func (c *checker) remembered(key cacheKey, roots *x509.CertPool) (core.Peer, bool) {
	known, ok := c.good.get(key)
	if !ok || !known.holds(c.now(), roots) {
		return core.Peer{}, false
	}

	return known.peer, true
}

// check returns the peer that a certificate belongs to, and remembers it under key.
func (c *checker) check(key cacheKey, leaf *x509.Certificate, others []*x509.Certificate, roots *x509.CertPool) (core.Peer, error) {
	chain, err := verify(leaf, others, roots, c.now())
	if err != nil {
		return core.Peer{}, err
	}

	return c.accept(key, chain, roots)
}

// accept identifies the first certificate of a verified chain.
func (c *checker) accept(key cacheKey, chain []*x509.Certificate, roots *x509.CertPool) (core.Peer, error) {
	id, err := identify(chain[0], c.identity)
	if err != nil {
		return core.Peer{}, err
	}

	good := checked{peer: newPeer(id, chain[0]), roots: roots}
	good.notBefore, good.notAfter = validity(chain)
	c.good.put(key, good)

	return good.peer, nil
}

// verify returns the chain from leaf to roots that is valid longest (RFC 5280, section 6).
//
// A certificate without extended key usage may be used for anything (section 4.2.1.12); one that has any must allow client
// authentication, and so must the certificates above it.
func verify(leaf *x509.Certificate, others []*x509.Certificate, roots *x509.CertPool, now time.Time) ([]*x509.Certificate, error) {
	intermediates := x509.NewCertPool()
	for _, cert := range others {
		intermediates.AddCert(cert)
	}

	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: intermediates,
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, untrusted(leaf, now, err)
	}

	return longest(chains), nil
}

// untrusted names why a chain is not good. The leaf's own validity comes first, as it is what its owner can mend.
func untrusted(leaf *x509.Certificate, now time.Time, err error) error {
	var invalid x509.CertificateInvalidError

	switch {
	case now.Before(leaf.NotBefore):
		return Unauthenticated(ReasonNotYetValid, "certificate is valid from %s", leaf.NotBefore.Format(time.RFC3339))
	case now.After(leaf.NotAfter):
		return Unauthenticated(ReasonExpired, "certificate was valid until %s", leaf.NotAfter.Format(time.RFC3339))
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return Unauthenticated(ReasonWrongKeyUsage, "want a certificate for client authentication: %w", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return Unauthenticated(ReasonExpired, "want a valid chain: %w", err)
	default:
		return Unauthenticated(ReasonUntrustedChain, "want a chain to the CA bundle: %w", err)
	}
}

// longest returns the chain with the latest end of validity.
func longest(chains [][]*x509.Certificate) []*x509.Certificate {
	best := chains[0]
	_, until := validity(best)

	for _, chain := range chains[1:] {
		if _, notAfter := validity(chain); notAfter.After(until) {
			best, until = chain, notAfter
		}
	}

	return best
}

// validity returns when all certificates of a chain are valid.
func validity(chain []*x509.Certificate) (notBefore, notAfter time.Time) {
	notBefore, notAfter = chain[0].NotBefore, chain[0].NotAfter

	for _, cert := range chain[1:] {
		if cert.NotBefore.After(notBefore) {
			notBefore = cert.NotBefore
		}

		if cert.NotAfter.Before(notAfter) {
			notAfter = cert.NotAfter
		}
	}

	return notBefore, notAfter
}

func newPeer(id core.RuntimeID, cert *x509.Certificate) core.Peer {
	sum := sha256.Sum256(cert.Raw)

	return core.Peer{
		ID:          id,
		CommonName:  cert.Subject.CommonName,
		DNSNames:    cert.DNSNames,
		URIs:        uris(cert),
		IPs:         addresses(cert),
		Fingerprint: hex.EncodeToString(sum[:]),
		NotBefore:   cert.NotBefore,
		NotAfter:    cert.NotAfter,
	}
}

func uris(cert *x509.Certificate) []string {
	var uris []string
	for _, uri := range cert.URIs {
		uris = append(uris, uri.String())
	}

	return uris
}

func addresses(cert *x509.Certificate) []netip.Addr {
	var ips []netip.Addr

	for _, ip := range cert.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			ips = append(ips, addr.Unmap())
		}
	}

	return ips
}
