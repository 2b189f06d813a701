package main

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// transport is the way to the control plane.
type transport struct {
	core.Forwarder

	close func() error
}

// newTransport returns a forwarder that speaks the contract, and the fallback where the control plane does not know it.
func newTransport(c config, keys keys, metrics *prometheus.Agent, log *slog.Logger) (*transport, error) {
	speak := func(version contract.Version) (*httpmtls.Forwarder, error) {
		return newForwarder(c, version, keys, metrics, log)
	}

	newest, err := speak(c.contract)
	if err != nil {
		return nil, err
	}

	if !c.contract.Numbered() {
		return &transport{newest, newest.Close}, nil
	}

	tells := &contractNews{config: c, metrics: metrics, log: log}
	opts := httpmtls.FallbackOptions{RetryNewest: c.contractRetry, Unknown: tells.unknown, InUse: tells.inUse}

	if c.fallback == "" {
		return asTransport(newest, nil, opts, newest.Close)
	}

	older, err := speak(c.fallback)
	if err != nil {
		return nil, err
	}

	return asTransport(newest, older, opts, func() error { return errors.Join(newest.Close(), older.Close()) })
}

func asTransport(newest, older core.Forwarder, opts httpmtls.FallbackOptions, closeBoth func() error) (*transport, error) {
	forwarder, err := httpmtls.NewFallback(newest, older, opts)
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}

	return &transport{forwarder, closeBoth}, nil
}

// contractNews tells which contract the control plane knows.
type contractNews struct {
	config  config
	metrics *prometheus.Agent
	log     *slog.Logger
	next    atomic.Int64 // when a warning may be written again, Unix time in nanoseconds
}

func (n *contractNews) unknown(manager core.Manager, err error) {
	n.metrics.ContractUnknown(manager)

	if n.config.fallback != "" || !n.mayWarn(time.Now()) {
		return // Falling back has a line of its own.
	}

	n.log.Warn("control plane does not seem to know the contract: events are kept, update its listener, or set CONTRACT_FALLBACK=v2",
		slog.String("manager", string(manager)), slog.String("contract", string(n.config.contract)), slog.Any("error", err))
}

// warnEvery is the least time between two warnings of an unknown contract.
const warnEvery = time.Minute

// mayWarn allows one warning every warnEvery.
func (n *contractNews) mayWarn(now time.Time) bool {
	next := n.next.Load()

	return now.UnixNano() >= next && n.next.CompareAndSwap(next, now.Add(warnEvery).UnixNano())
}

func (n *contractNews) inUse(manager core.Manager, older bool) {
	if older {
		n.metrics.ContractInUse(manager, string(n.config.fallback))
		n.log.Warn("control plane does not know the contract, an older one without heartbeats and numbers is spoken",
			slog.String("manager", string(manager)), slog.String("contract", string(n.config.contract)),
			slog.String("fallback", string(n.config.fallback)), slog.Duration("retry", n.config.contractRetry))

		return
	}

	n.metrics.ContractInUse(manager, string(n.config.contract))
	n.log.Info("control plane knows the contract", slog.String("manager", string(manager)),
		slog.String("contract", string(n.config.contract)))
}
