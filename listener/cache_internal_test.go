package listener

import (
	"crypto/x509"
	"strconv"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Strangers can send any number of bad certificates.
func TestBadCertificatesPushOutNoGoodOne(t *testing.T) {
	t.Parallel()
	c := newChecker(PeerOptions{CacheSize: 1})
	c.good.put(cacheKey{}, verdict{})
	if _, err := c.check(cacheKey{1}, &x509.Certificate{}, nil, x509.NewCertPool()); err == nil {
		t.Error("an empty certificate is good")
	}
	if _, ok := c.good.get(cacheKey{}); !ok {
		t.Error("the good verdict is gone")
	}
}

func TestCacheForgetsWhatWasNotUsed(t *testing.T) {
	t.Parallel()
	key := func(n int) cacheKey { return cacheKey{byte(n), byte(n >> 8)} }
	c := newCache(3)
	for n := range 3 {
		c.put(key(n), verdict{peer: core.Peer{ID: core.RuntimeID(strconv.Itoa(n))}})
	}
	c.get(key(0))
	c.put(key(1), verdict{peer: core.Peer{ID: "again"}})
	c.put(key(3), verdict{})
	if _, ok := c.get(key(2)); ok {
		t.Error("2 is there, though it was not used for longest")
	}
	for n, want := range map[int]core.RuntimeID{0: "0", 1: "again", 3: ""} {
		if good, ok := c.get(key(n)); !ok || good.peer.ID != want {
			t.Errorf("%d is there: %v, want it with %q", n, ok, want)
		}
	}
	for n := range 1000 {
		c.put(key(n), verdict{})
	}
	if len(c.entries) != 3 || c.recent.Len() != 3 {
		t.Errorf("%d entries, %d in order, want 3", len(c.entries), c.recent.Len())
	}
}
