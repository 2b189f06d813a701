package observability

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

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
	if diff := cmp.Diff(read(t, file), text); diff != "" {
		t.Errorf("%s is stale, write it by go test ./test/observability -update (-file +generated):\n%s", file, diff)
	}
}

const referenceHead = `# Metrics

<!-- Written by go test ./test/observability -run TestReference -update. Do not edit. -->

All metrics of agents and operators. Names, types, help texts and label values come from the code, and a test compares this
list with the metrics of running processes. Alerts and dashboards are in [deploy/observability](../../deploy/observability), and
[operations.md](../operations/operations.md) has the actions.

| process | endpoint | metrics |
| --- | --- | --- |
| agent | ` + "`METRICS_PORT`, 2112, `/metrics`" + ` | ` + "`runtime_watcher_agent_*`, `go_*`, `process_*`" + ` |
| operator | the metrics server of its manager, after ` + "`prometheus.NewListener`" + ` and ` + "`prometheus.RegisterFleet`" + ` | ` + "`runtime_watcher_listener_*`, `runtime_watcher_fleet_*`" + ` |
| operator with [NATS](../platforms/nats.md) | the same, after ` + "`prometheus.NewConsumer`" + ` | ` + "`runtime_watcher_consumer_*`" + ` |
| operator that installs agents | the same, after ` + "`prometheus.RegisterInstallations`" + ` | ` + "`runtime_watcher_installation_*`" + ` |
| operator, from controller-runtime | the same | ` + "`controller_runtime_*`, `workqueue_*`, `leader_election_master_status`" + ` |
| API server of a runtime | its own ` + "`/metrics`" + ` | ` + "`apiserver_admission_webhook_*`" + ` |

For each manager, at every scrape: accepted = delivered + coalesced + dropped + pending.

A counter or histogram with labels has no series before its first event, except for those that alerts compare with zero.
A stranger can invent names of managers, so only 100 of them get series of their own. "_other" stands for the rest.

`

// reference is the text of docs/reference/metrics.md.
func reference(t testing.TB, all []metric, words vocabulary) string {
	t.Helper()
	var out strings.Builder
	out.WriteString(referenceHead)
	for _, part := range []struct{ title, prefix string }{
		{"Agent", agents}, {"Listener", listeners}, {"Consumer", consumers}, {"Fleet", fleets}, {"Installation", installs},
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
	out.WriteString("## Values\n\n| label | of | values |\n| --- | --- | --- |\n")
	seen := map[string]bool{}
	for _, m := range all {
		for _, name := range m.labels {
			values := words.of(m.name, name)
			of := "`" + m.name + "`"
			if words[label{m.name, name}] == nil {
				of = "each metric with it"
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
		values, note := words.of(m.name, name), notes[name]
		if values == nil && note == "" {
			t.Errorf("label %s of %s: its values are not known, want them in vocabulary.go", name, m.name)
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
