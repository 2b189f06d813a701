package main

import (
	"log/slog"
	"slices"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/logwriter"
)

func (c *config) options(log *slog.Logger, collectors ...prom.Collector) agent.Options {
	opts := c.Options
	opts.Managers = c.informer.Managers(c.Managers)
	opts.Version, opts.ConfigHash = thisBuild().version, c.hash()
	opts.Webhook.Address, opts.MetricsAddress = c.webhook.String(), c.metrics.String()
	opts.Outbox = c.outbox()
	opts.Collectors, opts.Logger = collectors, log
	return opts
}

// outbox returns the settings of the outbox. Behind the commit, no event has to wait or to be
// repeated.
func (c *config) outbox() outbox.Options {
	opts := c.Outbox
	opts.MinBackoff = min(outbox.Defaults().MinBackoff, opts.MaxBackoff)
	isSettling := func(delay time.Duration) bool { return delay <= opts.Settle }
	opts.Resend = slices.DeleteFunc(slices.Clone(opts.Resend), isSettling)
	if c.source == sourceInformer {
		opts.Settle, opts.Resend, opts.ResendResync = off, []time.Duration{}, off
	}
	return opts
}

const namespace, subsystem = "runtime_watcher", "agent"

func (c *config) buildInfo() prom.Collector {
	b := thisBuild()
	return prom.NewGaugeFunc(prom.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "build_info",
		Help: "Build and configuration of this agent, always 1.",
		ConstLabels: prom.Labels{
			"version": b.version, "goversion": b.goVersion, "fips140": b.fips,
			"contract": string(c.Contract), "config": c.hash(),
		},
	}, func() float64 { return 1 })
}

func droppedLines(log *logwriter.Writer) prom.Collector {
	return prom.NewCounterFunc(prom.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "log_lines_dropped_total",
		Help: "Log lines that were dropped because the log sink was stalled.",
	}, func() float64 { return float64(log.Dropped()) })
}
