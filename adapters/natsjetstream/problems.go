package natsjetstream

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// problems contains the failure of each manager with messages that cannot be taken. It is safe for
// concurrent use.
type problems struct {
	mu sync.Mutex
	of map[core.Manager]error
}

// setProblem reports whether a problem began, or has another reason than before.
func (p *problems) setProblem(manager core.Manager, err error) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	before, had := p.of[manager]
	if p.of == nil {
		p.of = map[core.Manager]error{}
	}

	p.of[manager] = err
	return !had || core.ReasonOf(classify("", before)) != core.ReasonOf(classify("", err))
}

// clearProblem reports whether there was a problem.
func (p *problems) clearProblem(manager core.Manager) (had bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	_, had = p.of[manager]
	delete(p.of, manager)
	return had
}

// asError names the problem of each manager, in the words of the server.
func (p *problems) asError() error {
	p.mu.Lock()
	defer p.mu.Unlock()

	var all []error
	for _, manager := range slices.Sorted(maps.Keys(p.of)) {
		all = append(all, fmt.Errorf("no messages for %s: %w", manager, p.of[manager]))
	}

	return errors.Join(all...)
}
