package main

import (
	"log/slog"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/logwriter"
)

// options returns the settings as options of the agent.
func (c *config) options(log *slog.Logger, collectors ...prom.Collector) agent.Options {
	return agent.Options{
		Contract:      c.contract,
		Managers:      c.informer.Managers(c.managers.listed),
		OtherManagers: c.managers.others,
		ManagersFile:  c.managersFile,
		Instance:      c.instance,
		Version:       thisBuild().version,
		ConfigHash:    c.hash(),
		Keys:          agent.Keys{Client: c.client, Serving: c.serving, WebhookCAs: c.webhookCAs},
		ControlPlane: agent.ControlPlane{
			Address: c.controlPlane, ServerName: c.serverName, Protocol: c.protocol,
			Fallback: c.fallback, RetryNewest: c.contractRetry,
		},
		Webhook: agent.Webhook{
			Address: c.webhook.String(), ClientNames: c.clientNames,
			MaxConnections: c.connections, MaxHandshakes: c.handshakes,
		},
		Canary: agent.Canary{
			Lease: c.canary.lease, Interval: c.canary.interval,
			Server: c.canary.server, TokenFile: c.canary.token, CAFile: c.canary.ca,
		},
		Outbox:          c.outbox(),
		MetricsAddress:  c.metrics.String(),
		Collectors:      collectors,
		MetricAliases:   c.aliases,
		StopDelay:       c.stopDelay,
		ShutdownTimeout: c.shutdown,
		Logger:          log,
	}
}

// outbox returns the settings of the outbox. Behind the commit, no event has to wait or to be
// repeated.
func (c *config) outbox() outbox.Options {
	opts := outbox.Options{
		Settle: c.settle, Resend: c.resends(), ResendResync: c.resendResync, MaxKeys: c.maxKeys,
		ForwardTimeout: c.forwarding, HeartbeatInterval: c.heartbeats,
		MinBackoff: min(outbox.Defaults().MinBackoff, c.maxBackoff), MaxBackoff: c.maxBackoff,
	}
	if c.source == sourceInformer {
		opts.Settle, opts.Resend, opts.ResendResync = off, []time.Duration{}, off
	}
	return opts
}

const namespace, subsystem = "runtime_watcher", "agent"

// buildInfo has the build and the configuration as labels.
func (c *config) buildInfo() prom.Collector {
	b := thisBuild()
	return prom.NewGaugeFunc(prom.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "build_info",
		Help: "Build and configuration of this agent, always 1.",
		ConstLabels: prom.Labels{
			"version": b.version, "goversion": b.goVersion, "fips140": b.fips,
			"contract": string(c.contract), "config": c.hash(),
		},
	}, func() float64 { return 1 })
}

func droppedLines(log *logwriter.Writer) prom.Collector {
	return prom.NewCounterFunc(prom.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "log_lines_dropped_total",
		Help: "Log lines that were dropped because the log sink was stalled.",
	}, func() float64 { return float64(log.Dropped()) })
}
