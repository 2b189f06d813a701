package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// manager is the name of the operator.
const manager core.Manager = "lab-operator"

// agent is the agent of one runtime: cmd/agent without its webhook. It may be started again after a
// kill.
type agent struct {
	number int
	name   string
	link   *link
	keys   keySet
	shared *agents

	mu      sync.Mutex
	outbox  *outbox.Outbox
	forward *httpmtls.Forwarder
	kill    context.CancelFunc
	ended   chan struct{}
}

// agents has the parts that all agents share.
type agents struct {
	oracle    *oracle
	protocol  httpmtls.Protocol
	heartbeat time.Duration
	// acks are the durations of requests that carried events and were acknowledged.
	acks samples
	// dials counts attempts to connect, failures the requests that failed, and lines the log lines.
	dials, failures, lines atomic.Int64
}

func nameOf(number int) string { return fmt.Sprintf("rt-%05d", number) }

// start starts the agent with a new outbox, which has a new epoch.
func (a *agent) start() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	log := slog.New(lineCounter{&a.shared.lines})
	forward, err := httpmtls.NewForwarder(&a.keys, serverName, contract.V3, httpmtls.Options{
		Protocol: a.shared.protocol, DialContext: a.link.dial, Logger: log,
		Hooks: httpmtls.Hooks{Connected: func(error) { a.shared.dials.Add(1) }},
	})
	if err != nil {
		return err
	}
	box, err := outbox.New(forward, outbox.Options{
		Epoch: rand.Text(), Managers: []core.Manager{manager}, ResyncFirst: true, MaxBatch: contract.V3.MaxEvents(),
		HeartbeatInterval: a.shared.heartbeat, Heartbeat: a.heartbeat, DrainTimeout: -1,
		Hooks: outbox.Hooks{Attempted: a.shared.attempted}, Logger: log,
	})
	if err != nil {
		return err
	}
	a.run(box, forward)
	return nil
}

// run starts the goroutine of the outbox. The caller holds the lock.
func (a *agent) run(box *outbox.Outbox, forward *httpmtls.Forwarder) {
	ctx, kill := context.WithCancel(context.Background())
	ended := make(chan struct{})
	a.outbox, a.forward, a.kill, a.ended = box, forward, kill, ended
	go func() {
		defer close(ended)
		_ = box.Start(ctx) // It fails for a second start only.
		_ = forward.Close()
	}()
}

// stop ends the agent as SIGKILL does: pending events are lost.
func (a *agent) stop() {
	a.mu.Lock()
	kill, ended := a.kill, a.ended
	a.mu.Unlock()
	if kill == nil {
		return
	}
	kill()
	a.link.cut()
	<-ended
}

// change is a change of one of the runtime's objects at this moment.
func (a *agent) change(object int) {
	a.shared.oracle.changed(a.number)
	a.box().Accept(manager, event(object))
}

func (a *agent) box() *outbox.Outbox {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.outbox
}

func event(object int) core.WatchEvent {
	return core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "object-" + strconv.Itoa(object)},
		WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Operation:  core.OperationUpdate, Field: core.FieldSpec, Generation: 1, Time: time.Now(),
	}
}

// heartbeat returns a heartbeat as cmd/agent sends it with a canary.
func (a *agent) heartbeat(core.Manager) core.Heartbeat {
	material := a.keys.present.Load()
	return core.Heartbeat{
		Instance: "runtime-watcher-agent-0", Version: "v0.0.0-lab", ConfigHash: "6b86b273ff34fce1",
		Canary: core.CanaryAlive, CertificateFingerprint: material.Fingerprint,
		CertificateExpiry: material.NotAfter, CAFingerprints: material.RootFingerprints,
	}
}

func (s *agents) attempted(_ core.Manager, events int, took time.Duration, err error) {
	switch {
	case err != nil:
		s.failures.Add(1)
	case events > 0:
		s.acks.add(took)
	}
}

// lineCounter is a [slog.Handler] that counts lines.
type lineCounter struct{ lines *atomic.Int64 }

// Enabled is true from info on, as in cmd/agent.
func (lineCounter) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle counts the line.
func (c lineCounter) Handle(context.Context, slog.Record) error {
	c.lines.Add(1)
	return nil
}

// WithAttrs returns the handler.
func (c lineCounter) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup returns the handler.
func (c lineCounter) WithGroup(string) slog.Handler { return c }
