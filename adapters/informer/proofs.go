package informer

import (
	"k8s.io/client-go/tools/cache"
)

// proofs is a store that reports that the API server serves the watch.
type proofs struct {
	cache.ReflectorStore

	follower *follower
}

var (
	_ cache.ReflectorStore         = (*proofs)(nil)
	_ cache.ReflectorBookmarkStore = (*proofs)(nil)
)

// Add implements [cache.ReflectorStore].
func (p *proofs) Add(object any) error {
	p.follower.works()
	return p.ReflectorStore.Add(object)
}

// Update implements [cache.ReflectorStore].
func (p *proofs) Update(object any) error {
	p.follower.works()
	return p.ReflectorStore.Update(object)
}

// Delete implements [cache.ReflectorStore].
func (p *proofs) Delete(object any) error {
	p.follower.works()
	return p.ReflectorStore.Delete(object)
}

// Bookmark implements [cache.ReflectorBookmarkStore].
func (p *proofs) Bookmark(string) error {
	p.follower.works()
	return nil
}

// Replace implements [cache.ReflectorStore]. A list alone proves nothing: the right to watch may be
// missing.
func (p *proofs) Replace(all []any, version string) error {
	err := p.ReflectorStore.Replace(all, version)
	if p.follower.streams.Load() {
		p.follower.works()
	}
	return err
}
