package prometheus

import (
	"sync"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// ledger keeps the counters by manager that no other part keeps.
type ledger struct {
	descs ledgerDescs
	max   int

	mu       sync.Mutex
	accounts map[core.Manager]*account
	// rest is the account of the managers beyond the bound, nil until it is needed.
	rest *account
}

type ledgerDescs struct {
	reviews, owners, forwarded, contract, unknown *prom.Desc
}

func newLedger(f factory, opts Options) *ledger {
	l := &ledger{
		max:      opts.MaxManagers,
		accounts: make(map[core.Manager]*account),
		descs: ledgerDescs{
			reviews: f.desc("admission_reviews_total", "Admission reviews answered, by what was decided.", labelManager, labelDecision),
			owners: f.desc("admission_owner_problems_total",
				"Reviews of objects whose owner could not be told although it should.", labelManager, labelProblem),
			forwarded: f.desc("forward_events_total", "Events in attempts to forward them, repeated ones included, by result.", labelManager, labelResult),
			contract:  f.desc("contract_in_use", "Always 1, for the contract that events to the manager travel with.", labelManager, labelContract),
			unknown: f.desc("contract_unknown_total",
				"Attempts to forward whose answer says that the control plane does not know the contract.", labelManager),
		},
	}

	for _, manager := range opts.Managers {
		l.accounts[manager] = newAccount()
	}

	return l
}

func (l *ledger) reviewed(manager core.Manager, decision string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.account(manager).reviews[decision]++
}

func (l *ledger) ownerProblem(manager core.Manager, problem string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.account(manager).owners[problem]++
}

func (l *ledger) attempted(manager core.Manager, events map[string]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()

	a := l.account(manager)
	for result, n := range events {
		a.forwarded[result] += n
	}
}

func (l *ledger) contractInUse(manager core.Manager, contract string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.account(manager).contract = contract
}

func (l *ledger) contractUnknown(manager core.Manager) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.account(manager).unknown++
}

func (l *ledger) forget(manager core.Manager) {
	l.mu.Lock()
	defer l.mu.Unlock()

	delete(l.accounts, manager)
}

// account returns the manager's account, or the one that managers beyond the bound share.
func (l *ledger) account(manager core.Manager) *account {
	if a, ok := l.accounts[manager]; ok {
		return a
	}

	if len(l.accounts) < l.max && validManager(manager) {
		a := newAccount()
		l.accounts[manager] = a

		return a
	}

	if l.rest == nil {
		l.rest = newAccount()
	}

	return l.rest
}

// snapshot copies all accounts at one moment, by label value: admission waits for the lock.
func (l *ledger) snapshot() map[string]*account {
	l.mu.Lock()
	defer l.mu.Unlock()

	all := make(map[string]*account, len(l.accounts)+1)
	for manager, a := range l.accounts {
		all[string(manager)] = a.clone()
	}

	if l.rest != nil {
		all[Other] = l.rest.clone()
	}

	return all
}

// Describe implements [prom.Collector].
func (l *ledger) Describe(descs chan<- *prom.Desc) {
	d := l.descs
	for _, desc := range []*prom.Desc{d.reviews, d.owners, d.forwarded, d.contract, d.unknown} {
		descs <- desc
	}
}

// Collect implements [prom.Collector].
func (l *ledger) Collect(metrics chan<- prom.Metric) {
	for manager, a := range l.snapshot() {
		metrics <- counter(l.descs.unknown, a.unknown, manager)

		if a.contract != "" {
			metrics <- prom.MustNewConstMetric(l.descs.contract, prom.GaugeValue, 1, manager, a.contract)
		}

		countersBy(metrics, l.descs.reviews, a.reviews, manager)
		countersBy(metrics, l.descs.owners, a.owners, manager)
		countersBy(metrics, l.descs.forwarded, a.forwarded, manager)
	}
}

func countersBy(metrics chan<- prom.Metric, desc *prom.Desc, values map[string]int64, manager string) {
	for word, n := range values {
		metrics <- counter(desc, n, manager, word)
	}
}

func counter(desc *prom.Desc, value int64, labels ...string) prom.Metric {
	return prom.MustNewConstMetric(desc, prom.CounterValue, float64(value), labels...)
}
