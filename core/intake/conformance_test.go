package intake_test

import (
	"context"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// A transport in memory has nothing but the intake.
func TestReceiverConformance(t *testing.T) {
	t.Parallel()
	coretest.TestReceiver(t, func(t *testing.T, parts coretest.ReceiverParts) func(core.RuntimeID) core.Forwarder {
		t.Helper()

		in, err := intake.New(parts.Verifier, parts.Handlers, intake.Options{Fleet: parts.Fleet})
		if err != nil {
			t.Fatal(err)
		}

		return func(runtime core.RuntimeID) core.Forwarder {
			return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
				account := intake.Account{Name: string(runtime)}
				if tooFast := in.Enter(account, 0); tooFast != nil {
					return tooFast
				}
				defer in.Leave(account)
				return in.Receive(ctx, &intake.Request{Peer: core.Peer{ID: runtime}, Manager: manager, Batch: batch})
			})
		}
	}, coretest.ReceiverOptions{})
}
