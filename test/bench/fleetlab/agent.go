package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// manager is the name of the operator.
const manager core.Manager = "lab-operator"

// agent is the agent of one runtime: the library that cmd/agent runs, with the lab as its change
// source. It may be started again after a kill.
type agent struct {
	number int
	name   string
	link   *link
	keys   keySet
	shared *agents

	mu    sync.Mutex
	inbox *agentlib.Inbox
	kill  context.CancelFunc
	ended chan struct{}
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

// start starts the agent with a new epoch, and returns when it takes changes.
func (a *agent) start() error {
	ctx, kill := context.WithCancel(context.Background())
	started, ended := make(chan *agentlib.Inbox), make(chan struct{})
	lib, err := agentlib.New(ctx, a.parts(started), a.options())
	if err != nil {
		kill()
		return err
	}
	go func() {
		defer close(ended)
		_ = lib.Start(ctx) // A kill loses what is pending.
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inbox, a.kill, a.ended = <-started, kill, ended
	return nil
}

func (a *agent) parts(started chan<- *agentlib.Inbox) agentlib.Parts {
	return agentlib.Parts{
		Source: func(ctx context.Context, inbox *agentlib.Inbox) error {
			inbox.Proved(manager)
			started <- inbox
			a.prove(ctx, inbox)
			return nil
		},
		Tracing: a.shared, ClientKeys: &a.keys, Dial: a.dial,
		Listen: func(context.Context, string, string) (net.Listener, error) { return newSilentListener(), nil },
	}
}

// prove tells the control plane that the source works, as an informer does.
func (a *agent) prove(ctx context.Context, inbox *agentlib.Inbox) {
	for sleep(ctx, a.shared.heartbeat/2) == nil {
		inbox.Proved(manager)
	}
}

func (a *agent) options() agentlib.Options {
	return agentlib.Options{
		Managers: []core.Manager{manager}, Instance: "runtime-watcher-agent-0", Version: "v0.0.0-lab",
		ConfigHash:      "6b86b273ff34fce1",
		ControlPlane:    agentlib.ControlPlane{Address: serverName, Protocol: a.shared.protocol},
		Outbox:          outbox.Options{HeartbeatInterval: a.shared.heartbeat},
		ShutdownTimeout: time.Microsecond, // It is killed, and not stopped.
		Logger:          slog.New(lineCounter{&a.shared.lines}),
	}
}

func (a *agent) dial(ctx context.Context, network, address string) (net.Conn, error) {
	a.shared.dials.Add(1)
	return a.link.dial(ctx, network, address)
}

// stop ends the agent as SIGKILL does: pending events are lost.
func (a *agent) stop() {
	a.mu.Lock()
	kill, ended := a.kill, a.ended
	a.mu.Unlock()
	if kill == nil {
		return
	}
	a.link.kill()
	kill()
	<-ended
	a.link.revive()
}

// change is a change of one of the runtime's objects at this moment.
func (a *agent) change(object int) {
	a.shared.oracle.changed(a.number)
	a.mu.Lock()
	inbox := a.inbox
	a.mu.Unlock()
	inbox.Accept(manager, event(object))
}

func event(object int) core.WatchEvent {
	return core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "object-" + strconv.Itoa(object)},
		WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Operation:  core.OperationUpdate, Field: core.FieldSpec, Generation: 1, Time: time.Now(),
	}
}

// forwarder returns one with the key material and the link of the agent, to send around its outbox.
func (a *agent) forwarder() (*httpmtls.Forwarder, error) {
	return httpmtls.NewForwarder(&a.keys, serverName, contract.V3, httpmtls.Options{
		Protocol: a.shared.protocol, DialContext: a.dial,
	})
}

// Webhook implements [agentlib.Tracing].
func (*agents) Webhook(next http.Handler) http.Handler { return next }

// Acceptor implements [agentlib.Tracing].
func (*agents) Acceptor(next core.Acceptor) core.Acceptor { return next }

// Forwarder measures each attempt. It implements [agentlib.Tracing].
func (s *agents) Forwarder(next core.Forwarder) core.Forwarder {
	return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		began := time.Now()
		err := next.Forward(ctx, manager, batch)
		switch {
		case err != nil:
			s.failures.Add(1)
		case len(batch.Events) > 0:
			s.acks.add(time.Since(began))
		}
		return err
	})
}

// silentListener has no connections.
type silentListener struct {
	closed chan struct{}
	once   sync.Once
}

func newSilentListener() *silentListener { return &silentListener{closed: make(chan struct{})} }

// Accept implements [net.Listener].
func (l *silentListener) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

// Close implements [net.Listener].
func (l *silentListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements [net.Listener].
func (*silentListener) Addr() net.Addr { return &net.TCPAddr{} }

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
