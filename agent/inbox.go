package agent

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
)

// Inbox receives the events of a source: see [Parts]. The webhook or the informer calls it. Its
// methods return immediately and may be called concurrently.
type Inbox struct {
	outbox *outbox.Outbox
	missed *missedWatch
	proof  *proof
	now    func() time.Time
}

var _ core.Acceptor = (*Inbox)(nil)

// Accept implements [core.Acceptor].
func (i *Inbox) Accept(manager core.Manager, event core.WatchEvent) core.Outcome {
	return i.outbox.Accept(manager, event)
}

// resyncAll requests at most one resync of every manager in 30 s.
func (i *Inbox) resyncAll() { i.missed.reportMissed() }

// Proved notes that the API server currently calls, or serves, the source for a manager. Heartbeats
// report the time of the last call of Proved.
func (i *Inbox) Proved(manager core.Manager) { i.proof.noteProof(manager, i.now()) }

// Failed counts a failed call from the API server, such as a call in which the API server rejects
// the certificate. Heartbeats report the number.
func (i *Inbox) Failed() { i.proof.failures.Add(1) }

type proof struct {
	failures atomic.Int64

	mu   sync.Mutex
	last map[core.Manager]time.Time // at most defaults.MaxManagers
}

func (p *proof) noteProof(manager core.Manager, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if _, known := p.last[manager]; !known && len(p.last) >= defaults.MaxManagers {
		// Strangers can invent names of managers. The one with the oldest proof is removed.
		oldest := slices.MinFunc(slices.Collect(maps.Keys(p.last)), func(a, b core.Manager) int {
			return p.last[a].Compare(p.last[b])
		})
		delete(p.last, oldest)
	}

	p.last[manager] = now
}

func (p *proof) lastProof(manager core.Manager) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last[manager]
}
