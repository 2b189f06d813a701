package installation

import (
	"context"
	"crypto/sha256"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// largeAnswers is the number of answers of one call with the whole webhook configuration: it is
// read twice and written twice. Its managed fields, and the additions of platforms, weigh twice as
// much again.
const largeAnswers = 4 * 3

// budgets bound the costs of answers of runtimes. The weight of our own configuration does not
// count.
type budgets struct {
	*remote.Budgets

	last *atomic.Pointer[ownWeight] // of the newest watches: all runtimes have the same
}

// ownWeight is the weight of a webhook configuration of certain watches. It never changes.
type ownWeight struct {
	watches [sha256.Size]byte
	weight  int64
}

func newBudgets() budgets {
	return budgets{Budgets: remote.NewBudgets(), last: &atomic.Pointer[ownWeight]{}}
}

// beginCall returns a context with a budget for one call. Call end after it.
func (b *budgets) beginCall(ctx context.Context, r *renderer) (call context.Context, end func()) {
	call, end = b.Begin(ctx, remote.Use{Cluster: string(r.runtime.ID)})
	remote.Allow(call, largeAnswers*b.weighOwn(r))
	return call, end
}

// weighOwn builds a configuration for new watches only. It stores the weight of the configuration.
func (b *budgets) weighOwn(r *renderer) int64 {
	watches := sumOf(watch.DocumentOf(r.runtime.Watches))
	last := b.last.Load()
	if last != nil && last.watches == watches {
		return last.weight
	}
	if r.opts.Informer || len(r.runtime.Secret[material.CA]) == 0 {
		return 0 // The call writes no configuration.
	}

	heaviest := *r
	heaviest.ownNamespace = true
	configuration, err := heaviest.renderWebhooks()
	if err != nil {
		return 0 // The call reports it.
	}
	next := &ownWeight{watches: watches, weight: remote.Weigh(configuration)}
	b.last.Store(next)
	return next.weight
}
