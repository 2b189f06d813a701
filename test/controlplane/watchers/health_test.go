package watchers

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

var updateHealth = flag.Bool("update", false, "write the patch for Argo CD anew")

const (
	healthFolder = "deploy/argocd"
	healthScript = healthFolder + "/health.lua"
	healthPatch  = healthFolder + "/argocd-cm.patch.yaml"
	healthKey    = "resource.customizations.health.operator.kyma-project.io_Watcher"
)

// health is the result of a script for Argo CD.
type health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// healthOf runs a script as Argo CD does (util/lua of argoproj/argo-cd): with these libraries, the object in the variable
// obj, and a table as the result.
func healthOf(script string, object map[string]any) (result health, err error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			return result, err
		}
	}
	state.SetGlobal("obj", toLua(state, object))
	if err := state.DoString(script); err != nil {
		return result, err
	}
	table, _ := state.Get(-1).(*lua.LTable)
	if table == nil {
		return result, nil
	}
	return health{lua.LVAsString(table.RawGetString("status")), lua.LVAsString(table.RawGetString("message"))}, nil
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, field := range v {
			table.RawSetString(key, toLua(state, field))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, element := range v {
			table.Append(toLua(state, element))
		}
		return table
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	default:
		return lua.LNil
	}
}

// TestHealthOfWatchers runs the cases beside the script, which have the form of Argo CD's own tests. There is one for each
// reason and each state of a Watcher.
func TestHealthOfWatchers(t *testing.T) {
	t.Parallel()
	var cases struct {
		Tests []struct {
			HealthStatus health `json:"healthStatus"`
			InputPath    string `json:"inputPath"`
		} `json:"tests"`
	}
	rig.NoError(t, yaml.UnmarshalStrict(test.Read(t, healthFolder+"/health_test.yaml"), &cases))
	var inputs strings.Builder
	for _, c := range cases.Tests {
		text := test.Read(t, healthFolder+"/"+c.InputPath)
		inputs.Write(text)
		var object map[string]any
		rig.NoError(t, yaml.Unmarshal(text, &object))
		have, err := healthOf(string(test.Read(t, healthScript)), object)
		rig.NoError(t, err)
		rig.Same(t, c.InputPath, c.HealthStatus, have)
	}
	files := rig.Must(filepath.Glob(filepath.Join(test.Root(), healthFolder, "testdata", "*.yaml")))
	rig.Same(t, "inputs with a case", len(files), len(cases.Tests))

	declared := string(test.Read(t, "controlplane/api/v1beta2/conditions.go"))
	constants := regexp.MustCompile(`\b(?:Reason|State)\w+(?: State)? += "(\w+)"`).FindAllStringSubmatch(declared, -1)
	if len(constants) < 20 {
		t.Errorf("%d reasons and states, want at least 20", len(constants))
	}
	for _, constant := range constants {
		if !regexp.MustCompile(`(?:reason|state): ` + constant[1] + `\b`).MatchString(inputs.String()) {
			t.Errorf("%s has no case", constant[1])
		}
	}
}

// The patch for the ConfigMap of Argo CD has the script.
func TestHealthIsShipped(t *testing.T) {
	t.Parallel()
	script := string(test.Read(t, healthScript))
	shipped := string(test.Read(t, healthPatch))
	head, _, found := strings.Cut(shipped, healthKey+": |\n")
	if !found {
		t.Fatalf("%s has no key %s", healthPatch, healthKey)
	}
	var want strings.Builder
	want.WriteString(head + healthKey + ": |\n")
	for line := range strings.Lines(script) {
		if strings.TrimSpace(line) != "" {
			want.WriteString("    ")
		}
		want.WriteString(line)
	}
	if *updateHealth {
		rig.NoError(t, os.WriteFile(filepath.Join(test.Root(), healthPatch), []byte(want.String()), 0o644))
		shipped = want.String()
	}
	rig.Same(t, healthPatch+" is stale, write it with -update", want.String(), shipped)
	var patch struct {
		Data map[string]string `json:"data"`
	}
	rig.NoError(t, yaml.UnmarshalStrict([]byte(shipped), &patch))
	rig.Same(t, "script in the patch", script, patch.Data[healthKey])
}

// agreesWithArgo compares the health for Argo CD with the condition Ready of a Watcher that the controller has written.
func (r *routes) agreesWithArgo(watcher *unstructured.Unstructured, ready, reason string) {
	r.t.Helper()
	have, err := healthOf(string(test.Read(r.t, healthScript)), watcher.Object)
	r.must(err)
	want := map[string]string{"True": "Healthy", "False": "Degraded", "Unknown": "Progressing"}[ready]
	if reason == "NotInstalled" {
		want = "Progressing"
	}
	if have.Status != want || !slices.Contains(strings.Fields(have.Message), reason+":") {
		r.t.Errorf("%s is %+v for Argo CD, want %s because Ready is %s (%s)", watcher.GetName(), have, want, ready, reason)
	}
}
