package conformance

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// senderFault is one fault in our own sender, and the rules that find it.
type senderFault struct {
	forward func(ctx context.Context, next core.Forwarder, manager core.Manager, batch core.Batch) error
	found   []string
}

func senderFaults() map[string]senderFault {
	var last atomic.Uint64
	return map[string]senderFault{
		"forgets refused events": {func(ctx context.Context, next core.Forwarder, manager core.Manager, batch core.Batch) error {
			err := next.Forward(ctx, manager, batch)
			if _, partial := errors.AsType[core.EventErrors](err); partial {
				return nil
			}
			return err
		}, []string{"partial"}},
		"hides Retry-After": {func(ctx context.Context, next core.Forwarder, manager core.Manager, batch core.Batch) error {
			if err := next.Forward(ctx, manager, batch); err != nil {
				return errors.New(err.Error())
			}
			return nil
		}, []string{"retry-after", "refused-sender", "dropped", "single"}},
		"numbers retries anew": {func(ctx context.Context, next core.Forwarder, manager core.Manager, batch core.Batch) error {
			batch.Events = slices.Clone(batch.Events)
			for i := range batch.Events {
				batch.Events[i].Sequence = last.Add(1)
			}
			return next.Forward(ctx, manager, batch)
		}, []string{"retry", "kept"}},
		"sends no heartbeats": {func(ctx context.Context, next core.Forwarder, manager core.Manager, batch core.Batch) error {
			batch.Heartbeat = nil
			return next.Forward(ctx, manager, batch)
		}, []string{"heartbeat", "last"}},
	}
}

func TestSender(t *testing.T) {
	t.Parallel()
	binary := lab.Build(t, "cmd/conformance")
	t.Run("sound", func(t *testing.T) {
		t.Parallel()
		wantKept(t, judge(t, binary, "", "sender", patience, "-single", os.Args[0]))
	})
	for fault, f := range senderFaults() {
		wantFound(t, binary, "sender", fault, "content", f.found)
	}
}

// send is our own sender: an outbox and the forwarder over HTTP.
func send(ctx context.Context, fault string) error {
	files := lab.Must(keys.NewFiles(paths(), keys.FilesOptions{Poll: 100 * time.Millisecond}))
	version := lab.Must(contract.ParseVersion(os.Getenv("RW_CONTRACT")))
	forwarder := lab.Must(httpmtls.NewForwarder(files, os.Getenv("RW_ADDRESS"), version, httpmtls.Options{}))
	var to core.Forwarder = forwarder
	if seeded, ok := senderFaults()[fault]; ok {
		to = core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			return seeded.forward(ctx, forwarder, manager, batch)
		})
	}
	manager := core.Manager(os.Getenv("RW_MANAGER"))
	o := lab.Must(outbox.New(to, outbox.Options{
		Settle: -1, Resend: []time.Duration{}, ResendResync: -1, ResyncFirst: true, Epoch: rand.Text(), MaxBatch: version.MaxEvents(),
		Managers: []core.Manager{manager}, HeartbeatInterval: time.Second,
	}))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = files.Start(ctx) }()
	defer func() { _ = forwarder.Close() }()
	go func() {
		defer stop()
		acceptLines(o, manager)
	}()
	return o.Start(ctx)
}

// acceptLines reads commands until the end of the input.
func acceptLines(o *outbox.Outbox, manager core.Manager) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var object types.NamespacedName
		if _, err := fmt.Sscanf(lines.Text(), "changed %s %s", &object.Namespace, &object.Name); err != nil {
			panic(err)
		}
		namespace, name, _ := strings.Cut(os.Getenv("RW_OWNER"), "/")
		o.Accept(manager, core.WatchEvent{
			Owner:   types.NamespacedName{Namespace: namespace, Name: name},
			Watched: object, WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		})
	}
}

// receiverFault is one fault in our own receiver, and the rules that find it.
type receiverFault struct {
	seed  func(*coretest.ReceiverParts, *listener.Options)
	found []string
}

func receiverFaults() map[string]receiverFault {
	type (
		parts   = coretest.ReceiverParts
		options = listener.Options
	)
	return map[string]receiverFault{
		"sees no gaps": {
			func(_ *parts, o *options) { o.Fleet = nil }, []string{"gap", "new-epoch"},
		},
		"limits nobody": {
			func(_ *parts, o *options) { o.RuntimeRate, o.RuntimeBurst = 1e6, 1e6 }, []string{"too-fast", "share"},
		},
		"verifies nothing": {
			func(p *parts, _ *options) { p.Verifier = listener.InsecureAllowAll() }, []string{"forbidden-sender", "not-ready"},
		},
		"acknowledges failures": {
			func(p *parts, _ *options) { p.Handlers["my-operator"] = forgiving{p.Handlers["my-operator"]} }, []string{"partial"},
		},
	}
}

// forgiving returns nil for events that it loses.
type forgiving struct{ core.Handler }

func (f forgiving) Handle(ctx context.Context, d core.Delivery) error {
	_ = f.Handler.Handle(ctx, d)
	return nil
}

// receive is our own receiver: a listener with the script of the suite.
func receive(ctx context.Context, fault string) error {
	parts, files := lab.Must(coretest.ScriptedParts(printer())), lab.Must(keys.NewFiles(paths(), keys.FilesOptions{}))
	opts := listener.Options{Addr: os.Getenv("RW_ADDRESS"), TLS: keys.ServerTLSConfig(files), Fleet: parts.Fleet}
	if seeded, ok := receiverFaults()[fault]; ok {
		seeded.seed(&parts, &opts)
	}
	peers := listener.FromTLSWithRoots(keys.Roots(files), listener.PeerOptions{})
	return lab.Must(listener.New(peers, parts.Verifier, parts.Handlers, opts)).Start(ctx)
}

func paths() keys.Paths {
	return keys.Paths{CA: os.Getenv("RW_CA"), Certificate: os.Getenv("RW_CERT"), Key: os.Getenv("RW_KEY")}
}

// printer prints deliveries as examples/minimal does.
func printer() core.Handler {
	var mu sync.Mutex
	return core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		return json.NewEncoder(os.Stdout).Encode(map[string]any{
			"runtime": d.Runtime, "manager": d.Manager, "event": d.Event.KindWord(),
			"namespace": d.Event.Watched.Namespace, "name": d.Event.Watched.Name,
		})
	})
}
