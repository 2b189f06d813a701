package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// budget is what a module may make its users compile, directly or through others. The linter sees direct imports only.
type budget struct {
	dir string
	// only, when given, lists all modules that may be linked beside the standard library.
	only []string
	// never lists modules that must not be linked, each with the reason.
	never map[string]string
}

const (
	apimachinery = "k8s.io/apimachinery"
	core         = rootPath + "core"

	agentMemory = "its caches are the memory that an agent must not take from a runtime"
	operator    = "it is the operator's side"
)

// budgets are the arrows of the design, seen from the outside.
func budgets() []budget {
	return []budget{
		// The hexagon: names of objects and kinds, and nothing that does I/O.
		{dir: "core", only: []string{apimachinery}},
		// An operator embeds it beside whatever it has: it must agree with every version of everything.
		{dir: "listener", only: []string{core, apimachinery}},
		// A forwarder is embedded, too. cleanhttp and sys are what the other two need.
		{dir: "adapters/httpmtls", only: []string{
			core, apimachinery,
			"github.com/hashicorp/go-retryablehttp", "github.com/hashicorp/go-cleanhttp",
			"github.com/fsnotify/fsnotify", "golang.org/x/sys",
		}},
		{dir: "adapters/admission", never: map[string]string{
			"k8s.io/client-go":               "a webhook is called, it calls nobody",
			"sigs.k8s.io/controller-runtime": agentMemory,
		}},
		{dir: "adapters/prometheus", never: map[string]string{
			"k8s.io/client-go":               "metrics need no cluster",
			"sigs.k8s.io/controller-runtime": "agents have metrics, too: " + agentMemory,
		}},
		{dir: "adapters/controllerruntime", never: map[string]string{
			rootPath + "adapters/admission": "admission happens in a runtime, this is the control plane",
		}},
		{dir: "cmd/agent", never: map[string]string{
			"sigs.k8s.io/controller-runtime":        agentMemory,
			rootPath + "adapters/controllerruntime": operator,
			rootPath + "adapters/controlplane":      operator,
			rootPath + "listener":                   operator + "; what both share is core/contract",
		}},
	}
}

// forTests are packages that only tests import: what they need is no burden to a user.
var forTests = []string{"coremock", "coretest", "testpki"}

// checkArrows wants every module to link what its budget allows. Modules that are not there have nothing to link.
func checkArrows(ctx context.Context, repo *repository) error {
	var errs []error
	for _, b := range budgets() {
		if !slices.ContainsFunc(repo.modules, func(m module) bool { return m.Dir == b.dir }) {
			continue
		}
		linked, err := repo.linked(ctx, b.dir)
		errs = append(errs, err, b.check(linked))
	}
	return errors.Join(errs...)
}

// check takes the modules that are linked, each with a package of it.
func (b budget) check(linked map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(linked)) {
		if reason, ok := b.never[name]; ok {
			errs = append(errs, fmt.Errorf("%s links %s: %s", b.dir, linked[name], reason))
		}
		if len(b.only) > 0 && !slices.Contains(b.only, name) {
			errs = append(errs, fmt.Errorf("%s links %s: only %s may be", b.dir, linked[name], strings.Join(b.only, ", ")))
		}
	}
	return errors.Join(errs...)
}

// linked maps the foreign modules that the packages of a module need, without their tests, to a package of each.
func (r *repository) linked(ctx context.Context, dir string) (map[string]string, error) {
	packages, err := r.output(ctx, dir, "go", "list", "./...")
	if err != nil {
		return nil, err
	}
	args := []string{"list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{$.ImportPath}}{{end}}{{end}}"}
	given := len(args)
	for name := range strings.FieldsSeq(packages) {
		if !slices.Contains(forTests, path.Base(name)) {
			args = append(args, name)
		}
	}
	if len(args) == given {
		return nil, nil
	}
	out, err := r.output(ctx, dir, "go", args...)
	if err != nil {
		return nil, err
	}
	linked := map[string]string{}
	for line := range strings.Lines(out) {
		if module, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			linked[module] = name
		}
	}
	return linked, nil
}
