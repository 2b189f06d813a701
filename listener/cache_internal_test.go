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
	c.good.put(cacheKey{}, good)
	if v := c.check(cacheKey{1}, &x509.Certificate{}, nil, x509.NewCertPool()); v.err == nil {
		t.Error("an empty certificate is good")
	}
	if c.good.get(cacheKey{}) != good {
		t.Error("the good verdict is gone")
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	key := func(n int) cacheKey { return cacheKey{byte(n), byte(n >> 8)} }
	c := newCache(3)
	for n := range 1000 {
		v := &verdict{}
		c.put(key(n), v)
		if c.get(key(n)) != v || len(c.verdicts) > 3 {
			t.Fatalf("%d: %v in %d entries, want it in at most 3", n, c.get(key(n)), len(c.verdicts))
		}
	}
}
