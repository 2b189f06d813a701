// Package observability generates docs/reference/metrics.md and a resource of the alerts. It checks
// them and the dashboards against a real agent and a real operator.
package observability

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// metric is one metric of this project.
type metric struct {
	name, kind, help string
	labels           []string
}

// catalog returns all metrics of this project, in the order of their names. Those of the agent and of the listener are
// in the golden files of adapters/prometheus, which touch each of them.
func catalog(t testing.TB) []metric {
	t.Helper()
	all := ofProgram()
	for _, golden := range []string{"agent.prom", "listener.prom"} {
		all = append(all, metricsIn(parse(t, test.Read(t, "adapters/prometheus/testdata/"+golden)))...)
	}
	registry := prom.NewPedanticRegistry()
	for _, use := range []func(*prom.Registry) error{useInformer, useConsumer, useFleet, useInstallations} {
		lab.NoError(t, use(registry))
	}
	all = append(all, metricsIn(lab.Must(registry.Gather()))...)
	slices.SortFunc(all, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	return all
}

// ofProgram returns those of the program, which cannot be imported. TestLive compares them with a
// real process.
func ofProgram() []metric {
	return []metric{
		{
			agents + "build_info", "gauge", "Build and configuration of this agent, always 1.",
			[]string{"config", "contract", "fips140", "goversion", "version"},
		},
		{agents + "log_lines_dropped_total", "counter", "Log lines that were dropped because the log sink was stalled.", nil},
	}
}

func parse(t testing.TB, text []byte) []*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return slices.Collect(maps.Values(lab.Must(parser.TextToMetricFamilies(bytes.NewReader(text)))))
}

// metricsIn returns our metrics among those of a process.
func metricsIn(families []*dto.MetricFamily) (all []metric) {
	for _, family := range families {
		if name := family.GetName(); strings.HasPrefix(name, "runtime_watcher_") {
			all = append(all, metric{name, strings.ToLower(family.GetType().String()), family.GetHelp(), labelsOf(family)})
		}
	}
	return all
}

func labelsOf(family *dto.MetricFamily) (names []string) {
	for _, pair := range family.GetMetric()[0].GetLabel() {
		names = append(names, pair.GetName())
	}
	return names
}

// useInformer touches every metric of the informer of an agent.
func useInformer(registry *prom.Registry) error {
	watched := lab.Must(prometheus.NewInformer(prometheus.Options{}))
	watched.Observed("kyma", "accepted")
	watched.Failed("kyma", "forbidden")
	watched.Proved("kyma")
	return registry.Register(watched)
}

// useConsumer touches every metric of a consumer.
func useConsumer(registry *prom.Registry) error {
	measured := lab.Must(prometheus.NewConsumer(registry, prometheus.Options{}))
	hooks := natsjetstream.Hooks(measured)
	hooks.Concluded("kyma", "terminated", "malformed", 0)
	hooks.Backlog("kyma", 0, 0, 0)
	hooks.Redelivered("kyma")
	return nil
}

// useFleet touches every metric of a fleet.
func useFleet(registry *prom.Registry) error {
	watched := lab.Must(fleet.New(fleet.Options{}))
	peer := core.Peer{ID: "runtime-1", NotAfter: time.Now().Add(time.Hour)}
	watched.Observe(peer, "kyma", core.Batch{
		Epoch: "e", Events: []core.Numbered{{Sequence: 1}}, Heartbeat: &core.Heartbeat{Number: 1, Sequence: 1},
	}, nil)
	return prometheus.RegisterFleet(registry, watched, prometheus.Options{PerRuntime: 1})
}

// useInstallations touches every metric of installations.
func useInstallations(registry *prom.Registry) error {
	read := func() fleet.Installations {
		return fleet.Installations{
			Runtimes:   map[fleet.InstallationState]int{{State: "Failed", Reason: "Unreachable"}: 1},
			NeverHeard: map[core.Manager][]core.RuntimeID{"kyma": {"runtime-1"}}, Phase: "Confirming",
		}
	}
	return prometheus.RegisterInstallations(registry, read, prometheus.Options{PerRuntime: 1})
}
