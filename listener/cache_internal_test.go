package listener

import (
	"strconv"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// Strangers can send any number of bad certificates.
func TestBadCertificatesPushOutNoGoodOne(t *testing.T) {
	t.Parallel()
	c, roots, known := newChecker(PeerOptions{CacheSize: 1}), []*testpki.CA{{}, {}}, cacheKey{}
	for n := range roots {
		roots[n], _ = testpki.NewCA("ca", testpki.Options{})
		leaf, err := roots[n].Client("runtime", testpki.Options{})
		if err != nil {
			t.Fatal(err)
		}
		key := cacheKey{byte(n)}
		if _, err := c.check(key, leaf.TLS.Leaf, nil, roots[0].Pool()); (err == nil) != (key == known) {
			t.Errorf("certificate of CA %d: %v", n, err)
		}
	}
	if _, ok := c.good.get(known); !ok {
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
