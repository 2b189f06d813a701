package fleet

import "time"

// clock compares the clock of an agent with the clock of this process, by the times in heartbeats.
type clock struct {
	// last and before are how far the last two heartbeats were ahead of this process.
	last, before time.Duration
	known        bool
}

// noteTime takes the time at which a heartbeat was made. It is zero if the heartbeat does not say.
func (c *clock) noteTime(made, now time.Time) {
	if made.IsZero() {
		return
	}

	ahead := made.Sub(now)
	if !c.known {
		c.last = ahead
		c.known = true
	}

	c.before = c.last
	c.last = ahead
}

// skew is the skew of the less delayed heartbeat, because a delay only makes a heartbeat older.
func (c *clock) skew() time.Duration {
	return max(c.last, c.before).Round(time.Second)
}
