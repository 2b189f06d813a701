// Package budget proves the dependencies of each module beyond the standard library. The table is in
// docs/maintainers/design.md. The test does not depend on the settings of a linter.
package budget

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

const root = "github.com/runtime-watcher/runtime-watcher/"

// types are the packages of Kubernetes that the core may depend on.
const types = "k8s.io/apimachinery/pkg/types k8s.io/apimachinery/pkg/runtime/schema"

// budgets have the packages that a module may depend on, directly or not.
var budgets = []struct {
	module   string // its folder
	packages string // patterns below it
	modules  int    // how many third-party modules at most; 0 means that only allowed counts
	reason   string
	// allowed are import paths. Ours are relative. One that ends in "/..." includes its subfolders.
	allowed string
}{
	{
		".", "./core ./core/contract ./core/fleet/... ./core/hook ./core/intake ./core/outbox ./core/watch", 1,
		"the hexagon knows no transport and no cluster: an importer gets types and ports, and nothing else",
		types + " core/... internal/...",
	},
	{
		".", "./core/coretest", 0,
		"a conformance suite must not bring more than it tests",
		types + " core/... internal/... github.com/google/go-cmp/...",
	},
	{
		".", "./core/coremock", 0,
		"only mocks need gomock",
		types + " core/... internal/... go.uber.org/mock/... github.com/google/go-cmp/...",
	},
	{
		".", "./listener/...", 1,
		"an operator embeds it: it must not choose a version of anything for the operator",
		types + " core/... listener/... keys/... internal/...",
	},
	{
		".", "./keys/... ./internal/shared/connect ./internal/dns1123 ./internal/httpserver ./internal/pacedlog ./internal/rawjson", 0,
		"agent and listener share them: the standard library is enough",
		"keys/... internal/...",
	},
	{
		"adapters/opentelemetry", "./...", 0,
		"the API of OpenTelemetry: the program chooses SDK and exporter",
		types + " core/... internal/... adapters/opentelemetry go.opentelemetry.io/otel/... go.opentelemetry.io/auto/sdk/... " +
			"github.com/cespare/xxhash/v2 github.com/go-logr/...",
	},
	{
		"adapters/informer", "./...", 0,
		"runs in the agent: the reflector and the REST client of client-go, and what these need",
		"core/... internal/... adapters/informer k8s.io/apimachinery/... k8s.io/client-go/rest/... k8s.io/client-go/tools/... " +
			"k8s.io/client-go/transport/... k8s.io/client-go/util/... k8s.io/client-go/features/... k8s.io/client-go/pkg/... " +
			"k8s.io/client-go/plugin/pkg/client/auth/exec/... k8s.io/klog/v2/... k8s.io/utils/... k8s.io/kube-openapi/pkg/... " +
			"sigs.k8s.io/... github.com/go-logr/logr/... github.com/fxamacker/cbor/v2/... github.com/json-iterator/go/... " +
			"github.com/modern-go/... github.com/munnerz/goautoneg/... github.com/x448/float16/... github.com/davecgh/go-spew/... " +
			"github.com/pmezard/go-difflib/... go.yaml.in/yaml/... golang.org/x/... gopkg.in/inf.v0/...",
	},
	{
		"adapters/httpmtls", "./...", 0,
		"runs in the agent: small image, small attack surface",
		types + " core/... internal/... keys/... adapters/httpmtls/... github.com/hashicorp/go-retryablehttp " +
			"github.com/hashicorp/go-cleanhttp",
	},
	{
		"adapters/natsjetstream", "./...", 0,
		"runs in agents: the client of NATS, and never its server",
		types + " core/... internal/... adapters/natsjetstream github.com/nats-io/nats.go/... github.com/nats-io/nkeys/... " +
			"github.com/nats-io/nuid github.com/klauspost/compress/... golang.org/x/crypto/... golang.org/x/sys/...",
	},
}

// bans are packages that a module must never depend on.
var bans = []struct{ module, packages, reason, banned string }{
	{
		".", "./core ./core/contract ./core/fleet/... ./core/hook ./core/intake ./core/outbox ./core/watch ./keys",
		"internal/shared stands on core and keys",
		"internal/shared/...",
	},
	{
		"adapters/admission", "./...",
		"it reads reviews, and neither asks a cluster nor knows how events travel",
		"k8s.io/client-go/... sigs.k8s.io/controller-runtime/... listener/... adapters/httpmtls/... github.com/google/cel-go/...",
	},
	{
		"adapters/controllerruntime", "./...",
		"the operator's side does not carry the agent",
		"adapters/httpmtls/... adapters/admission/... controlplane/... adapters/prometheus/... github.com/hashicorp/...",
	},
	{
		"adapters/controllerruntime", "./remote/...",
		"a client of a cluster with bounds needs neither a listener nor kinds of others",
		"listener/... keys/... adapters/admission/... controlplane/... github.com/cert-manager/... istio.io/... sigs.k8s.io/gateway-api/...",
	},
	{
		"adapters/multicluster", "./...",
		"an operator links no kinds of others to reach a cluster",
		"adapters/httpmtls/... adapters/admission/... controlplane/... github.com/cert-manager/... istio.io/... sigs.k8s.io/gateway-api/...",
	},
	{
		"controlplane", "./api/... ./config/...",
		"a program that only reads or writes Watchers needs their type, and nothing that runs",
		"k8s.io/client-go/... sigs.k8s.io/controller-runtime/... istio.io/... sigs.k8s.io/gateway-api/... ...",
	},
	{
		"controlplane", "./api/... ./certificates/... ./config/... ./installation/... ./keysource/... ./runtimes/... ./watcher/...",
		"an operator's side takes the types of others, not their clients and controllers",
		"listener/... adapters/controllerruntime adapters/prometheus/... istio.io/client-go/pkg/clientset/... " +
			"istio.io/client-go/pkg/informers/... sigs.k8s.io/gateway-api/pkg/... " +
			"github.com/cert-manager/cert-manager/pkg/client/... github.com/cert-manager/cert-manager/pkg/controller/...",
	},
	{
		"controlplane", "./...",
		"the parser is enough to guard a condition: an API server evaluates it",
		"github.com/google/cel-go/cel/... github.com/google/cel-go/interpreter/... k8s.io/apiserver/...",
	},
	{
		"controlplane", "./api/... ./certificates/... ./config/... ./installation/... ./runtimes/... ./watcher/...",
		"only keysource needs key material: an operator behind a gateway links no client of ours",
		"adapters/httpmtls/... github.com/hashicorp/...",
	},
	{
		"adapters/prometheus", "./...",
		"hooks are joined by their signatures: metrics must not tie the agent to the operator",
		"listener/... adapters/admission/... adapters/httpmtls/... k8s.io/api/... k8s.io/client-go/...",
	},
	{
		"cmd/agent", "./...",
		"runs in every runtime: small image, small memory, small attack surface",
		"sigs.k8s.io/controller-runtime/... k8s.io/client-go/kubernetes/... k8s.io/client-go/dynamic/... " +
			"k8s.io/client-go/informers/... k8s.io/client-go/discovery/... k8s.io/client-go/tools/clientcmd listener/... " +
			"adapters/controllerruntime/... github.com/google/cel-go/...",
	},
	{
		"agent", "./...",
		"a composition with another source does not pay for the informer",
		"k8s.io/client-go/... adapters/informer/...",
	},
}

func TestBudgets(t *testing.T) {
	for _, b := range budgets {
		t.Run(b.module+" "+b.packages, func(t *testing.T) {
			t.Parallel()
			modules := make(map[string]bool)
			for path, module := range dependencies(t, b.module, b.packages) {
				if !strings.HasPrefix(module+"/", root) {
					modules[module] = true
				}
				if !matches(b.allowed, path) {
					t.Errorf("%s %s depends on %s: %s", b.module, b.packages, path, b.reason)
				}
			}
			if b.modules > 0 && len(modules) > b.modules {
				t.Errorf("%s needs the modules %v, want at most %d", b.module, modules, b.modules)
			}
		})
	}
	for _, b := range bans {
		t.Run("bans of "+b.module+" "+b.packages, func(t *testing.T) {
			t.Parallel()
			for path := range dependencies(t, b.module, b.packages) {
				if !matches(b.module+" "+b.module+"/...", path) && matches(b.banned, path) {
					t.Errorf("%s %s depends on %s: %s", b.module, b.packages, path, b.reason)
				}
			}
		})
	}
}

// The ground imports neither another package of the house nor another module, so each package of the
// house may import it.
func TestGround(t *testing.T) {
	const ground = root + "internal/"

	for _, line := range list(t, ".", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./internal/...") {
		path, imports, _ := strings.Cut(line, " ")
		if matches("internal/shared/...", path) {
			continue
		}

		for imported := range strings.FieldsSeq(imports) {
			host, _, _ := strings.Cut(imported, "/")
			isStandard := !strings.Contains(host, ".")
			isGround := strings.HasPrefix(imported, ground) && !matches("internal/shared/...", imported)
			if !isStandard && !isGround {
				t.Errorf("%s imports %s: put it into internal/shared", path, imported)
			}
		}
	}
}

// floors are the oldest versions that pass, which make floors tests. A library asks an operator for no newer ones.
var floors = map[string]string{
	".":                                  "k8s.io/apimachinery v0.35.0",
	"adapters/prometheus":                "github.com/prometheus/client_golang v1.23.2",
	"adapters/natsjetstream":             "github.com/nats-io/nats.go v1.55.0\nk8s.io/apimachinery v0.35.0",
	"adapters/opentelemetry":             "go.opentelemetry.io/otel v1.41.0\nk8s.io/apimachinery v0.35.0",
	"adapters/controllerruntime":         "go 1.26.0\nk8s.io/client-go v0.35.0\nsigs.k8s.io/controller-runtime v0.23.0",
	"adapters/multicluster":              "go 1.26.3\nk8s.io/client-go v0.36.3\nsigs.k8s.io/controller-runtime v0.24.1\nsigs.k8s.io/multicluster-runtime v0.24.1",
	"controlplane/certificates/gardener": "k8s.io/api v0.36.3\nsigs.k8s.io/controller-runtime v0.24.1",
	"controlplane/lifecyclemanager":      "k8s.io/apimachinery v0.36.3\nsigs.k8s.io/controller-runtime v0.24.1",
	"controlplane":                       "istio.io/client-go v1.30.3\nk8s.io/client-go v0.36.3\nsigs.k8s.io/controller-runtime v0.24.1",
}

func TestFloors(t *testing.T) {
	for module, want := range floors {
		args := []string{"list", "-m"}
		for floor := range strings.SplitSeq(want, "\n") {
			args = append(args, strings.Fields(floor)[0])
		}
		if got := strings.Join(list(t, module, args...), "\n"); got != want {
			t.Errorf("%s requires %q, want %q", module, got, want)
		}
	}
}

// matches reports whether one of the patterns matches an import path.
func matches(patterns, path string) bool {
	for pattern := range strings.FieldsSeq(patterns) {
		if host, _, _ := strings.Cut(pattern, "/"); !strings.Contains(host, ".") || pattern == "..." {
			pattern = root + pattern
		}
		prefix, below := strings.CutSuffix(pattern, "/...")
		if path == prefix || below && strings.HasPrefix(path, prefix+"/") {
			return true
		}
	}
	return false
}

// dependencies returns the packages beyond the standard library that packages of a module depend on,
// each with its module. The workspace is off.
func dependencies(t *testing.T, module, patterns string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	args := append([]string{"list", "-deps", "-f", "{{with .Module}}{{$.ImportPath}} {{.Path}}{{end}}"}, strings.Fields(patterns)...)
	for _, line := range list(t, module, args...) {
		path, module, _ := strings.Cut(line, " ")
		found[path] = module
	}
	return found
}

// list returns the lines of a go list in a module without the workspace, at least one.
func list(t *testing.T, module string, args ...string) []string {
	t.Helper()
	test.NoticeSources(t)

	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = filepath.Join(test.Root(), module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var problem strings.Builder
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %v in %s: %v: %s", args, module, err, problem.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if lines[0] == "" {
		t.Fatalf("go %v in %s lists no package, want at least one", args, module)
	}
	return lines
}
