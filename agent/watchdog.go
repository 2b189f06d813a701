package agent

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// watchdog notices that the outbox makes no progress. With heartbeats at long intervals, the open
// connection of such an agent would keep it fresh. It counts ticks and not time, so that a pause of
// the whole process is none of the outbox.
type watchdog struct {
	calls *atomic.Int64 // of [heartbeats.makeHeartbeat]
	most  int           // ticks without a call
	hangs chan struct{}
}

const (
	watchdogTick = time.Second
	// watchdogGrace follows the longest call of the transport.
	watchdogGrace = 10 * time.Second
)

var errHangs = errors.New("the outbox makes no progress: the process ends to close its connections")

func newWatchdog(calls *atomic.Int64, opts Outbox) *watchdog {
	longest := cmp.Or(opts.ForwardTimeout, outbox.Defaults().ForwardTimeout)
	w := &watchdog{calls, int((longest + watchdogGrace) / watchdogTick), make(chan struct{})}
	if opts.HeartbeatInterval <= outbox.Defaults().HeartbeatInterval {
		w.most = math.MaxInt // The control plane notices.
	}
	return w
}

func (w *watchdog) watchCalls(ctx context.Context) error {
	tick := time.NewTicker(watchdogTick)
	defer tick.Stop()
	var last int64
	for still := 0; still < w.most; still++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if now := w.calls.Load(); now == 0 || now != last {
			last = now
			still = 0
		}
	}

	close(w.hangs)
	<-ctx.Done()
	return nil
}
