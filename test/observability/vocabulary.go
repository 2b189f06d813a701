package observability

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// label is a label of one metric, or of all metrics with that name if metric is empty.
type label struct{ metric, name string }

// vocabulary has the values of each label, as the code has them. A label with free values has a
// note in their place.
type vocabulary struct {
	values map[label][]string
	notes  map[string]string
}

// of returns the values of a label, and the note about them.
func (v vocabulary) of(metric, name string) (values []string, note string) {
	if values, ok := v.values[label{metric, name}]; ok {
		return values, ""
	}
	if values, ok := v.values[label{"", name}]; ok {
		return values, ""
	}
	return nil, v.notes[name]
}

const (
	agents    = "runtime_watcher_agent_"
	listeners = "runtime_watcher_listener_"
	consumers = "runtime_watcher_consumer_"
	fleets    = "runtime_watcher_fleet_"
	installs  = "runtime_watcher_installation_"
	other     = "other"
)

func newVocabulary(t testing.TB) vocabulary {
	t.Helper()
	v := vocabulary{values: map[label][]string{}, notes: notes()}
	for _, add := range []func(testing.TB){
		v.addShared, v.addForwarding, v.addAdmission, v.addInformer, v.addListener, v.addConsumer, v.addFleet, v.addInstallations,
	} {
		add(t)
	}
	for key, values := range v.values {
		slices.Sort(values)
		v.values[key] = slices.Compact(values)
	}
	return v
}

func notes() map[string]string {
	return map[string]string{
		"manager":   "a manager, or `_other`",
		"runtime":   "id of a runtime",
		"code":      "HTTP status, empty without an answer",
		"version":   "version of the agent",
		"goversion": "version of Go",
		"fips140":   "version of Go's FIPS 140-3 module, `off` without one",
		"config":    "hash of the settings",
	}
}

func (v vocabulary) set(metric, name string, values ...[]string) {
	v.values[label{metric, name}] = slices.Concat(values...)
}

func (v vocabulary) addShared(t testing.TB) {
	t.Helper()
	versions := []string{""} // A request that names none.
	for _, version := range contract.Versions() {
		versions = append(versions, string(version))
	}
	v.set("", "contract", versions)
	v.set("", "cause", constants(t, "internal/httpserver/cause.go", "^cause"))
	v.set("", "use", constants(t, "agent/material.go", "^use"))
	v.set("", "problem", constants(t, "keys/material.go", "^[Pp]roblem"))
	v.set("", "server", []string{"webhook", "metrics"})
	for _, process := range []string{agents, listeners} {
		v.set(process+"connections_dropped_total", "reason", constants(t, "internal/httpserver/connections.go", "^reason"))
	}
}

func (v vocabulary) addForwarding(t testing.TB) {
	t.Helper()
	reasons := slices.Concat(constants(t, "adapters/httpmtls/errors.go", "^reason"),
		constants(t, "core/contract/meaning.go", "^reason"), constants(t, "internal/reasons/reasons.go", "."),
		[]string{other})
	v.set("", "result", reasons, []string{"ok", "partial"})
	v.set(agents+"events_dropped_total", "reason", constants(t, "core/outbox/counts.go", "^[Rr]eason"), reasons)
	states := constants(t, "core/heartbeat.go", "^Canary(Alive|Lost|Failing)$")
	v.set(agents+"canary_state", "state", states)
	v.set(agents+"canary_duration_seconds", "state", states)
}

func (v vocabulary) addAdmission(t testing.TB) {
	t.Helper()
	v.set("", "decision", constants(t, "core/ports.go", "^(Accepted|Coalesced|Dropped)$"),
		constants(t, "adapters/admission/decision.go", "."), constants(t, "adapters/prometheus/agentwebhook.go", "^decision"))
	v.set(agents+"admission_owner_problems_total", "problem", constants(t, "adapters/admission/hooks.go", "^owner"))
	v.set(agents+"admission_refusals_total", "reason", constants(t, "adapters/admission/refusal.go", "^refused"))
	v.set("", "place", constants(t, "adapters/admission/hooks.go", "^panicIn"))
}

func (v vocabulary) addInformer(t testing.TB) {
	t.Helper()
	v.set(agents+"informer_changes_total", "decision", constants(t, "core/ports.go", "^(Accepted|Coalesced|Dropped)$"),
		constants(t, "adapters/informer/store.go", "^decision"))
	v.set(agents+"informer_failures_total", "reason", constants(t, "adapters/informer/health.go", "^failed"))
}

func (v vocabulary) addListener(t testing.TB) {
	t.Helper()
	reasons := slices.Concat([]string{"", other}, constants(t, "core/contract/meaning.go", "^reason"),
		constants(t, "internal/reasons/reasons.go", "."), constants(t, "internal/reasons/pinning.go", "."))
	for _, file := range []string{
		"listener/refusal.go",
		"adapters/controllerruntime/domain.go", "adapters/controllerruntime/mapfunc.go",
	} {
		reasons = append(reasons, constants(t, file, "^[Rr]eason")...)
	}
	v.set(listeners+"requests_total", "reason", reasons)
}

func (v vocabulary) addConsumer(t testing.TB) {
	t.Helper()
	const folder = "adapters/natsjetstream/"
	v.set("", "fate", constants(t, folder+"conclude.go", "^fate"))
	v.set(consumers+"messages_total", "reason",
		[]string{"", other, "canceled", "timeout"}, // The last two are those of core.Reason.
		constants(t, folder+"errors.go", "^reasonConnection$"),
		constants(t, "internal/reasons/reasons.go", "^(TooFast|Malformed|NotReady|Panic|Forbidden|Unauthenticated)$"),
		constants(t, "internal/reasons/pinning.go", "^(Owner|Domain|SAN)"),
		constants(t, "adapters/controllerruntime/domain.go", "^[Rr]eason"),
		constants(t, "adapters/controllerruntime/mapfunc.go", "^[Rr]eason"))
}

func (v vocabulary) addFleet(testing.TB) {
	var states, reasons []string
	for _, condition := range fleet.Conditions() {
		states, reasons = append(states, string(condition.State)), append(reasons, condition.Reason)
	}
	for _, metric := range []string{fleets + "runtimes", fleets + "runtime_state"} {
		v.set(metric, "state", states)
		v.set(metric, "reason", reasons)
	}
	v.set(fleets+"resyncs_total", "cause", fleet.Causes())
}

func (v vocabulary) addInstallations(t testing.TB) {
	t.Helper()
	const folder = "controlplane/"
	issuing := constants(t, folder+"certificates/runtime.go", "^reason")
	for i := range issuing {
		issuing[i] = "Certificate" + issuing[i]
	}
	v.set(installs+"runtimes", "state", constants(t, folder+"installation/status.go", "^(Progressing|Ready|Failed|Removed)$"))
	v.set(installs+"runtimes", "reason", []string{""}, issuing, constants(t, folder+"runtimes/failure.go", "^reason"),
		constants(t, folder+"installation/status.go", "^reason"))
	v.set(installs+"ca_phase", "phase", constants(t, folder+"certificates/plan.go", "^[pP]hase"))
	v.set(installs+"runtime_problem", "problem", constants(t, "adapters/prometheus/installations.go", "^problem"))
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
	parsed := lab.Must(parser.ParseFile(token.NewFileSet(), filepath.Join(test.Root(), file), nil, parser.SkipObjectResolution))
	names := regexp.MustCompile(pattern)
	ast.Inspect(parsed, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok && names.MatchString(spec.Names[0].Name) {
			values = append(values, literals(spec)...)
		}
		return true
	})
	if len(values) == 0 {
		t.Fatalf("%s has no string constant that matches %s", file, pattern)
	}
	return values
}

// literals returns the strings of a constant. One that is made of others has none.
func literals(spec *ast.ValueSpec) (values []string) {
	for _, value := range spec.Values {
		if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				values = append(values, text)
			}
		}
	}
	return values
}
