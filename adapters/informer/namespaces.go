package informer

import (
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

// namespaces is the [cache.ReflectorStore] with the labels of all namespaces. It may be read
// concurrently.
type namespaces struct {
	mu    sync.RWMutex
	known map[string]labels.Set
}

// selects reports whether a selector matches a namespace. A namespace that is not known counts as
// selected: a superfluous event costs one look, and a missing one is lost.
func (n *namespaces) selects(selector labels.Selector, namespace string) bool {
	if namespace == "" {
		return true
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	set, known := n.known[namespace]
	return !known || selector.Matches(set)
}

// Add implements [cache.ReflectorStore].
func (n *namespaces) Add(object any) error {
	if s, ok := object.(*state); ok {
		set := labelsOf(s)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.known[s.name.Name] = set
	}
	return nil
}

// Update implements [cache.ReflectorStore].
func (n *namespaces) Update(object any) error { return n.Add(object) }

// Delete implements [cache.ReflectorStore].
func (n *namespaces) Delete(object any) error {
	if s, ok := object.(*state); ok {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.known, s.name.Name)
	}
	return nil
}

// Replace implements [cache.ReflectorStore].
func (n *namespaces) Replace(all []any, _ string) error {
	known := make(map[string]labels.Set, len(all))
	for _, object := range all {
		if s, ok := object.(*state); ok {
			known[s.name.Name] = labelsOf(s)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known = known
	return nil
}

// Resync implements [cache.ReflectorStore].
func (*namespaces) Resync() error { return nil }

func labelsOf(s *state) labels.Set {
	set, r := labels.Set{}, rawjson.NewReader([]byte(s.labels))
	_ = r.Object(func(name []byte) error { // The API server sends valid labels.
		value, err := r.Text()
		set[string(name)] = value
		return err
	})
	return set
}
