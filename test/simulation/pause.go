package simulation

import (
	"time"
)

const (
	// webhookTimeout is the timeout of the webhook.
	webhookTimeout = 2 * time.Second
	// noticedPause is the shortest pause after which an agent requests a resync.
	noticedPause = time.Second
)

// pauseAgent pauses a process until the fault ends. Its requests and their answers wait, and it answers no review.
// Its timers run on. After the pause it requests a resync, as the real one does.
func (c *cluster) pauseAgent(f Fault) (resume func()) {
	c.mu.Lock()
	a := c.agents[f.Index]
	c.mu.Unlock()

	if a == nil || !a.paused.CompareAndSwap(nil, &pause{until: c.world.began.Add(f.At + f.For), over: make(chan struct{})}) {
		return nil
	}

	mend := func() {}
	if c.plan.Agents == 1 {
		mend = c.world.history.Break(c.plan.Name, string(AgentPaused))
	}

	held := a.paused.Load()
	c.world.network.hold(a.epoch, held.until)

	return func() {
		if f.For >= noticedPause && !a.killed.Load() {
			a.outbox.Resync()
		}

		a.paused.Store(nil)
		close(held.over)
		mend()
	}
}

// pause is a time in which a process does not run.
type pause struct {
	until time.Time
	over  chan struct{}
}

// awaitResume blocks while the process is paused.
func (a *agent) awaitResume() {
	if held := a.paused.Load(); held != nil {
		<-held.over
	}
}

// answers reports whether an agent answers a call of the API server. It blocks while the process is paused, but not
// beyond the timeout of the webhook.
func (a *agent) answers() bool {
	held := a.paused.Load()
	if held == nil {
		return true
	}

	timeout := time.NewTimer(webhookTimeout)
	defer timeout.Stop()

	select {
	case <-held.over:
		return true
	case <-timeout.C:
		return false
	}
}
