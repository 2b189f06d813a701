package listener

import (
	"crypto/x509"
	"testing"
)

// Strangers can send any number of bad certificates.
func TestBadCertificatesPushOutNoGoodOne(t *testing.T) {
	t.Parallel()

	c := newChecker(PeerOptions{CacheSize: 1})
	good := &verdict{}
	c.good.putVerdict(cacheKey{}, good)
	if v := c.verifyOnce(cacheKey{1}, &x509.Certificate{}, nil, x509.NewCertPool()); v.err == nil {
		t.Error("an empty certificate is good")
	}

	if c.good.verdictOf(cacheKey{}) != good {
		t.Error("the good verdict is gone")
	}
}

// The newest verdict is always in the cache, which keeps its size.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()

	key := func(n int) cacheKey { return cacheKey{byte(n), byte(n >> 8)} }
	c := newCache(3)
	for n := range 1000 {
		v := &verdict{}
		c.putVerdict(key(n), v)
		if c.verdictOf(key(n)) != v || len(c.verdicts) > 3 {
			t.Fatalf("%d: %v in %d entries, want it in at most 3", n, c.verdictOf(key(n)), len(c.verdicts))
		}
	}
}
