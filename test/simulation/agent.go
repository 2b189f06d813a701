package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/admission/canary"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/test/simulation/oracle"
)

// agent is one life of one agent process, with the same parts as the real one.
type agent struct {
	cluster  *cluster
	instance string
	epoch    string
	webhook  http.Handler
	outbox   *outbox.Outbox
	canary   *canary.Canary
	contract contract.Version
	paused   atomic.Pointer[pause] // nil while it runs
	closers  []func() error
	history  *oracle.Agent
	sink     *sink

	killed     atomic.Bool
	lastReview atomic.Int64
	stop       context.CancelFunc
	running    sync.WaitGroup
	ended      chan struct{}
}

// startAgent starts a life of the agent with that index, unless one runs.
func (c *cluster) startAgent(index int, replaced bool) {
	c.mu.Lock()
	if c.agents[index] != nil || c.world.over() {
		c.mu.Unlock()

		return
	}

	c.lives[index]++
	life := c.lives[index]
	c.mu.Unlock()

	instance := fmt.Sprintf("%s-agent-%d", c.plan.Name, index)
	if replaced {
		instance += fmt.Sprintf("-%d", life)
	}

	a := c.newAgent(instance, fmt.Sprintf("%s-agent-%d-life-%d", c.plan.Name, index, life))
	a.start()

	c.mu.Lock()
	defer c.mu.Unlock()

	c.agents[index] = a
	c.noteAgents()
	c.world.logf("agent %s starts", a.epoch)
}

// stopAgent stops an agent, in good order or as a crash.
func (c *cluster) stopAgent(index int, orderly bool) {
	c.mu.Lock()
	a := c.agents[index]
	c.agents[index] = nil
	c.noteAgents()
	c.mu.Unlock()

	if a == nil {
		return
	}

	c.world.history.Mend(c.plan.Name, string(AgentPaused)) // Its successor is not paused.
	c.world.logf("agent %s stops, orderly %v", a.epoch, orderly)

	if orderly {
		a.stop()
		<-a.ended

		return
	}

	a.kill()
	a.stop()
	c.world.tasks.Go(func() { <-a.ended }) // Its goroutines end without an effect.
}

// noteAgents records whether an agent runs. The caller holds the lock.
func (c *cluster) noteAgents() {
	for _, a := range c.agents {
		if a != nil {
			c.world.history.Mend(c.plan.Name, "no agent")

			return
		}
	}

	c.world.history.Break(c.plan.Name, "no agent")
}

func (c *cluster) newAgent(instance, epoch string) *agent {
	a := &agent{
		cluster: c, instance: instance, epoch: epoch, contract: c.contract(), sink: newSink(c.world, epoch), ended: make(chan struct{}),
	}
	a.history = c.world.history.Agent(c.plan.Name, epoch, a.contract.Numbered())

	var err error

	a.outbox, err = outbox.New(a.transport(), a.outboxOptions())
	c.world.must(err)

	a.webhook, err = admission.New(a.acceptor(), admission.Options{
		RequireOwner: a.contract.NeedsOwner(), MaxBody: maxBody, MaxBodies: maxBodies, Logger: slog.New(a.sink),
		Hooks: admission.Hooks{Reviewed: func(core.Manager, string, time.Duration) { a.lastReview.Store(time.Now().UnixNano()) }},
	})
	c.world.must(err)

	if c.plan.Canary {
		a.canary, err = canary.New(lease{c, a}, canary.Options{Recovered: a.outbox.Resync, Logger: slog.New(a.sink)})
		c.world.must(err)
	}

	return a
}

// acceptor counts the events of the change source.
func (a *agent) acceptor() core.Acceptor {
	return core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		a.history.Offered(manager)

		return a.outbox.Accept(manager, event)
	})
}

func (a *agent) outboxOptions() outbox.Options {
	plan := a.cluster.plan
	random := newRandom(a.cluster.world.plan.Seed, a.epoch)

	opts := outbox.Options{
		MaxKeys: plan.MaxKeys, MaxBatch: a.contract.MaxEvents(), ResyncFirst: !plan.NoFirstResync, ResyncOwners: a.contract.NeedsOwner(),
		Managers: a.cluster.managers(), Random: random, Logger: slog.New(a.sink),
		Hooks: outbox.Hooks{Attempted: func(manager core.Manager, events int, _ time.Duration, err error) {
			a.history.Attempted(manager, events, err)
		}},
	}

	if a.contract.Numbered() {
		opts.Epoch, opts.Heartbeat = a.epoch, a.heartbeat
	}

	return opts
}

// managers returns the configured managers.
func (c *cluster) managers() []core.Manager {
	if c.plan.Learns {
		return nil
	}

	return c.world.plan.Managers
}

const (
	// maxBody and maxBodies bound the memory for reviews, far below the defaults.
	maxBody, maxBodies = 1 << 20, 2 << 20
	// manyCAs and longError exceed the limits of a heartbeat.
	manyCAs, longError = 80, 40
)

func (a *agent) heartbeat(core.Manager) core.Heartbeat {
	key, _ := a.cluster.keys.Material()
	beat := core.Heartbeat{
		Instance: a.instance, CertificateFingerprint: key.Fingerprint, CertificateExpiry: key.NotAfter,
		CAFingerprints: key.RootFingerprints,
	}

	if a.cluster.plan.ManyCAs {
		beat.CAFingerprints = slices.Repeat(beat.CAFingerprints, manyCAs)
	}

	if err := a.cluster.keys.err(); err != nil {
		beat.KeyMaterialError = strings.Repeat(err.Error()+" ", longError)
	}

	if a.canary != nil {
		beat.Canary = a.canary.State()
	}

	if at := a.lastReview.Load(); at != 0 {
		beat.LastReview = time.Unix(0, at)
	}

	return beat
}

var errKilled = errors.New("the process was killed")

// transport returns the real forwarder. The oracle gets a copy of each batch.
func (a *agent) transport() core.Forwarder {
	plan := a.cluster.plan

	forwarder := a.speak(a.contract)
	if a.contract.Numbered() {
		var older core.Forwarder
		if plan.Fallback {
			older = a.speak(contract.V2)
		}

		fallback, err := httpmtls.NewFallback(forwarder, older, httpmtls.FallbackOptions{})
		a.cluster.world.must(err)

		forwarder = fallback
	}

	return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		a.awaitResume()

		if a.killed.Load() {
			return errKilled
		}

		a.history.Sent(manager, batch)

		err := forwarder.Forward(ctx, manager, batch)
		a.cluster.world.logf("%s sends %s to %s: %v", a.epoch, summary(&batch), manager, err)

		return err
	})
}

func summary(batch *core.Batch) string {
	var text strings.Builder

	fmt.Fprintf(&text, "%d events", len(batch.Events))

	for i := range batch.Events {
		event := &batch.Events[i]
		fmt.Fprintf(&text, " %d:%s %s", event.Sequence, event.KindWord(), event.Watched.Name)
	}

	if batch.Heartbeat != nil {
		fmt.Fprintf(&text, " heartbeat %d leaving %v", batch.Heartbeat.Number, batch.Heartbeat.Leaving)
	}

	return text.String()
}

func (a *agent) speak(version contract.Version) core.Forwarder {
	forwarder, err := httpmtls.NewForwarder(&a.cluster.keys, serverName, version, httpmtls.Options{
		Protocol: a.cluster.plan.Protocol, DialContext: a.dial, Logger: slog.New(a.sink),
	})
	a.cluster.world.must(err)

	a.closers = append(a.closers, forwarder.Close)

	return forwarder
}

func (a *agent) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if a.killed.Load() {
		return nil, refused()
	}

	conn, err := a.cluster.world.network.dial(ctx, a.cluster.plan.Name, serverName)
	if near, ok := conn.(*end); ok {
		near.link.process = a.epoch
	}

	return conn, err
}

func (a *agent) start() {
	ctx, cancel := context.WithCancel(context.Background())
	a.stop = cancel

	a.running.Go(func() { a.cluster.world.must(a.outbox.Start(ctx)) })
	a.running.Go(func() { a.audit(ctx) })

	if a.canary != nil {
		a.running.Go(func() { _ = a.canary.Start(ctx) })
	}

	go func() {
		a.running.Wait()

		for _, closeIt := range a.closers {
			_ = closeIt()
		}

		a.record()
		a.history.Ended(a.killed.Load(), a.sink.count())
		close(a.ended)
	}()
}

// kill ends the effects of the process: its connections break, and it opens no others.
func (a *agent) kill() {
	a.killed.Store(true)
	a.cluster.world.network.reset(func(l *link) bool { return l.process == a.epoch })
}

const auditEvery = 10 * time.Second

// audit gives the accounts to the oracle every 10 s.
func (a *agent) audit(ctx context.Context) {
	ticker := time.NewTicker(auditEvery)
	defer ticker.Stop()

	for {
		select {
		case <-ticker.C:
			a.record()
		case <-ctx.Done():
			return
		}
	}
}

func (a *agent) record() {
	for manager, c := range a.outbox.Counts() {
		var dropped int64
		for _, n := range c.Dropped {
			dropped += n
		}

		a.history.Balance(manager, oracle.Account{
			Accepted: c.Accepted, Delivered: c.Delivered, Coalesced: c.Coalesced, Dropped: dropped, Pending: c.Pending,
		})
	}
}
