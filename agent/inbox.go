package agent

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
)

// Inbox takes the events of a [Source]. Its methods return at once and may be called concurrently.
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

// resyncAll requests a resync of every manager, because changes may have been missed. There is at
// most one resync every 30 s.
func (i *Inbox) resyncAll() { i.missed.report() }

// Proved records that the API server calls, or serves, the source for a manager now. Heartbeats
// report the last time.
func (i *Inbox) Proved(manager core.Manager) { i.proof.proved(manager, i.now()) }

// Failed counts a failed call of the API server, such as one that rejects the certificate.
// Heartbeats report the number.
func (i *Inbox) Failed() { i.proof.failures.Add(1) }

// proof is the evidence that the API server calls the source.
type proof struct {
	failures atomic.Int64

	mu   sync.Mutex
	last map[core.Manager]time.Time // at most defaults.MaxManagers
}

func (p *proof) proved(manager core.Manager, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.last[manager]; !known && len(p.last) >= defaults.MaxManagers {
		p.evict()
	}
	p.last[manager] = now
}

// evict removes the manager with the oldest proof. Strangers can invent names of managers.
func (p *proof) evict() {
	var oldest core.Manager
	for manager, last := range p.last {
		if oldest == "" || last.Before(p.last[oldest]) {
			oldest = manager
		}
	}
	delete(p.last, oldest)
}

func (p *proof) of(manager core.Manager) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last[manager]
}
