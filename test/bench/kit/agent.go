package kit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// Agent is the library that cmd/agent runs, with the program that measures as its change source. It
// binds no ports.
type Agent struct {
	// Kill ends the agent. Pending events are lost.
	Kill func()

	manager core.Manager
	inbox   *agentlib.Inbox
}

// StartAgent starts an agent until ctx ends, and returns when it takes changes.
func StartAgent(
	ctx context.Context, manager core.Manager, parts agentlib.Parts, opts agentlib.Options,
) (*Agent, error) {
	if opts.Outbox.HeartbeatInterval == 0 {
		opts.Outbox.HeartbeatInterval = outbox.Defaults().HeartbeatInterval
	}
	opts.Managers, opts.ShutdownTimeout = []core.Manager{manager}, time.Microsecond
	started, ended := make(chan *agentlib.Inbox), make(chan struct{})
	parts.Listen = func(context.Context, string, string) (net.Listener, error) { return newSilentListener(), nil }
	parts.Source = func(ctx context.Context, inbox *agentlib.Inbox) error {
		inbox.Proved(manager)
		started <- inbox
		// As an informer proves that it works.
		proofs := time.NewTicker(opts.Outbox.HeartbeatInterval / 2)
		defer proofs.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-proofs.C:
				inbox.Proved(manager)
			}
		}
	}
	ctx, kill := context.WithCancel(ctx)
	lib, err := agentlib.New(ctx, parts, opts)
	if err != nil {
		kill()
		return nil, err
	}
	go func() {
		defer close(ended)
		_ = lib.Start(ctx) // It was killed.
	}()
	a := &Agent{manager: manager, Kill: func() {
		kill()
		<-ended
	}}
	select {
	case a.inbox = <-started:
		return a, nil
	case <-ended:
		return nil, errors.New("the agent has ended")
	}
}

// StartAgents starts an agent for each of n runtimes, with a certificate of its name. The test ends
// them.
func StartAgents(
	t testing.TB, pki *lab.PKI, manager core.Manager, name func(int) string, n int, opts agentlib.Options,
) []*Agent {
	t.Helper()
	agents := make([]*Agent, n)
	for i := range agents {
		leaf := lab.Must(pki.CA.Client(name(i), testpki.Options{DNSNames: []string{lab.RuntimeDomain(core.RuntimeID(name(i)))}}))
		parts := agentlib.Parts{ClientKeys: Material(leaf, pki.CA)}
		agents[i] = lab.Must(StartAgent(context.Background(), manager, parts, opts))
		t.Cleanup(agents[i].Kill)
	}
	return agents
}

// RuntimeName is the name of a runtime.
func RuntimeName(number int) string { return fmt.Sprintf("runtime-%05d", number) }

// RuntimeNumber is the inverse of [RuntimeName].
func RuntimeNumber(name string) (int, error) {
	return strconv.Atoi(strings.TrimPrefix(name, "runtime-"))
}

// Change offers a change to the agent.
func (a *Agent) Change(event core.WatchEvent) { a.inbox.Accept(a.manager, event) }

// Material returns the key material of a leaf, with the bundle of cas.
func Material(leaf *testpki.Leaf, cas ...*testpki.CA) *keys.Material {
	files := testpki.Files(leaf, cas...)
	return lab.Must(keys.NewMaterial(files["ca.crt"], files["tls.crt"], files["tls.key"]))
}

// Paths returns the paths of the files of a volume.
func Paths(v *testpki.Volume) keys.Paths {
	ca, certificate, key := v.Paths()
	return keys.Paths{CA: ca, Certificate: certificate, Key: key}
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
