package kit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Agent is the library that cmd/agent runs. The measuring program is its change source. It binds no
// ports, so nothing connects to its listeners.
type Agent struct {
	// Kill ends the agent. Pending events are lost.
	Kill func()

	manager core.Manager
	inbox   *agentlib.Inbox
}

// StartAgent starts an agent, which runs until ctx ends. It returns when the agent accepts changes.
func StartAgent(
	ctx context.Context, manager core.Manager, address string, parts agentlib.Parts, opts agentlib.Options,
) (*Agent, error) {
	if opts.Outbox.HeartbeatInterval == 0 {
		opts.Outbox.HeartbeatInterval = outbox.Defaults().HeartbeatInterval
	}
	opts.Managers = []core.Manager{manager}
	opts.ShutdownTimeout = time.Millisecond
	started := make(chan *agentlib.Inbox)
	ended := make(chan struct{})
	parts.Listen = func(context.Context, string, string) (net.Listener, error) { return bufconn.Listen(1), nil }
	parts.Source = func(ctx context.Context, inbox *agentlib.Inbox) error {
		inbox.Proved(manager)
		started <- inbox
		// An informer proves in the same way that it works.
		periodic.Call(ctx, opts.Outbox.HeartbeatInterval/2, func() { inbox.Proved(manager) })
		return nil
	}
	ctx, kill := context.WithCancel(ctx)
	lib, err := agentlib.New(ctx, agentlib.Connection{Address: address}, parts, opts)
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

// StartAgents starts one agent for each of n runtimes. Each certificate names its runtime. The end
// of the test stops the agents.
func StartAgents(
	t testing.TB, pki *lab.PKI, manager core.Manager, address string, name func(int) string, n int, opts agentlib.Options,
) []*Agent {
	t.Helper()
	agents := make([]*Agent, n)
	for i := range agents {
		leaf := lab.Must(pki.CA.Client(name(i), testpki.Options{DNSNames: []string{lab.RuntimeDomain(core.RuntimeID(name(i)))}}))
		parts := agentlib.Parts{ClientKeys: lab.Material(leaf, pki.CA)}
		agents[i] = lab.Must(StartAgent(context.Background(), manager, address, parts, opts))
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

// Saw offers an update of an object of kind, which had the version base before.
func (a *Agent) Saw(kind schema.GroupVersionKind, object client.Object, base int) {
	a.Change(core.WatchEvent{
		Watched: client.ObjectKeyFromObject(object), WatchedGVK: kind, Operation: core.OperationUpdate, Time: time.Now(),
		UID: object.GetUID(), Base: int64(base),
	})
}

// Paths returns the paths of the files of a volume.
func Paths(v *testpki.Volume) keys.Paths {
	ca, certificate, key := v.Paths()
	return keys.Paths{CA: ca, Certificate: certificate, Key: key}
}

// WatchConfigMaps starts the agent of a runtime for the ConfigMaps whose label scene has a value.
// It returns when a webhook or, with SOURCE=informer, the agent watches these ConfigMaps.
func WatchConfigMaps(
	t testing.TB, runtime *apiserver.ControlPlane, pki *lab.PKI, manager core.Manager, address, name string, env map[string]string,
) {
	t.Helper()
	env, informs := maps.Clone(env), env["SOURCE"] == "informer"
	watched := watch.Watch{
		Name: types.NamespacedName{Namespace: "scene", Name: name}, Manager: manager,
		Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Selector: watch.Selector{Labels: map[string]string{"scene": name}},
	}
	if informs {
		lab.Inform(t, runtime, name, env, watched)
	}
	agent := lab.StartAgent(t, pki.RuntimeVolume(name, name+".example.com"), address, lab.AgentOptions{Env: env})
	if informs {
		return
	}
	// With the default timeout, a busy machine would admit writes without a review.
	opts := admission.ConfigurationOptions{Timeout: 10 * time.Second}
	lab.Register(t, runtime, name, agent.WebhookPort, pki.CA.PEM, opts, watched)
	lab.AwaitReviews(t, runtime, agent, watched.Selector.Labels)
}
