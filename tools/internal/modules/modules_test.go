package modules_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// house returns a repository of three modules: the agent needs core, and a test needs both.
func house(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	write(t, root, map[string]string{
		"LICENSE":              "the license",
		"core/go.mod":          mod("core"),
		"core/core.go":         "// Package core has one name.\npackage core\n\n// One is 1.\nconst One = 1\n",
		"cmd/agent/go.mod":     mod("cmd/agent", "core"),
		"cmd/agent/main.go":    "package main\n\nimport \"" + measure.Path("core") + "\"\n\nfunc main() { println(core.One) }\n",
		"test/go.mod":          mod("test", "cmd/agent", "core"),
		"core/testdata/go.mod": "module not.read\n",
		"bin/go.mod":           "module not.read\n",
	})
	return root
}

// mod returns a go.mod that replaces its siblings.
func mod(dir string, siblings ...string) string {
	var text strings.Builder
	text.WriteString("module " + measure.Path(dir) + "\n\ngo 1.26.0\n")
	up := strings.Repeat("../", strings.Count(dir, "/")+1)
	for _, sibling := range siblings {
		path := measure.Path(sibling)
		text.WriteString("\nrequire " + path + " v0.0.0\n\nreplace " + path + " => " + up + sibling + "\n")
	}
	return text.String()
}

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(root, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o700))
		check(t, os.WriteFile(path, []byte(content), 0o600))
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, root string) []modules.Module {
	t.Helper()
	all, err := modules.Load(root)
	check(t, err)
	return all
}

func TestLoadPutsSiblingsFirst(t *testing.T) {
	var order []string
	for _, m := range load(t, house(t)) {
		order = append(order, m.Dir)
	}
	if want := []string{"core", "cmd/agent", "test"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct{ file, content, want string }{
		"a cycle":           {"core/go.mod", mod("core", "cmd/agent"), "in a cycle"},
		"a missing sibling": {"core/go.mod", mod("core", "other"), "other is required, but is no module"},
		"a broken go.mod":   {"core/go.mod", "module", "go.mod"},
	} {
		t.Run(name, func(t *testing.T) {
			root := house(t)
			write(t, root, map[string]string{c.file: c.content})
			if _, err := modules.Load(root); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about %q", err, c.want)
			}
		})
	}
	if _, err := modules.Load(t.TempDir()); err == nil {
		t.Error("a folder without modules is loaded")
	}
}

func TestPin(t *testing.T) {
	root := house(t)
	for _, m := range load(t, root) {
		check(t, modules.Pin(root, m, "v1.2.3"))
		text, err := os.ReadFile(filepath.Join(root, m.Dir, "go.mod"))
		check(t, err)
		if strings.Contains(string(text), "v0.0.0") || strings.Count(string(text), "v1.2.3") != len(m.Siblings) {
			t.Errorf("%s requires siblings at other versions than v1.2.3:\n%s", m.Dir, text)
		}
		if replaced := strings.Contains(string(text), "replace"); replaced == m.Released() && len(m.Siblings) > 0 {
			t.Errorf("%s: replaced %v, released %v:\n%s", m.Dir, replaced, m.Released(), text)
		}
	}
}

// TestProxy builds the agent from the proxy, with the sums that the proxy names. The go command
// compares them with its own.
func TestProxy(t *testing.T) {
	root, dir := house(t), t.TempDir()
	proxy := modules.NewProxy(dir)
	runner := modules.NewGo(proxy)
	const version = "v0.0.0-test.of.a.proxy"
	all := load(t, root)
	t.Cleanup(func() { check(t, runner.Forget(context.WithoutCancel(t.Context()), all, version)) })
	var sums strings.Builder
	for _, m := range all {
		check(t, errors.Join(modules.Pin(root, m, version), proxy.Add(root, m, version, time.Now())))
		lines, err := proxy.Sums(m, version)
		check(t, err)
		sums.WriteString(lines)
	}

	agent := measure.Path("cmd/agent")
	consumer := t.TempDir()
	write(t, consumer, map[string]string{
		"go.mod":  "module x\n\ngo 1.26.0\n\ntool " + agent + "\n\nrequire " + agent + " " + version + "\n",
		"go.sum":  sums.String(),
		"core.go": "package x\n\nimport _ \"" + measure.Path("core") + "\"\n",
	})
	_, err := runner.Run(t.Context(), consumer, "go", "build", "./...", agent)
	check(t, err)
	check(t, runner.Install(t.Context(), dir, agent+"@"+version))
	license, err := runner.Run(t.Context(), consumer, "go", "list", "-m", "-f", "{{.Dir}}", measure.Path("core"))
	check(t, err)
	if _, err := os.Stat(filepath.Join(strings.TrimSpace(license), "LICENSE")); err != nil {
		t.Errorf("the packed module has no license: %v", err)
	}

	write(t, consumer, map[string]string{"go.sum": strings.ReplaceAll(sums.String(), "h1:", "h1:A")})
	if _, err := runner.Run(t.Context(), consumer, "go", "build", "./..."); err == nil {
		t.Error("wrong sums are accepted")
	}
}
