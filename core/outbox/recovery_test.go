package outbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// After an outage the control plane may be a new process, which knows nothing of this runtime. It
// must not wait for the next interval.
func TestHeartbeatFollowsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{}
		box, stop := run(t, in, outbox.Options{Managers: []core.Manager{kyma}, Epoch: "e"})
		defer stop()
		time.Sleep(time.Second)
		in.setDown(true)
		box.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		in.setDown(false)
		before := len(in.beats())
		time.Sleep(2 * time.Second)
		if have := len(in.beats()) - before; have != 1 {
			t.Errorf("%d heartbeats in the 2 s after an outage, want 1", have)
		}
	})
}

// The first heartbeat after an outage travels with the events that waited, and reports them as
// pending. The next one must follow at once: a runtime with old events is degraded until then.
func TestHeartbeatAfterAnOutageHasNothingPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{}
		box, stop := run(t, in, outbox.Options{Managers: []core.Manager{kyma}, Epoch: "e"})
		defer stop()
		time.Sleep(time.Second)
		in.setDown(true)
		box.Accept(kyma, named("a"))
		time.Sleep(2 * time.Minute)
		in.setDown(false)
		time.Sleep(outbox.Defaults().MaxBackoff)
		beats := in.beats()
		if last := beats[len(beats)-1]; last.OldestPending != 0 {
			t.Errorf("the last heartbeat reports an event that is pending for %s, want none", last.OldestPending)
		}
	})
}

// A middlebox may cut each connection after its first request. The heartbeat after a recovery then fails, too. It
// must not follow upon itself several times a second.
func TestHeartbeatDoesNotFollowItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int64
		cut := core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error {
			if attempts.Add(1)%2 == 0 {
				return errors.New("connection reset by peer")
			}
			return nil
		})
		box, stop := run(t, cut, outbox.Options{Managers: []core.Manager{kyma}, Epoch: "e", Resend: []time.Duration{}})
		defer stop()
		box.Accept(kyma, named("a"))
		time.Sleep(time.Minute)
		before := attempts.Load()
		time.Sleep(10 * time.Minute)
		if have, most := attempts.Load()-before, int64(2*23); have > most {
			t.Errorf("%d attempts in 10 minutes without events, want two for each heartbeat, at most %d", have, most)
		}
	})
}
