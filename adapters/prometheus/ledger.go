package prometheus

import (
	"sync"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// ledger keeps and exposes what is counted per manager. Vectors of client_golang would not do: a scrape reads them one after the other, and the
// fates of an event that moves meanwhile do not add up.
//
// Every account is balanced whatever is booked on it, because every change is. What the rules below secure is that no account
// has fewer than zero events pending: a manager's events stay on the account they were accepted on.
type ledger struct {
	descs   ledgerDescs
	max     int
	reasons vocabulary

	mu       sync.Mutex
	accounts map[core.Manager]*account
	// rest is the account of all managers that have none, nil until it is needed.
	rest *account
}

type ledgerDescs struct {
	accepted, delivered, coalesced, dropped, pending, reviews, owners, forwarded, contract, unknown *prom.Desc
}

func newLedger(f factory, opts Options) *ledger {
	l := &ledger{
		max:      opts.MaxManagers,
		accounts: make(map[core.Manager]*account),
		descs: ledgerDescs{
			accepted: f.desc("events_accepted_total",
				"Events offered to the outbox. Always the sum of delivered, coalesced, dropped and pending.", labelManager),
			delivered: f.desc("events_delivered_total", "Events acknowledged by the control plane.", labelManager),
			coalesced: f.desc("events_coalesced_total", "Events represented by another one with the same key.", labelManager),
			dropped:   f.desc("events_dropped_total", "Events given up, by reason.", labelManager, labelReason),
			pending:   f.desc("events_pending", "Events waiting to be sent or acknowledged.", labelManager),
			reviews:   f.desc("admission_reviews_total", "Admission reviews answered, by what was decided.", labelManager, labelDecision),
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

func (l *ledger) counted(manager core.Manager, change outbox.Counts) {
	l.mu.Lock()
	defer l.mu.Unlock()

	a := l.account(manager)
	if change.Accepted > 0 {
		a.leaving = false
	}

	a.add(change, &l.reasons)
	l.close(manager, a)
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

// forget closes a manager's account, at once or as soon as nothing is pending on it.
func (l *ledger) forget(manager core.Manager) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if a, ok := l.accounts[manager]; ok {
		a.leaving = true
		l.close(manager, a)
	}
}

func (l *ledger) close(manager core.Manager, a *account) {
	if a.leaving && a.pending == 0 {
		delete(l.accounts, manager)
	}
}

// account returns where to book on, and opens an account if there is room. While anything is pending on the rest, none is opened: it might be the
// manager's.
func (l *ledger) account(manager core.Manager) *account {
	if a, ok := l.accounts[manager]; ok {
		return a
	}

	if len(l.accounts) < l.max && (l.rest == nil || l.rest.pending == 0) && validManager(manager) {
		a := newAccount()
		l.accounts[manager] = a

		return a
	}

	if l.rest == nil {
		l.rest = newAccount()
	}

	return l.rest
}

// snapshot copies all accounts at one moment, by label value. A scrape writes from the copy: the lock is waited for in the path of admission.
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
	for _, desc := range []*prom.Desc{d.accepted, d.delivered, d.coalesced, d.dropped, d.pending, d.reviews, d.owners, d.forwarded, d.contract, d.unknown} {
		descs <- desc
	}
}

// Collect implements [prom.Collector].
func (l *ledger) Collect(metrics chan<- prom.Metric) {
	for manager, a := range l.snapshot() {
		metrics <- counter(l.descs.accepted, a.accepted, manager)
		metrics <- counter(l.descs.delivered, a.delivered, manager)
		metrics <- counter(l.descs.coalesced, a.coalesced, manager)
		metrics <- prom.MustNewConstMetric(l.descs.pending, prom.GaugeValue, float64(a.pending), manager)
		metrics <- counter(l.descs.unknown, a.unknown, manager)

		if a.contract != "" {
			metrics <- prom.MustNewConstMetric(l.descs.contract, prom.GaugeValue, 1, manager, a.contract)
		}

		countersBy(metrics, l.descs.dropped, a.dropped, manager)
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
