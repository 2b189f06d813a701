package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/logwriter"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/simulation/oracle"
)

// agent is one life of one agent process: the library that cmd/agent runs, in the network of the world.
type agent struct {
	cluster  *cluster
	epoch    string
	contract contract.Version
	lines    *logwriter.Writer
	sink     *sink
	history  *oracle.Agent
	webhook  *server
	metrics  *server
	api      *http.Transport       // from the API server to the webhook
	paused   atomic.Pointer[pause] // nil while it runs
	resumed  atomic.Int64          // end of the last pause
	killed   atomic.Bool
	stop     context.CancelFunc
	ended    chan struct{}
}

// startAgent starts a life of the agent with that index, unless one runs.
func (c *cluster) startAgent(index int, replaced bool) {
	// A process ends at its start if its key material is broken. Kubernetes starts it again.
	for c.keys.isBroken() {
		sleep(time.Second)
	}
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
	a := c.runAgent(instance, fmt.Sprintf("%s-agent-%d-life-%d", c.plan.Name, index, life))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.agents[index] = a
	c.noteAgents()
	c.world.logf("agent %s starts", a.epoch)
}

// stopAgent stops an agent, gracefully or as in a crash.
func (c *cluster) stopAgent(index int, orderly bool) {
	c.mu.Lock()
	a := c.agents[index]
	c.agents[index] = nil
	if !orderly {
		c.noteAgents()
	}
	c.mu.Unlock()
	if a == nil {
		return
	}
	c.world.history.Mend(c.plan.Name, string(AgentPaused)) // Its successor is not paused.
	c.world.logf("agent %s stops, orderly %v", a.epoch, orderly)
	a.scrape()
	if orderly {
		a.stop()
		<-a.ended // It sends heartbeats until then, also after a pause.
		c.mu.Lock()
		defer c.mu.Unlock()
		c.noteAgents()
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

func (c *cluster) runAgent(instance, epoch string) *agent {
	ctx, stop := context.WithCancel(context.Background())
	a := &agent{
		cluster: c, epoch: epoch, contract: c.contract(), sink: newSink(c.world, epoch), stop: stop,
		webhook: newServer(epoch), metrics: newServer(epoch), ended: make(chan struct{}),
	}
	a.history = c.world.history.Agent(c.plan.Name, epoch, a.contract.Numbered())
	a.lines, a.api = logwriter.New(a.sink), a.transport("api", a.webhook)
	lib, err := agentlib.New(ctx, agentlib.Connection{Address: serverName}, a.parts(), a.options(instance))
	if err != nil {
		c.world.must(fmt.Errorf("agent %s: %w", epoch, err))
		close(a.ended)
		return a
	}
	go a.run(ctx, lib)
	return a
}

func (a *agent) run(ctx context.Context, lib *agentlib.Agent) {
	defer close(a.ended)
	logging, flush := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = a.lines.Start(logging) })
	running.Go(func() { a.audit(ctx) })
	if err := lib.Start(ctx); err != nil && !a.killed.Load() {
		a.cluster.world.logf("agent %s ended: %v", a.epoch, err)
	}
	flush()
	running.Wait()
	a.api.CloseIdleConnections()
	a.history.Ended(a.killed.Load(), a.sink.count())
}

// The ports of an agent.
const webhookPort, metricsPort = ":8443", ":2112"

func (a *agent) parts() agentlib.Parts {
	parts := agentlib.Parts{
		Tracing: a, Dial: a.dial, Now: a.now, ClientKeys: &a.cluster.keys, ServingKeys: a.cluster.world.pki.webhook,
		Listen: func(_ context.Context, _, address string) (net.Listener, error) {
			if address == webhookPort {
				return a.webhook, nil
			}
			return a.metrics, nil
		},
	}
	if a.cluster.plan.Canary {
		parts.Canary = lease{a.cluster, a}.write
	}
	if a.cluster.world.plan.hasAny(WatchRemoved) {
		parts.Configuration = a.readConfiguration
	}
	if a.cluster.plan.Keeps {
		parts.OwnConfiguration = keptBy{a.cluster.kept, a}
	}
	if a.cluster.world.plan.NATS {
		parts.Transport = a.natsTransport()
	}
	return parts
}

func (a *agent) readConfiguration(ctx context.Context) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	a.awaitResume()
	return a.cluster.configuration(), ctx.Err()
}

func (a *agent) options(instance string) agentlib.Options {
	c := a.cluster
	opts := agentlib.Options{
		Contract: a.contract, Managers: c.managers(), Instance: instance,
		OtherManagers:  c.world.plan.hasAny(ManagerUnknown, ManagersInvented),
		ControlPlane:   agentlib.ControlPlane{Protocol: c.plan.Protocol},
		Webhook:        agentlib.Webhook{Address: webhookPort},
		MetricsAddress: metricsPort,
		Outbox:         agentlib.Outbox{MaxKeys: c.plan.MaxKeys, Random: newRandom(c.world.plan.Seed, a.epoch)},
		Logger:         slog.New(slog.NewJSONHandler(a.lines, nil)),
	}
	opts.Webhook.ClientCAs = c.callers.bundle
	if c.plan.Keeps {
		c.keep(&opts)
	}
	if c.plan.Rare {
		opts.Outbox.HeartbeatInterval = rare
	}
	if c.plan.Fallback {
		opts.ControlPlane.Fallback = contract.V2
	}
	return opts
}

// rare is the interval of heartbeats where the listener sees the connections of the runtime.
const rare = 5 * time.Minute

// managers returns the configured managers.
func (c *cluster) managers() []core.Manager {
	if c.plan.Learns {
		return nil
	}
	return c.world.plan.Managers
}

var errKilled = errors.New("the process was killed")

// Webhook implements Tracing of [agentlib.Parts].
func (*agent) Webhook(next http.Handler) http.Handler { return next }

// Acceptor counts the events of the webhook. It implements Tracing of [agentlib.Parts].
func (a *agent) Acceptor(next core.Acceptor) core.Acceptor {
	return core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		a.history.Offered(manager, event.Resync)
		return next.Accept(manager, event)
	})
}

// Forwarder gives the oracle a copy of each batch. It implements Tracing of [agentlib.Parts].
func (a *agent) Forwarder(next core.Forwarder) core.Forwarder {
	return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		a.awaitResume()
		if a.killed.Load() {
			return errKilled
		}
		a.history.Sent(manager, batch)
		started := time.Now()
		err := next.Forward(ctx, manager, batch)
		a.history.Attempted(manager, batch, started, err)
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

func (a *agent) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if a.killed.Load() {
		return nil, refused()
	}
	conn, err := a.own(a.cluster.world.network.dial(ctx, a.cluster.plan.Name, serverName))
	if near, ok := conn.(*end); ok { // The default of httpmtls.
		a.history.Connected()
		near.probe(5*time.Second, 6)
	}
	return conn, err
}

// own makes a connection belong to the process, so that the connection ends with the process.
func (a *agent) own(conn net.Conn, err error) (net.Conn, error) {
	if near, ok := conn.(*end); ok {
		near.link.process = a.epoch
	}
	return conn, err
}

// transport returns a transport from a client to a port of the agent.
func (a *agent) transport(client string, to *server) *http.Transport {
	return &http.Transport{
		TLSClientConfig: a.cluster.apiServer(nil), TLSHandshakeTimeout: webhookTimeout,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return a.own(a.cluster.world.network.connect(client, to, conditions{}))
		},
	}
}

// kill ends the effects of the process: its connections break, and it opens no others.
func (a *agent) kill() {
	a.killed.Store(true)
	a.history.Killed()
	_ = a.webhook.Close()
	_ = a.metrics.Close()
	a.cluster.world.network.reset(func(l *link) bool { return l.process == a.epoch })
}

const auditEvery = 30 * time.Second

// audit gives the metrics to the oracle every 30 s.
func (a *agent) audit(ctx context.Context) {
	for tick := time.NewTicker(auditEvery); ; {
		select {
		case <-tick.C:
			a.scrape()
		case <-ctx.Done():
			tick.Stop()
			return
		}
	}
}

// scrape reads the metrics, unless the process is paused.
func (a *agent) scrape() {
	if a.paused.Load() != nil || a.killed.Load() {
		return
	}
	transport := a.transport("prometheus", a.metrics)
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), webhookTimeout)
	defer cancel()
	a.history.Scrapes()
	text, err := lab.GetWith(ctx, &http.Client{Transport: transport}, "http://agent/metrics")
	if err != nil {
		return // It is paused or stopped meanwhile.
	}
	for manager, account := range readAccounts(text) {
		a.history.Balance(manager, account)
	}
}

var fate = regexp.MustCompile(`(?m)^runtime_watcher_agent_events_(\w+)\{manager="([^"]*)".*\} (\S+)$`)

// readAccounts reads the fates of events from the text of metrics.
func readAccounts(text []byte) map[core.Manager]oracle.Account {
	accounts := make(map[core.Manager]oracle.Account)
	for _, found := range fate.FindAllStringSubmatch(string(text), -1) {
		value, _ := strconv.ParseFloat(found[3], 64) // It is a number.
		manager := core.Manager(found[2])
		if accounts[manager] == nil {
			accounts[manager] = make(oracle.Account)
		}
		accounts[manager][found[1]] += int64(value)
	}
	return accounts
}

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
