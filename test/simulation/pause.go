package simulation

import "time"

// webhookTimeout is the timeout of the webhook.
const webhookTimeout = 2 * time.Second

// pauseAgent pauses a process until the fault ends: its clock stands still, its requests and answers wait, and so do
// those to it. Its timers run on.
func (c *cluster) pauseAgent(f Fault) (resume func()) {
	c.mu.Lock()
	a := c.agents[f.Index]
	c.mu.Unlock()
	if a == nil || !a.paused.CompareAndSwap(nil, &pause{over: make(chan struct{})}) {
		return nil
	}
	mend := func() {}
	if c.plan.Agents == 1 {
		mend = c.world.history.Break(c.plan.Name, string(AgentPaused))
	}
	c.world.network.hold(a.epoch, c.world.began.Add(f.At+f.For))
	return func() {
		a.resumed.Store(time.Now().UnixNano())
		close(a.paused.Swap(nil).over)
		mend()
	}
}

// pause is a time in which a process does not run.
type pause struct{ over chan struct{} }

// awaitResume blocks while the process is paused.
func (a *agent) awaitResume() {
	if held := a.paused.Load(); held != nil {
		<-held.over
	}
}

// now is the clock of the process.
func (a *agent) now() time.Time {
	a.awaitResume()
	return time.Now()
}

// ranSince reports whether the process was not paused since a time.
func (a *agent) ranSince(t time.Time) bool {
	return a.paused.Load() == nil && a.resumed.Load() < t.UnixNano()
}
