package conformance

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
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
