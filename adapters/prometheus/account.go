package prometheus

import "maps"

// account is what was counted for one manager.
type account struct {
	// reviews is by decision, owners by problem, forwarded by result.
	reviews, owners, forwarded map[string]int64
	// contract is what events travel with, empty before it is known; unknown counts the attempts that showed that the newest one is not known.
	contract string
	unknown  int64
}

func newAccount() *account {
	return &account{
		reviews:   make(map[string]int64),
		owners:    make(map[string]int64),
		forwarded: make(map[string]int64),
	}
}

func (a *account) clone() *account {
	c := *a
	c.reviews = maps.Clone(a.reviews)
	c.owners, c.forwarded = maps.Clone(a.owners), maps.Clone(a.forwarded)

	return &c
}
