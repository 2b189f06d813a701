// Package observability generates docs/reference/metrics.md and a resource of the alerts. It checks
// them and the dashboards against a real agent and a real operator.
package observability

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
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
		all = append(all, metricsIn(parse(t, test.Read(t, "adapters/prometheus/watchermetrics/testdata/"+golden)))...)
	}
	all = append(all, metricsIn(lab.Must(touched(t).Gather()))...)
	slices.SortFunc(all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
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
	reader := expfmt.NewTextParser(model.UTF8Validation)
	return slices.Collect(maps.Values(lab.Must(reader.TextToMetricFamilies(bytes.NewReader(text)))))
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

// touched has every metric of the informer of an agent, of a consumer, of a fleet and of installations.
func touched(t testing.TB) *prom.Registry {
	t.Helper()
	registry := prom.NewPedanticRegistry()
	opts := watchermetrics.Options{PerRuntime: 1}
	informed := lab.Must(watchermetrics.NewInformer(opts))
	informed.Observed(hook.Observation{Manager: "kyma", Decision: "accepted"})
	informed.Failed(hook.WatchFailure{Manager: "kyma", Reason: "forbidden"})
	informed.Proved(hook.Proof{Manager: "kyma"})
	hooks := natsjetstream.Hooks(lab.Must(watchermetrics.NewConsumer(registry, opts)))
	hooks.Concluded(hook.Conclusion{Manager: "kyma", Fate: "terminated", Reason: "malformed"})
	hooks.Backlog(hook.Backlog{Manager: "kyma"})
	hooks.Redelivered(hook.Redelivery{Manager: "kyma"})
	hooks.Unavailable(hook.Unavailability{Manager: "kyma"})
	watched := lab.Must(fleet.New(fleet.Options{}))
	peer := core.Peer{ID: "runtime-1", NotAfter: time.Now().Add(time.Hour)}
	watched.Receiver().Observe(peer, "kyma", core.Batch{
		Epoch: "e", Events: []core.Numbered{{Sequence: 1}}, Heartbeat: &core.Heartbeat{Number: 1, Sequence: 1, Version: "v1"},
	}, nil)
	installed := func() runtimes.Installations {
		return runtimes.Installations{
			Runtimes:   map[runtimes.InstallationState]int{{State: "Failed", Reason: "Unreachable"}: 1},
			NeverHeard: map[core.Manager][]core.RuntimeID{"kyma": {"runtime-1"}}, Phase: "Confirming",
		}
	}
	lab.Must(watchermetrics.NewRevocations(registry, opts))(1, nil)
	lab.NoError(t, errors.Join(registry.Register(informed), watchermetrics.RegisterFleet(registry, watched, opts),
		watchermetrics.RegisterInstallations(registry, installed, opts)))
	return registry
}

// descriptions returns the text of all descriptors of a collector, such as a registry. A metric with labels is described
// from the start, and has a series only after its hook was called.
func descriptions(of prom.Collector) (texts []string) {
	descs := make(chan *prom.Desc)
	go func() {
		defer close(descs)
		of.Describe(descs)
	}()
	for desc := range descs {
		texts = append(texts, desc.String())
	}
	return texts
}

var nameOfDesc = regexp.MustCompile(`fqName: "(\w+)"`)

func describedBy(registry *prom.Registry) (names []string) {
	for _, text := range descriptions(registry) {
		names = append(names, nameOfDesc.FindStringSubmatch(text)[1])
	}
	return names
}

// The reference is made of series. A metric with labels that no test touches would be missing there, without a word.
func TestEachMetricIsTouched(t *testing.T) {
	agent := prom.NewPedanticRegistry()
	listener := prom.NewPedanticRegistry()
	lab.Must(watchermetrics.NewAgent(agent, watchermetrics.Options{}))
	lab.Must(watchermetrics.NewListener(listener, watchermetrics.Options{}))
	var listed []string
	for _, m := range catalog(t) {
		listed = append(listed, m.name)
	}

	for _, source := range []struct {
		names []string
		touch string
	}{
		{describedBy(agent), "useAgent in adapters/prometheus/watchermetrics"},
		{describedBy(listener), "useListener in adapters/prometheus/watchermetrics"},
		{describedBy(touched(t)), "touched in test/observability"},
	} {
		if len(source.names) < 5 {
			t.Errorf("only the metrics %v are described, want all of %s", source.names, source.touch)
		}
		for _, name := range source.names {
			if !slices.Contains(listed, name) {
				t.Errorf("metric %s has no series: add a call of its hook to %s", name, source.touch)
			}
		}
	}
}

// label is a label of one metric, or of all metrics with that name if metric is empty.
type label struct{ metric, name string }

// vocabulary has the values of each label, as the code has them.
type vocabulary map[label][]string

// of returns the values of a label, nil if they are free: see [notes].
func (v vocabulary) of(metric, name string) []string {
	if values, ok := v[label{metric, name}]; ok {
		return values
	}
	return v[label{"", name}]
}

// notes are about the labels with free values.
var notes = map[string]string{
	"manager":   "a manager, or `_other`",
	"runtime":   "ID of a runtime",
	"code":      "HTTP status, empty without an answer",
	"version":   "version of the agent, or `other` beyond the first eight of a fleet",
	"goversion": "version of Go",
	"fips140":   "version of Go's FIPS 140-3 module, or `off`",
	"config":    "hash of the settings",
}

const (
	agents    = "runtime_watcher_agent_"
	listeners = "runtime_watcher_listener_"
	consumers = "runtime_watcher_consumer_"
	fleets    = "runtime_watcher_fleet_"
	installs  = "runtime_watcher_installation_"
	revoked   = "runtime_watcher_revocations_"
	other     = "other"
)

func newVocabulary(t testing.TB) vocabulary {
	t.Helper()
	const hooks, shared, nats, installation = "core/hook/hook.go", "internal/reasons/reasons.go", "adapters/natsjetstream/", "controlplane/installation/status.go"
	of := func(file, pattern string) []string { return constants(t, file, pattern) }
	var contracts, states, conditions []string
	for _, version := range contract.Versions() {
		contracts = append(contracts, string(version))
	}
	for _, condition := range fleet.Conditions() {
		states, conditions = append(states, string(condition.State)), append(conditions, string(condition.Reason))
	}
	var causes []string
	for _, cause := range fleet.Causes() {
		causes = append(causes, string(cause))
	}
	issuing := of("controlplane/certificates/runtime.go", "^Reason")
	for i := range issuing {
		issuing[i] = "Certificate" + issuing[i]
	}
	bundles, pairs := of("agent/material.go", "^useCA$"), of("agent/material.go", "^use(Client|Server)$")
	none := []string{""}
	anything, ended := []string{other}, []string{"canceled", "timeout"} // The last two are those of core.ReasonOf.
	accepted := of("core/ports.go", "^(Accepted|Coalesced|Dropped)$")
	canary := of("core/heartbeat.go", "^Canary(Alive|Lost|Failing)$")
	dropped := of("internal/httpserver/connections.go", "^reason")
	meaning := of("core/contract/meaning.go", "^Reason")
	refused := slices.Concat(
		ended, []string{"invalid_manager"}, of("adapters/httpmtls/errors.go", "^Reason"),
		of(nats+"errors.go", "^Reason"), of("internal/proxy/proxy.go", "^Reason"), meaning, of(shared, "."), anything,
	)
	source := slices.Concat(
		of("adapters/controllerruntime/domain.go", "^[Rr]eason"), of("adapters/controllerruntime/mapfunc.go", "^[Rr]eason"))
	v := vocabulary{}
	for key, values := range map[label][][]string{
		{"", "contract"}: {none, contracts}, // A request that names none.
		{"", "cause"}:    {of("internal/httpserver/cause.go", "^cause")},
		{"", "use"}:      {of("agent/material.go", "^use")},
		{agents + "certificate_lifetime_seconds", "use"}:            {pairs},
		{listeners + "certificate_lifetime_seconds", "use"}:         {pairs},
		{listeners + "certificate_expiry_timestamp_seconds", "use"}: {pairs, bundles},
		{listeners + "certificate_reloads_total", "use"}:            {pairs, bundles},
		{listeners + "certificate_reload_failures_total", "use"}:    {pairs, bundles},
		{"", "problem"}: {of("keys/problem.go", "^[Pp]roblem")},
		{"", "server"}:  {{"webhook", "metrics"}},
		{agents + "connections_dropped_total", "reason"}:    {dropped},
		{listeners + "connections_dropped_total", "reason"}: {dropped},
		{"", "result"}: {refused, {"ok", "partial"}},
		{agents + "events_dropped_total", "reason"}:   {of("core/outbox/counts.go", "^[Rr]eason"), refused},
		{agents + "canary_state", "state"}:            {canary},
		{agents + "canary_duration_seconds", "state"}: {canary},
		{"", "decision"}: {accepted, of(hooks, "^Decision"), of("adapters/prometheus/watchermetrics/agentwebhook.go", "^decision")},
		{agents + "admission_owner_problems_total", "problem"}: {of(hooks, "^Owner")},
		{agents + "admission_refusals_total", "reason"}: {
			of("adapters/admission/refusal.go", "^Reason"), of(shared, "^(TooLarge|Unreadable|Busy)$"),
		},
		{"", "place"}: {of(hooks, "^Place")},
		{agents + "informer_changes_total", "decision"}: {accepted, of(hooks, "^Decision(Unchanged|Irrelevant|NoOwner|NoName)$")},
		{agents + "informer_failures_total", "reason"}: {
			of("adapters/informer/health.go", "^Reason"), of(shared, "^(Unauthenticated|Forbidden|NotFound|Busy)$"), anything,
		},
		{listeners + "requests_total", "reason"}: {
			none, anything, meaning, of(shared, "."), of("internal/reasons/pinning.go", "."), of("listener/refusal.go", "^[Rr]eason"), source,
		},
		{"", "fate"}: {of(hooks, "^Fate")},
		{consumers + "messages_total", "reason"}: {
			none, anything, ended,
			of(nats+"errors.go", "^ReasonConnection$"), of("internal/reasons/pinning.go", "^(Owner|Domain|SAN|CA|Revoked)"), source,
			of(shared, "^(TooFast|Malformed|NotReady|Busy|Panic|Forbidden|Unauthenticated|SourceMismatch)$"),
		},
		{fleets + "runtimes", "state"}:       {states},
		{fleets + "runtime_state", "state"}:  {states},
		{fleets + "runtimes", "reason"}:      {conditions},
		{fleets + "runtime_state", "reason"}: {conditions},
		{fleets + "resyncs_total", "cause"}:  {causes},
		{installs + "runtimes", "state"}:     {of(installation, "^(Progressing|Ready|Failed|Removed)$")},
		{installs + "runtimes", "reason"}: {
			none, issuing, of("controlplane/runtimes/failure.go", "^Reason"), of(installation, "^Reason"),
		},
		{installs + "ca_phase", "phase"}:          {of("controlplane/certificates/plan.go", "^[pP]hase")},
		{installs + "runtime_problem", "problem"}: {of("adapters/prometheus/watchermetrics/installations.go", "^problem")},
	} {
		all := slices.Concat(values...)
		slices.Sort(all)
		v[key] = slices.Compact(all)
	}
	return v
}

// quote returns the values as Markdown.
func quote(values []string) (quoted []string) {
	for _, value := range values {
		if value == "" {
			quoted = append(quoted, "empty")
		} else {
			quoted = append(quoted, "`"+value+"`")
		}
	}
	return quoted
}

// constants returns the values of the string constants of a file with names that match pattern. It
// fails if there is none.
func constants(t testing.TB, file, pattern string) (values []string) {
	t.Helper()
	source := test.Read(t, file)
	parsed := lab.Must(parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution))
	names := regexp.MustCompile(pattern)
	ast.Inspect(parsed, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok && names.MatchString(spec.Names[0].Name) {
			for _, value := range spec.Values {
				if text, ok := textOf(value); ok { // One that is made of others has none.
					values = append(values, text)
				}
			}
		}
		return true
	})
	if len(values) == 0 {
		t.Fatalf("%s has no string constant that matches %s", file, pattern)
	}
	return values
}

var update = flag.Bool("update", false, "write the generated files anew")

// TestReference fails when docs/reference/metrics.md is stale.
func TestReference(t *testing.T) {
	compare(t, "docs/reference/metrics.md", reference(t, catalog(t), newVocabulary(t)))
}

// compare compares a file of the repository with its generated text, or writes it.
func compare(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		lab.NoError(t, os.WriteFile(filepath.Join(test.Root(), file), []byte(text), 0o644))
	}
	lab.Same(t, file+" is stale, write it by go test ./test/observability -update: file and text", read(t, file), text)
}

const referenceHead = `# Metrics

<!-- Written by go test ./test/observability -run TestReference -update. Do not edit. -->

The tables list all metrics of agents and operators. Names, types, help texts and label values come from the code, and a test compares this
list with the metrics of running processes. Alerts and dashboards are in [deploy/observability](../../deploy/observability), and
[operations.md](../operations/operations.md) describes the actions.

| process | endpoint | metrics |
| --- | --- | --- |
| agent | ` + "`METRICS_PORT`, 2112, `/metrics`" + ` | ` + "`runtime_watcher_agent_*`, `go_*`, `process_*`" + ` |
| operator | the metrics server of its manager, after ` + "`watchermetrics.NewListener`" + ` and ` + "`watchermetrics.RegisterFleet`" + ` | ` + "`runtime_watcher_listener_*`, `runtime_watcher_fleet_*`" + ` |
| operator with [NATS](../platforms/nats.md) | the same, after ` + "`watchermetrics.NewConsumer`" + ` | ` + "`runtime_watcher_consumer_*`" + ` |
| operator with a list of [revoked senders](../security.md#revocation) | the same, after ` + "`watchermetrics.NewRevocations`" + ` | ` + "`runtime_watcher_revocations_*`" + ` |
| operator that installs agents | the same, after ` + "`watchermetrics.RegisterInstallations`" + ` | ` + "`runtime_watcher_installation_*`" + ` |
| operator, from controller-runtime | the same | ` + "`controller_runtime_*`, `workqueue_*`, `leader_election_master_status`" + ` |
| API server of a runtime | its own ` + "`/metrics`" + ` | ` + "`apiserver_admission_webhook_*`" + ` |

For each manager, at every scrape: accepted = delivered + coalesced + dropped + pending.

A counter or histogram with labels has no series before its first event, except for the series that alerts compare with zero.
Any client can invent names of managers, so only 100 managers get separate series. All further managers count as ` + "`_other`" + `.

`

// reference is the text of docs/reference/metrics.md.
func reference(t testing.TB, all []metric, words vocabulary) string {
	t.Helper()
	var out strings.Builder
	out.WriteString(referenceHead)
	for _, part := range []struct{ title, prefix string }{
		{"Agent", agents}, {"Listener", listeners}, {"Consumer", consumers}, {"Revocations", revoked}, {"Fleet", fleets}, {"Installation", installs},
	} {
		fmt.Fprintf(&out, "## %s\n\n| metric | type | meaning |\n| --- | --- | --- |\n", part.title)
		for _, m := range all {
			if strings.HasPrefix(m.name, part.prefix) {
				fmt.Fprintf(&out, "| `%s` | %s | %s%s |\n", m.name, m.kind, m.help, labelCell(t, m, words))
			}
		}
		out.WriteString("\n")
	}
	out.WriteString(valueLists(all, words))
	return out.String()
}

// longList is the number of values from which on they are listed once for all metrics.
const longList = 12

// valueLists has the long lists of values.
func valueLists(all []metric, words vocabulary) string {
	var out strings.Builder
	out.WriteString("## Values\n\n| label | metric | values |\n| --- | --- | --- |\n")
	seen := map[string]bool{}
	for _, m := range all {
		for _, name := range m.labels {
			values := words.of(m.name, name)
			of := "`" + m.name + "`"
			if words[label{m.name, name}] == nil {
				of = "each metric with this label"
			}
			if len(values) >= longList && !seen[of+name] {
				seen[of+name] = true
				fmt.Fprintf(&out, "| `%s` | %s | %s |\n", name, of, strings.Join(quote(values), ", "))
			}
		}
	}
	return out.String()
}

// labelCell lists the labels of a metric with their values, one per line.
func labelCell(t testing.TB, m metric, words vocabulary) string {
	t.Helper()
	var out strings.Builder
	for _, name := range m.labels {
		values := words.of(m.name, name)
		note := notes[name]
		if values == nil && note == "" {
			t.Errorf("label %s of %s: its values are not known, want them in newVocabulary", name, m.name)
		}
		switch {
		case len(values) >= longList:
			note = "see [Values](#values)"
		case values != nil:
			note = strings.Join(quote(values), ", ")
		}
		fmt.Fprintf(&out, "<br>`%s`: %s", name, note)
	}
	return out.String()
}
