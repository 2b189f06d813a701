package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// The time for the shutdown is divided by these: a quarter for requests, half of it for the drain,
// and an eighth for scrapes. The rest is for parts without a deadline.
const requestsPart, drainPart, scrapesPart = 4, 2, 8

// builder makes the parts of an agent, step by step: each step reads the fields that the steps
// before it have set. Only the goroutine of New uses it, so it has no lock.
type builder struct {
	ctx   context.Context //nolint:containedctx // It lives as long as New.
	to    Connection
	parts Parts
	opts  Options
	log   *slog.Logger

	registry   *prom.Registry
	metrics    *watchermetrics.Agent
	keys       keySet
	managers   *managerList
	heartbeats *heartbeats
	transport  core.Forwarder
	closers    []io.Closer // of the transport
	// disconnects counts the connections of the transport that have ended.
	disconnects atomic.Int64
	outbox      *outbox.Outbox
	missed      *missedWatch
	watchdog    *watchdog
	canary      []component // none or one
	webhooks    []component // none or one
	source      component
	ready       *readiness
	observing   component
	bound       []io.Closer // the ports
}

func (b *builder) closePorts() (err error) {
	for _, port := range b.bound {
		err = errors.Join(err, port.Close())
	}
	return err
}

func (b *builder) newInbox() *Inbox {
	return &Inbox{outbox: b.outbox, missed: b.missed, proof: b.heartbeats.proof, now: b.parts.Now}
}
