package installation

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
)

// The agent has a setting, and the installer and the chart each have a list of the settings that
// they do not accept from a user. A name that is wrong in a list protects nothing.
func TestReservedSettings(t *testing.T) {
	t.Parallel()

	known := knownSettings(t)
	installer := reserved(settingsInManifests())
	chart := reservedInChart(t)

	if diff := cmp.Diff(aliasesOf(known), formerSettings); diff != "" {
		t.Errorf("aliases in docs/reference/agent.md and formerSettings (-want +got):\n%s", diff)
	}

	lists := map[string]map[string]bool{"reservedSettings": installer, "values.schema.json": chart}
	for list, names := range lists {
		for name := range names {
			_, isKnown := known[name]
			if !isKnown && name != "POD_NAME" {
				t.Errorf("%s reserves %s, which is not a setting of the agent", list, name)
			}
		}
	}

	for alias, name := range formerSettings {
		if chart[alias] != chart[name] {
			t.Errorf("values.schema.json reserves only one of %s and %s", name, alias)
		}
	}

	// The lists differ only here. Before you add a name, decide whether the other list needs it.
	onlyInstaller := []string{
		"MANAGERS_FILE",    // The chart has no such file.
		"OWNER_ANNOTATION", // The chart sets it by names.prefix unless env does.
	}

	onlyChart := []string{
		"CONTROL_PLANE_PROXY", "CONTROL_PLANE_PROXY_CREDENTIALS", "MANAGERS", // The installer reads them in Settings.
		"WEBHOOK_ENDPOINT", "WEBHOOK_DOMAIN", "WEBHOOK_CA_CERT", // The installer applies the configuration itself.
	}

	want := maps.Clone(installer)
	for _, name := range onlyInstaller {
		delete(want, name)
	}

	for _, name := range onlyChart {
		want[name] = true
	}

	if diff := cmp.Diff(want, chart); diff != "" {
		t.Errorf("reservedSettings and the enum of env in values.schema.json differ (-installer +chart):\n%s", diff)
	}
}

// The installer sets a variable either in [renderer.renderEnvironment] or by the manifests, and
// nothing else may set it.
func TestSettingsOfThePodAreReserved(t *testing.T) {
	t.Parallel()

	source := readText(t, "pods.go")
	assigned := regexp.MustCompile(`variables\[(\w+)\] = `).FindAllStringSubmatch(source, -1)
	if len(assigned) < 8 {
		t.Fatalf("only %d assignments to variables in pods.go", len(assigned))
	}

	constants := make(map[string]string)
	declared := regexp.MustCompile(`(setting\w+) += "(\w+)"`).FindAllStringSubmatch(readText(t, "settings.go"), -1)
	for _, pair := range declared {
		constants[pair[1]] = pair[2]
	}

	installer := reservedSettings(nil)
	for _, pair := range assigned {
		name := constants[pair[1]]
		// The credentials of a runtime replace the file in Settings.
		if !installer[name] && name != settingProxyCredentials {
			t.Errorf("pods.go sets %s (%s), which reservedSettings lacks", pair[1], name)
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()

	text, err := os.ReadFile(testcache.Path(path))
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// knownSettings returns the settings of the agent, each with the name of which it is the alias.
func knownSettings(t *testing.T) map[string]string {
	t.Helper()

	known := make(map[string]string)
	row := regexp.MustCompile("(?m)^\\| `([A-Z][A-Z0-9_]*)` \\|.*?(?:Alias: `([A-Z0-9_]+)`.*)?$")
	for _, found := range row.FindAllStringSubmatch(readText(t, "../../docs/reference/agent.md"), -1) {
		known[found[1]] = ""
		if alias := found[2]; alias != "" {
			known[alias] = found[1]
		}
	}

	if len(known) < 40 {
		t.Fatalf("docs/reference/agent.md has only %d settings", len(known))
	}

	return known
}

func aliasesOf(known map[string]string) map[string]string {
	aliases := maps.Clone(known)
	maps.DeleteFunc(aliases, func(_, name string) bool { return name == "" })
	return aliases
}

// reserved returns only the names that reservedSettings maps to true.
func reserved(inManifests []string) map[string]bool {
	names := reservedSettings(inManifests)
	maps.DeleteFunc(names, func(_ string, isReserved bool) bool { return !isReserved })
	return names
}

// reservedInChart also fails if the template sets a variable that a user may set.
func reservedInChart(t *testing.T) map[string]bool {
	t.Helper()

	var schema struct {
		Properties struct {
			Env struct {
				PropertyNames struct {
					Not struct {
						Enum []string `json:"enum"`
					} `json:"not"`
				} `json:"propertyNames"`
			} `json:"env"`
		} `json:"properties"`
	}

	const chart = "../../deploy/charts/runtime-watcher-agent/"
	if err := json.Unmarshal([]byte(readText(t, chart+"values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}

	names := make(map[string]bool)
	for _, name := range schema.Properties.Env.PropertyNames.Not.Enum {
		names[name] = true
	}

	variable := regexp.MustCompile(`- \{?name: ([A-Z][A-Z0-9_]+)\b`)
	var set []string
	for _, found := range variable.FindAllStringSubmatch(readText(t, chart+"templates/deployment.yaml"), -1) {
		set = append(set, found[1])
	}

	if len(set) < 15 {
		t.Fatalf("the template sets only %q", set)
	}

	for _, name := range slices.Compact(slices.Sorted(slices.Values(set))) {
		if !names[name] && name != "OWNER_ANNOTATION" {
			t.Errorf("the template sets %s, which values.schema.json lets env set as well", name)
		}
	}

	return names
}
