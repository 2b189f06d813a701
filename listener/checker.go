package listener

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
)

// verdict is the result of checking a client certificate.
type verdict struct {
	peer core.Peer
	err  error
	// notBefore and notAfter bound the time for which the verdict holds: that of the chain, or a
	// few seconds for an error.
	notBefore, notAfter time.Time
	// roots are the CA bundle of the check.
	roots *x509.CertPool
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
	// maxBad bounds the bad certificates that are remembered.
	maxBad = 1024
	// badFor is the time for which a bad certificate is remembered.
	badFor = 10 * time.Second
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
	if err == nil {
		c.keep(kept, keyOf(r.TLS.PeerCertificates))
	}
	return peer, err
}

// keep keeps the good verdict under key with a connection.
func (c *checker) keep(kept *atomic.Value, key cacheKey) {
	if v, ok := c.good.get(key); ok {
		kept.Store(keptVerdict{c, v})
	}
}

// fromConnection checks the certificate of a connection.
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
	if err == nil {
		return c.accept(key, chain, roots)
	}
	return core.Peer{}, c.refuse(key, err, roots)
}

// accept identifies the first certificate of a verified chain.
func (c *checker) accept(key cacheKey, chain []*x509.Certificate, roots *x509.CertPool) (core.Peer, error) {
	id, err := identify(chain[0], c.identity)
	if err != nil {
		return core.Peer{}, c.refuse(key, err, roots)
	}
	v := verdict{peer: newPeer(id, chain[0]), roots: roots}
	v.notBefore, v.notAfter = validity(chain)
	c.good.put(key, v)
	return v.peer, nil
}

func (c *checker) refuse(key cacheKey, err error, roots *x509.CertPool) error {
	now := c.now()
	c.bad.put(key, verdict{err: err, roots: roots, notBefore: now, notAfter: now.Add(badFor)})
	return err
}
