package informer

import (
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

// namespaces is the [store] with the labels of all namespaces. It may be read concurrently.
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

func (n *namespaces) set(s *state) {
	set := labelsOf(s)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known[s.name.Name] = set
}

func (n *namespaces) remove(s *state) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, s.name.Name)
}

func (n *namespaces) replace(all []any) {
	known := make(map[string]labels.Set, len(all))
	for s := range statesOf(all) {
		known[s.name.Name] = labelsOf(s)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known = known
}

func labelsOf(s *state) labels.Set {
	set, r := labels.Set{}, rawjson.NewReader([]byte(s.labels))
	_ = r.Object(func(name []byte) error { // The API server sends valid labels.
		value, err := r.Text()
		set[string(name)] = value
		return err
	})
	return set
}
