package prometheus

import (
	"maps"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// account is what was counted for one manager.
type account struct {
	accepted, delivered, coalesced, pending int64
	// dropped is by reason, reviews by decision, owners by problem, forwarded by result.
	dropped, reviews, owners, forwarded map[string]int64
	// contract is what events travel with, empty before it is known; unknown counts the attempts that showed that the newest one is not known.
	contract string
	unknown  int64
	// leaving is whether the manager was forgotten and only its pending events keep the account open.
	leaving bool
}

// newAccount has the outbox's own reasons from the start: a sum over reasons that do not exist is no zero in PromQL, but nothing.
func newAccount() *account {
	return &account{
		dropped:   map[string]int64{outbox.ReasonOverflow: 0, outbox.ReasonShutdown: 0},
		reviews:   make(map[string]int64),
		owners:    make(map[string]int64),
		forwarded: make(map[string]int64),
	}
}

func (a *account) clone() *account {
	c := *a
	c.dropped, c.reviews = maps.Clone(a.dropped), maps.Clone(a.reviews)
	c.owners, c.forwarded = maps.Clone(a.owners), maps.Clone(a.forwarded)

	return &c
}

func (a *account) add(change outbox.Counts, reasons *vocabulary) {
	a.accepted += change.Accepted
	a.delivered += change.Delivered
	a.coalesced += change.Coalesced
	a.pending += change.Pending

	for reason, n := range change.Dropped {
		a.dropped[reasons.value(reason)] += n
	}
}
