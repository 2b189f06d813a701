package informer

import (
	"iter"

	"k8s.io/client-go/tools/cache"
)

// store takes the states of a watch. One goroutine uses it.
type store interface {
	// set takes the present state of an object.
	set(s *state)
	// remove takes the last state of an object that is gone.
	remove(s *state)
	// replace takes a complete list of states.
	replace(all []any)
}

func statesOf(all []any) iter.Seq[*state] {
	return func(yield func(*state) bool) {
		for _, object := range all {
			if s, ok := object.(*state); ok && !yield(s) {
				return
			}
		}
	}
}

// proofs gives objects to the store of a follower. It reports that the API server serves the watch.
type proofs struct{ *follower }

var (
	_ cache.ReflectorStore         = proofs{}
	_ cache.ReflectorBookmarkStore = proofs{}
)

func (p proofs) Add(object any) error {
	p.works()
	if s, ok := object.(*state); ok {
		p.store.set(s)
	}
	return nil
}

func (p proofs) Update(object any) error { return p.Add(object) }

func (p proofs) Delete(object any) error {
	p.works()
	if s, ok := object.(*state); ok {
		p.store.remove(s)
	}
	return nil
}

func (p proofs) Bookmark(string) error {
	p.works()
	return nil
}

// Replace implements [cache.ReflectorStore]. A list alone proves nothing: the right to watch may be
// missing.
func (p proofs) Replace(all []any, _ string) error {
	p.store.replace(all)
	if p.streams.Load() {
		p.works()
	}
	return nil
}

func (proofs) Resync() error { return nil }
