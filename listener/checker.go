package listener

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// verdict is the result of the check of one certificate. A cache shares it, so it does not change.
type verdict struct {
	peer core.Peer
	err  error
	// notBefore and notAfter bound the validity of the chain, or a few seconds for an error.
	notBefore, notAfter time.Time
	roots               *x509.CertPool
}

// holds reports whether the verdict counts for these roots at that time.
func (v *verdict) holds(now time.Time, roots *x509.CertPool) bool {
	isOfRoots := v.roots == roots || roots.Equal(v.roots)
	return isOfRoots && !now.Before(v.notBefore) && !now.After(v.notAfter)
}

// checker verifies client certificates, and remembers the verdicts. Its methods may be called
// concurrently: the caches have their locks, and the other fields do not change.
type checker struct {
	identity func(*x509.Certificate) (core.RuntimeID, error)
	now      func() time.Time
	// good and bad are apart, so that a flood of bad certificates does not push out the good.
	good, bad *cache
	// verifying contains a slot for each verification that may compute at the same time.
	verifying chan struct{}
}

const (
	// maxChain bounds the certificates of a chain. Real ones have two or three.
	maxChain = 10
	maxBad   = 1024
	badFor   = 10 * time.Second
)

func newChecker(opts PeerOptions) *checker {
	opts = opts.withDefaults()
	return &checker{
		identity: opts.Identity, now: opts.Now, good: newCache(opts.CacheSize), bad: newCache(maxBad),
		verifying: make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1)),
	}
}

// keptVerdict is the value that a connection keeps. Another checker may name another runtime.
type keptVerdict struct {
	by *checker
	*verdict
}

// fromRequest keeps a good verdict with the connection, as its certificates do not change.
func (c *checker) fromRequest(r *http.Request, roots *x509.CertPool) *verdict {
	kept := httpserver.Kept(r.Context())
	if kept == nil || roots == nil {
		return c.fromConnection(r.TLS, roots)
	}
	if k, ok := kept.Load().(keptVerdict); ok && k.by == c && k.holds(c.now(), roots) {
		return k.verdict
	}

	v := c.fromConnection(r.TLS, roots)
	c.keepVerdict(kept, v)
	return v
}

func (c *checker) keepVerdict(kept *atomic.Value, v *verdict) {
	if v.err == nil {
		kept.Store(keptVerdict{c, v})
	}
}

// fromConnection bounds a chain before it costs anything, and verifies one only if no verdict about
// it is remembered.
func (c *checker) fromConnection(state *tls.ConnectionState, roots *x509.CertPool) *verdict {
	switch {
	case roots == nil:
		return &verdict{err: errNoRoots}
	case state == nil || len(state.PeerCertificates) == 0:
		return &verdict{err: errNoCertificate}
	case len(state.PeerCertificates) > maxChain:
		return &verdict{err: errLongChain}
	}

	hash := sha256.New()
	for _, cert := range state.PeerCertificates { // DER is self-delimiting.
		hash.Write(cert.Raw)
	}

	key := cacheKey(hash.Sum(nil))
	if v := c.rememberedVerdict(key, roots); v != nil {
		return v
	}
	return c.verifyOnce(key, state.PeerCertificates[0], state.PeerCertificates[1:], roots)
}

func (c *checker) rememberedVerdict(key cacheKey, roots *x509.CertPool) *verdict {
	now := c.now()
	for _, remembered := range []*cache{c.good, c.bad} {
		if v := remembered.verdictOf(key); v != nil && v.holds(now, roots) {
			return v
		}
	}
	return nil
}

// verifyOnce verifies a certificate and remembers the verdict under key. It waits for a slot, and
// then for no verification that another call has done meanwhile.
func (c *checker) verifyOnce(
	key cacheKey, leaf *x509.Certificate, others []*x509.Certificate, roots *x509.CertPool,
) *verdict {
	c.verifying <- struct{}{}
	defer func() { <-c.verifying }()
	if v := c.rememberedVerdict(key, roots); v != nil {
		return v
	}

	now := c.now()
	v := &verdict{roots: roots, notBefore: now, notAfter: now.Add(badFor)}
	chains, err := verify(leaf, others, roots, now)
	if err != nil {
		v.err = err
		c.bad.putVerdict(key, v)
		return v
	}

	chain := chains[0]
	signer := chain[min(1, len(chain)-1)] // A root may be its own leaf.
	v.peer, v.err = c.peerOf(leaf, signer)
	v.peer.CAFingerprints = casOf(chains)
	if v.err != nil {
		c.bad.putVerdict(key, v)
		return v
	}

	v.notBefore = slices.MaxFunc(chain, func(a, b *x509.Certificate) int {
		return a.NotBefore.Compare(b.NotBefore)
	}).NotBefore
	v.notAfter = slices.MinFunc(chain, func(a, b *x509.Certificate) int {
		return a.NotAfter.Compare(b.NotAfter)
	}).NotAfter
	c.good.putVerdict(key, v)
	return v
}

func (c *checker) peerOf(cert, signer *x509.Certificate) (core.Peer, error) {
	id, err := c.identity(cert)
	if err != nil {
		return core.Peer{}, unauthenticated(reasons.NoIdentity, "certificate names no runtime: %w", err)
	}
	if err := checkIdentity(id); err != nil {
		return core.Peer{}, err
	}

	peer := core.Peer{
		ID:                id,
		CommonName:        cert.Subject.CommonName,
		DNSNames:          cert.DNSNames,
		Fingerprint:       fingerprintOf(cert.Raw),
		OtherFingerprints: otherFingerprints(cert, signer),
		NotBefore:         cert.NotBefore,
		NotAfter:          cert.NotAfter,
	}

	for _, uri := range cert.URIs {
		peer.URIs = append(peer.URIs, uri.String())
	}

	for _, ip := range cert.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			peer.IPs = append(peer.IPs, addr.Unmap())
		}
	}

	return peer, nil
}

var (
	errNoRoots       = fmt.Errorf("%w: there is no CA bundle", core.ErrNotReady)
	errNoCertificate = unauthenticated(ReasonNoCertificate, "want a client certificate on a TLS connection")
	errLongChain     = unauthenticated(ReasonUntrustedChain, "want a chain of at most %d certificates", maxChain)
)

// casOf returns the fingerprints of all certificates above the leaf, in all chains.
func casOf(chains [][]*x509.Certificate) (fingerprints []string) {
	for _, chain := range chains {
		for _, ca := range chain[min(1, len(chain)-1):] {
			fingerprints = append(fingerprints, fingerprintOf(ca.Raw))
		}
	}

	slices.Sort(fingerprints)
	return slices.Compact(fingerprints)
}

// verify returns the chains from leaf to roots (RFC 5280, section 6). A certificate with extended
// key usages must allow client authentication, and so must those above it (section 4.2.1.12).
func verify(
	leaf *x509.Certificate, others []*x509.Certificate, roots *x509.CertPool, now time.Time,
) ([][]*x509.Certificate, error) {
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
	return chains, nil
}

// untrusted names the validity of the leaf first, because its owner can mend it.
func untrusted(leaf *x509.Certificate, now time.Time, err error) error {
	var invalid x509.CertificateInvalidError
	switch {
	case now.Before(leaf.NotBefore):
		return unauthenticated(ReasonNotYetValid, "certificate is valid from %s", leaf.NotBefore.Format(time.RFC3339))
	case now.After(leaf.NotAfter):
		return unauthenticated(ReasonExpired, "certificate was valid until %s", leaf.NotAfter.Format(time.RFC3339))
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return unauthenticated(ReasonWrongKeyUsage, "want a certificate for client authentication: %w", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return unauthenticated(ReasonExpired, "want a valid chain: %w", err)
	default:
		return unauthenticated(ReasonUntrustedChain, "want a chain to the CA bundle: %w", err)
	}
}

// cacheKey is the SHA-256 of the bytes that a verdict is about.
type cacheKey [sha256.Size]byte

// cache remembers verdicts, which must not be changed. When it is full, it forgets any of them.
type cache struct {
	size int

	mu       sync.Mutex
	verdicts map[cacheKey]*verdict
}

func newCache(size int) *cache { return &cache{size: size, verdicts: make(map[cacheKey]*verdict)} }

func (c *cache) verdictOf(key cacheKey) *verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.verdicts[key]
}

func (c *cache) putVerdict(key cacheKey, v *verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for other := range c.verdicts {
		if len(c.verdicts) < c.size {
			break
		}
		delete(c.verdicts, other)
	}

	c.verdicts[key] = v
}
