package listener

import (
	"container/list"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
)

type verdict struct {
	peer core.Peer
	err  error
	// notBefore and notAfter bound the time for which the verdict holds: that of the chain, or a
	// few seconds for an error.
	notBefore, notAfter time.Time
	roots               *x509.CertPool
}

// holds reports whether a new check has the same result.
func (v *verdict) holds(now time.Time, roots *x509.CertPool) bool {
	return !now.Before(v.notBefore) && !now.After(v.notAfter) && (v.roots == roots || roots.Equal(v.roots))
}

// checker checks client certificates, each once.
type checker struct {
	identity func(*x509.Certificate) (core.RuntimeID, error)
	now      func() time.Time
	// good and bad are apart, so that a flood of bad certificates does not push out the good.
	good, bad *cache
	// verifying has a slot for each verification that may compute at the same time.
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

// fromRequest checks the certificate of a request's connection. The connection keeps a good
// verdict, because its certificates do not change.
func (c *checker) fromRequest(r *http.Request, roots *x509.CertPool) (core.Peer, error) {
	kept := httpserver.Kept(r.Context())
	if kept == nil || roots == nil {
		return c.fromConnection(r.TLS, roots)
	}
	if k, ok := kept.Load().(keptVerdict); ok && k.by == c && k.holds(c.now(), roots) {
		return k.peer, nil
	}
	peer, err := c.fromConnection(r.TLS, roots)
	if err != nil {
		return peer, err
	}
	if v, ok := c.good.get(keyOf(r.TLS.PeerCertificates)); ok {
		kept.Store(keptVerdict{c, v})
	}
	return peer, nil
}

func (c *checker) fromConnection(state *tls.ConnectionState, roots *x509.CertPool) (core.Peer, error) {
	switch {
	case roots == nil:
		return core.Peer{}, errNoRoots
	case state == nil || len(state.PeerCertificates) == 0:
		return core.Peer{}, errNoCertificate
	case len(state.PeerCertificates) > maxChain:
		return core.Peer{}, errLongChain
	}
	key := keyOf(state.PeerCertificates)
	if v, ok := c.known(key, roots); ok {
		return v.peer, v.err
	}
	return c.check(key, state.PeerCertificates[0], state.PeerCertificates[1:], roots)
}

// known returns the verdict that is remembered under key, if it still holds.
func (c *checker) known(key cacheKey, roots *x509.CertPool) (*verdict, bool) {
	now := c.now()
	if v, ok := c.good.get(key); ok && v.holds(now, roots) {
		return v, true
	}
	if v, ok := c.bad.get(key); ok && v.holds(now, roots) {
		return v, true
	}
	return nil, false
}

// check verifies a certificate and remembers the verdict under key. It waits for a slot, and then
// for no verification that another call has done meanwhile.
func (c *checker) check(
	key cacheKey, leaf *x509.Certificate, others []*x509.Certificate, roots *x509.CertPool,
) (core.Peer, error) {
	c.verifying <- struct{}{}
	defer func() { <-c.verifying }()
	if v, ok := c.known(key, roots); ok {
		return v.peer, v.err
	}
	now := c.now()
	chain, err := verify(leaf, others, roots, now)
	var id core.RuntimeID
	if err == nil {
		id, err = identify(chain[0], c.identity)
	}
	if err != nil {
		c.bad.put(key, verdict{err: err, roots: roots, notBefore: now, notAfter: now.Add(badFor)})
		return core.Peer{}, err
	}
	v := verdict{peer: newPeer(id, chain[0]), roots: roots}
	v.notBefore, v.notAfter = validity(chain)
	c.good.put(key, v)
	return v.peer, nil
}

var errLongChain = Unauthenticated(reasonUntrustedChain, "want a chain of at most %d certificates", maxChain)

// verify returns the chain from leaf to roots that is valid longest (RFC 5280, section 6). A
// certificate with extended key usages must allow client authentication, and so must those above it
// (section 4.2.1.12).
func verify(
	leaf *x509.Certificate, others []*x509.Certificate, roots *x509.CertPool, now time.Time,
) ([]*x509.Certificate, error) {
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

// untrusted names the fault of a chain. The leaf's own validity comes first, because its owner can
// mend it.
func untrusted(leaf *x509.Certificate, now time.Time, err error) error {
	var invalid x509.CertificateInvalidError
	switch {
	case now.Before(leaf.NotBefore):
		return Unauthenticated(reasonNotYetValid, "certificate is valid from %s", leaf.NotBefore.Format(time.RFC3339))
	case now.After(leaf.NotAfter):
		return Unauthenticated(reasonExpired, "certificate was valid until %s", leaf.NotAfter.Format(time.RFC3339))
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return Unauthenticated(reasonWrongKeyUsage, "want a certificate for client authentication: %w", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return Unauthenticated(reasonExpired, "want a valid chain: %w", err)
	default:
		return Unauthenticated(reasonUntrustedChain, "want a chain to the CA bundle: %w", err)
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

// validity returns the time for which all certificates of a chain are valid.
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

// keyOf hashes certificates one after the other. DER is self-delimiting.
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

// cacheKey is the SHA-256 of the bytes that a verdict is about.
type cacheKey [sha256.Size]byte

// cache remembers verdicts. When it is full, it forgets the one that was not used for the longest
// time.
type cache struct {
	size int

	mu      sync.Mutex
	entries map[cacheKey]*list.Element
	recent  *list.List
}

type cacheEntry struct {
	key     cacheKey
	verdict verdict
}

func newCache(size int) *cache {
	return &cache{size: size, entries: map[cacheKey]*list.Element{}, recent: list.New()}
}

// get returns a verdict that must not be changed.
func (c *cache) get(key cacheKey) (*verdict, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.entries[key]
	if !ok {
		return nil, false
	}
	c.recent.MoveToFront(element)
	return &entryOf(element).verdict, true
}

// put replaces an entry rather than change it, because get hands it out.
func (c *cache) put(key cacheKey, v verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.entries[key]; ok {
		c.recent.Remove(old)
	}
	c.entries[key] = c.recent.PushFront(&cacheEntry{key: key, verdict: v})
	if c.recent.Len() > c.size {
		oldest := c.recent.Back()
		c.recent.Remove(oldest)
		delete(c.entries, entryOf(oldest).key)
	}
}

func entryOf(element *list.Element) *cacheEntry {
	entry, _ := element.Value.(*cacheEntry) // The list has nothing else.
	return entry
}
