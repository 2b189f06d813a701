package oracle

import "time"

// countLooks counts the reconciles for one object that its change led to, where no other change is near:
// those that read the change, and those before them that read too early.
//
// A webhook is called before the commit. An agent need not wait for the commit if the operator checks
// what its reconciles have read. One reconcile of each replica may then be too early.
func (h *History) countLooks(t target, c commit, near func(time.Time) bool) (early, after int) {
	reviewed := c.at.Add(-c.delay)
	for _, l := range h.looks[t] {
		switch {
		case !l.named || !near(l.at) || l.at.Before(reviewed):
		case l.version >= c.version:
			after++
		default:
			early++
		}
	}
	return early, after
}
