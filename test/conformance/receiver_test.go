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
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// receiverFault is one fault in our own receiver, and the rules that find it. Package coretest has faults for the
// checks that it shares with the program.
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
	}
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
