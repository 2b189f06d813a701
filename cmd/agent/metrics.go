package main

import (
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/internal/logwriter"
)

const namespace, subsystem = "runtime_watcher", "agent"

func (c *config) buildInfo() prom.Collector {
	b := thisBuild()
	return prom.NewGaugeFunc(prom.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "build_info",
		Help: "Build and configuration of this agent, always 1.",
		ConstLabels: prom.Labels{
			"version": b.version, "goversion": b.goVersion, "fips140": b.fips,
			"contract": string(c.Contract), "config": c.settingsHash(),
		},
	}, func() float64 { return 1 })
}

func droppedLines(log *logwriter.Writer) prom.Collector {
	return prom.NewCounterFunc(prom.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "log_lines_dropped_total",
		Help: "Log lines that were dropped because the log sink was stalled.",
	}, func() float64 { return float64(log.Dropped()) })
}
