// Package observability generates docs/reference/metrics.md and a resource of the alerts. It checks
// them and the dashboards against a real agent and a real operator.
package observability

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// metric is one metric of this project.
type metric struct {
	name, kind, help string
	process          string
	labels           []string
}

// The processes that have metrics.
const (
	inAgent    = "agent"
	inOperator = "operator"
)

// catalog returns all metrics of this project, in the order of their names.
func catalog(t testing.TB) []metric {
	t.Helper()
	all := slices.Concat(ofProgram(), gather(t, inAgent, useAgent), gather(t, inOperator, useListener),
		gather(t, inOperator, useConsumer), gather(t, inOperator, useFleet), gather(t, inOperator, useInstallations))
	slices.SortFunc(all, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	return all
}

// ofProgram returns those of the program, which cannot be imported. TestLive compares them with a
// real process.
func ofProgram() []metric {
	return []metric{
		{
			agents + "build_info", "gauge", "Build and configuration of this agent, always 1.", inAgent,
			[]string{"config", "contract", "fips140", "goversion", "version"},
		},
		{
			agents + "log_lines_dropped_total", "counter", "Log lines that were dropped because the log sink was stalled.",
			inAgent, nil,
		},
	}
}

// gather returns the metrics that use registers and touches.
func gather(t testing.TB, process string, use func(testing.TB, *prom.Registry)) (all []metric) {
	t.Helper()
	registry := prom.NewPedanticRegistry()
	use(t, registry)
	families := lab.Must(registry.Gather())
	for _, family := range families {
		all = append(all, metric{
			family.GetName(), strings.ToLower(family.GetType().String()), family.GetHelp(), process, labelsOf(family),
		})
	}
	return all
}

func labelsOf(family *dto.MetricFamily) (names []string) {
	for _, pair := range family.GetMetric()[0].GetLabel() {
		names = append(names, pair.GetName())
	}
	return names
}

// useAgent touches every metric of an agent.
func useAgent(t testing.TB, registry *prom.Registry) {
	t.Helper()
	measured := lab.Must(prometheus.NewAgent(registry, prometheus.Options{}))
	nowhere := core.ForwarderFunc(func(_ context.Context, _ core.Manager, _ core.Batch) error { return errNowhere })
	box := lab.Must(outbox.New(nowhere, outbox.Options{}))
	watched := lab.Must(prometheus.NewInformer(prometheus.Options{}))
	if err := registry.Register(watched); err != nil {
		t.Fatal(err)
	}
	watched.Observed("kyma", "accepted")
	watched.Failed("kyma", "forbidden")
	watched.Proved("kyma")
	box.Accept("kyma", core.WatchEvent{Resync: true})
	measured.ReadOutbox(box)
	measured.Reviewed("kyma", "accepted", 0)
	measured.Refused(http.StatusNotFound, "manager", 0)
	measured.Attempted("kyma", 1, 0, nil)
	measured.OwnerProblem("kyma", "missing")
	measured.Panicked("filter")
	measured.Connected(nil)
	measured.Retried(0)
	measured.HandshakeFailed("timeout")
	measured.ConnectionDropped("webhook", "displaced")
	measured.ContractUnknown("kyma")
	measured.ContractInUse("kyma", "v3")
	measured.CanaryProbed(core.CanaryAlive, 0)
	measured.KeyMaterial("client").Reloaded(time.Now(), time.Now())
	measured.KeyMaterial("client").Refused("expired")
}

var errNowhere = errors.New("nowhere")

// useListener touches every metric of a listener.
func useListener(t testing.TB, registry *prom.Registry) {
	t.Helper()
	measured := lab.Must(prometheus.NewListener(registry, prometheus.Options{}))
	measured.Hooks.InFlight(1)
	measured.Hooks.Answered("v3", "kyma", http.StatusAccepted, "", 0)
	measured.Hooks.HandshakeFailed("untrusted")
	measured.Hooks.ConnectionDropped("no_slot")
	measured.KeyMaterial("server").Reloaded(time.Now(), time.Now())
	measured.KeyMaterial("server").Refused("expired")
}

// useConsumer touches every metric of a consumer.
func useConsumer(t testing.TB, registry *prom.Registry) {
	t.Helper()
	measured := lab.Must(prometheus.NewConsumer(registry, prometheus.Options{}))
	hooks := natsjetstream.Hooks(measured)
	hooks.Concluded("kyma", "terminated", "malformed", 0)
	hooks.Backlog("kyma", 0, 0, 0)
	hooks.Redelivered("kyma")
}

// useFleet touches every metric of a fleet.
func useFleet(t testing.TB, registry *prom.Registry) {
	t.Helper()
	watched := lab.Must(fleet.New(fleet.Options{}))
	if err := prometheus.RegisterFleet(registry, watched, prometheus.Options{PerRuntime: 1}); err != nil {
		t.Fatal(err)
	}
	peer := core.Peer{ID: "runtime-1", NotAfter: time.Now().Add(time.Hour)}
	watched.Observe(peer, "kyma", core.Batch{
		Epoch: "e", Events: []core.Numbered{{Sequence: 1}}, Heartbeat: &core.Heartbeat{Number: 1, Sequence: 1},
	}, nil)
}

// useInstallations touches every metric of installations.
func useInstallations(t testing.TB, registry *prom.Registry) {
	t.Helper()
	read := func() fleet.Installations {
		return fleet.Installations{
			Runtimes:   map[fleet.InstallationState]int{{State: "Failed", Reason: "Unreachable"}: 1},
			NeverHeard: map[core.Manager][]core.RuntimeID{"kyma": {"runtime-1"}}, Phase: "Confirming",
		}
	}
	if err := prometheus.RegisterInstallations(registry, read, prometheus.Options{PerRuntime: 1}); err != nil {
		t.Fatal(err)
	}
}
