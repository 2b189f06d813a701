package conformance

import (
	"context"
	"encoding/json"
	"os"
	"sync"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

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
	parts, err := coretest.ScriptedParts(printer())
	if err != nil {
		return err
	}
	files, err := keys.NewFiles(paths(), keys.FilesOptions{})
	if err != nil {
		return err
	}
	opts := listener.Options{Addr: os.Getenv("RW_ADDRESS"), TLS: keys.ServerTLSConfig(files), Fleet: parts.Fleet}
	if seeded, ok := receiverFaults()[fault]; ok {
		seeded.seed(&parts, &opts)
	}
	peers := listener.FromTLSWithRoots(keys.Roots(files), listener.PeerOptions{})
	l, err := listener.New(peers, parts.Verifier, parts.Handlers, opts)
	if err != nil {
		return err
	}
	return l.Start(ctx)
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
