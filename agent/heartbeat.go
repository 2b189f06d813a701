package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// heartbeats makes the content of heartbeats. The steps of a builder set its functions before the
// outbox starts. Afterwards the lanes of the outbox call heartbeat concurrently.
type heartbeats struct {
	opts Options
	keys keySet
	// problem returns why changes are not seen, or the configuration is not in use, "" for neither.
	problem func(core.Manager) string
	proof   *proof
	// canary is set before the first heartbeat is due.
	canary func() core.CanaryState
	// canaryProblem and webhooks are set then, too. They return why the canary cannot write, and
	// how the webhooks differ from those that were applied, "" if all is well.
	canaryProblem, webhooks func() string
	// calls counts the calls of heartbeat that have ended: while the outbox works, about one a
	// second.
	calls atomic.Int64
}

// heartbeat only reads memory, because forwarding to the manager waits for it.
func (p *heartbeats) heartbeat(manager core.Manager) core.Heartbeat {
	defer p.calls.Add(1)

	heartbeat := core.Heartbeat{
		Instance:        p.opts.Instance,
		Version:         p.opts.Version,
		ConfigHash:      p.opts.ConfigHash,
		Canary:          p.canary(),
		CanaryError:     p.canaryProblem(),
		WebhookError:    p.webhooks(),
		LastReview:      p.proof.of(manager),
		WebhookFailures: p.proof.failures.Load(),
		ConfigError:     p.problem(manager),
	}

	if p.keys.client != nil {
		material := p.keys.client.Status().Material
		heartbeat.CertificateFingerprint = material.Fingerprint
		heartbeat.CertificateExpiry = material.NotAfter
		heartbeat.CAFingerprints = material.RootFingerprints
	}

	// The first is that of the client, with which the agent connects to the control plane.
	for _, set := range p.keys.all() {
		if err := set.Status().Err; err != nil {
			heartbeat.KeyMaterialError = set.name() + ": " + err.Error()
			break
		}
	}
	return heartbeat
}

func newEpoch() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // It never fails (crypto/rand).
	return hex.EncodeToString(id[:])
}

// watchdog notices that the outbox makes no progress. With heartbeats at long intervals, the open
// connection of such an agent would keep it fresh. It counts ticks and not time, so that a pause of
// the whole process is none of the outbox.
type watchdog struct {
	calls *atomic.Int64 // of [heartbeats.heartbeat]
	most  int           // ticks without a call
	hangs chan struct{}
}

const (
	watchdogTick = time.Second
	// watchdogGrace follows the longest call of the transport.
	watchdogGrace = 10 * time.Second
)

var errHangs = errors.New("the outbox makes no progress: the process must end, so that its connections do")

func newWatchdog(calls *atomic.Int64, opts Outbox) *watchdog {
	longest := cmp.Or(opts.ForwardTimeout, outbox.Defaults().ForwardTimeout)
	w := &watchdog{calls, int((longest + watchdogGrace) / watchdogTick), make(chan struct{})}
	if opts.HeartbeatInterval <= outbox.Defaults().HeartbeatInterval {
		w.most = math.MaxInt // The control plane notices.
	}
	return w
}

func (w *watchdog) start(ctx context.Context) error {
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
