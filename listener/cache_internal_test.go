package listener

import "testing"

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
