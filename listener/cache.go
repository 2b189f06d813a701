package listener

import (
	"container/list"
	"crypto/sha256"
	"sync"
)

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
