package listener

import (
	"container/list"
	"crypto/sha256"
	"sync"
)

// cacheKey is the SHA-256 of the bytes that were checked.
type cacheKey [sha256.Size]byte

// cache remembers good certificates, and forgets the one that was not used for longest when it is full. Bad ones are not
// remembered: a flood of them must not push out the good.
type cache struct {
	size int

	mu      sync.Mutex
	entries map[cacheKey]*list.Element
	recent  *list.List
}

type cacheEntry struct {
	key  cacheKey
	good checked
}

func newCache(size int) *cache {
	return &cache{size: size, entries: map[cacheKey]*list.Element{}, recent: list.New()}
}

func (c *cache) get(key cacheKey) (*checked, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	element, ok := c.entries[key]
	if !ok {
		return nil, false
	}

	c.recent.MoveToFront(element)

	return &entryOf(element).good, true
}

// put stores good. An entry is replaced, never changed, as get hands it out.
func (c *cache) put(key cacheKey, good checked) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if old, ok := c.entries[key]; ok {
		c.recent.Remove(old)
	}

	c.entries[key] = c.recent.PushFront(&cacheEntry{key: key, good: good})

	if c.recent.Len() > c.size {
		oldest := c.recent.Back()
		c.recent.Remove(oldest)
		delete(c.entries, entryOf(oldest).key)
	}
}

func (c *cache) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return len(c.entries)
}

func entryOf(element *list.Element) *cacheEntry {
	entry, _ := element.Value.(*cacheEntry) // Nothing else is ever put in.

	return entry
}
