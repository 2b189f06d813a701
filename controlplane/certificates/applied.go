package certificates

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// applyAgainAfter is the time after which an unchanged Certificate is applied again. Changes of its
// spec by others are corrected at once, and those of its labels and annotations then.
const applyAgainAfter = time.Hour

// applied remembers the Certificates that were applied, by name, so that unchanged ones cost no
// write. The zero value is ready.
type applied struct {
	mu    sync.Mutex
	known map[string]appliedOnce
}

type appliedOnce struct {
	sum        [sha256.Size]byte // of the applied object
	uid        types.UID
	generation int64
	at         time.Time
}

// note is called after a Certificate was read, and before it is applied. The generation of an
// existing one that is correct does not change by that.
func (a *applied) note(name string, once appliedOnce) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known = make(map[string]appliedOnce)
	}
	a.known[name] = once
}

func (a *applied) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, name)
}

// has reports whether a Certificate was applied a while ago, and has not changed since.
func (a *applied) has(name string, now appliedOnce) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, ok := a.known[name]
	return ok && now.at.Sub(last.at) < applyAgainAfter &&
		last.sum == now.sum && last.uid == now.uid && last.generation == now.generation
}

// applyPair applies a Certificate, unless that would change nothing.
func (c *Certificates) applyPair(ctx context.Context, p *pair) error {
	text, err := json.Marshal(p.wanted)
	if err != nil {
		return err
	}
	now := appliedOnce{sum: sha256.Sum256(text), at: c.opts.Now()}
	if p.existing != nil {
		now.uid, now.generation = p.existing.UID, p.existing.Generation
	}
	if p.existing != nil && c.applied.has(p.wanted.Name, now) {
		return nil
	}
	if err := c.apply(ctx, p.wanted); err != nil {
		return err
	}
	c.applied.note(p.wanted.Name, now)
	return nil
}
