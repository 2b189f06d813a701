package modules_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
		"cmd/agent/main.go":    "package main\n\nimport \"" + modules.Path("core") + "\"\n\nfunc main() { println(core.One) }\n",
		"test/go.mod":          mod("test", "cmd/agent", "core"),
		"core/testdata/go.mod": "module not.read\n",
		"bin/go.mod":           "module not.read\n",
	})

	return root
}

// mod returns a go.mod that replaces its siblings.
func mod(dir string, siblings ...string) string {
	var text strings.Builder
	text.WriteString("module " + modules.Path(dir) + "\n\ngo 1.26.0\n")
	up := strings.Repeat("../", strings.Count(dir, "/")+1)

	for _, sibling := range siblings {
		path := modules.Path(sibling)
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
		"a missing sibling": {"core/go.mod", mod("core", "other"), "other is required, but is not a module"},
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

// TestPin tags a clone of the house, and imports the agent as others do: the go command fetches it
// from the clone, and compares the sums that the tags name with its own.
func TestPin(t *testing.T) {
	for name, value := range map[string]string{
		"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.com",
		"GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.com", "GIT_CONFIG_GLOBAL": os.DevNull,
	} {
		t.Setenv(name, value)
	}

	root := house(t)
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"commit", "--quiet", "--message", "all"}} {
		_, err := modules.Git(t.Context(), root, args...)
		check(t, err)
	}

	clone, err := modules.NewClone(t.Context(), root, filepath.Join(t.TempDir(), "clone"), "HEAD")
	check(t, err)
	const version = "v0.0.0-test.of.a.clone"
	versions := modules.Versions{Stable: version, Contrib: version}
	all := load(t, clone.Dir)
	t.Cleanup(func() { check(t, clone.Forget(context.WithoutCancel(t.Context()), all, versions)) })
	check(t, clone.Pin(t.Context(), all, versions))

	for _, m := range all {
		text, err := os.ReadFile(filepath.Join(clone.Dir, m.Dir, "go.mod"))
		check(t, err)
		if strings.Contains(string(text), "v0.0.0\n") || strings.Count(string(text), version) != len(m.Siblings) {
			t.Errorf("%s requires siblings at other versions than %s:\n%s", m.Dir, version, text)
		}
		if replaced := strings.Contains(string(text), "replace"); replaced == m.Released() && len(m.Siblings) > 0 {
			t.Errorf("%s: replaced %v, released %v:\n%s", m.Dir, replaced, m.Released(), text)
		}
	}

	agent := modules.Path("cmd/agent")
	consumer := t.TempDir()
	write(t, consumer, map[string]string{
		"go.mod":  "module x\n\ngo 1.26.0\n\ntool " + agent + "\n\nrequire " + agent + " " + version + "\n",
		"core.go": "package x\n\nimport _ \"" + modules.Path("core") + "\"\n",
	})
	_, err = clone.Run(t.Context(), consumer, "go", "build", "./...", agent)
	check(t, err)
	check(t, clone.Install(t.Context(), t.TempDir(), agent+"@"+version))
	license, err := clone.Run(t.Context(), consumer, "go", "list", "-m", "-f", "{{.Dir}}", agent)
	check(t, err)
	if _, err := os.Stat(filepath.Join(strings.TrimSpace(license), "LICENSE")); err != nil {
		t.Errorf("the fetched module has no license: %v", err)
	}

	sums, err := os.ReadFile(filepath.Join(clone.Dir, "cmd", "agent", "go.sum"))
	check(t, err)
	write(t, consumer, map[string]string{"go.sum": strings.ReplaceAll(string(sums), "h1:", "h1:A")})

	if _, err := clone.Run(t.Context(), consumer, "go", "build", "./..."); err == nil || len(sums) == 0 {
		t.Errorf("wrong sums are accepted, right ones are %q", sums)
	}
}

func TestGroups(t *testing.T) {
	const contrib = "// contrib: versions without a promise.\n"

	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a program requires contrib":        {map[string]string{"core/go.mod": contrib + mod("core")}, ""},
		"a contrib library requires stable": {map[string]string{"extra/go.mod": contrib + mod("extra", "core")}, ""},
		"a test requires contrib": {
			map[string]string{"extra/go.mod": contrib + mod("extra"), "test/go.mod": mod("test", "extra")}, "",
		},
		"a stable library requires contrib": {
			map[string]string{"extra/go.mod": contrib + mod("extra"), "core/go.mod": mod("core", "extra")},
			"core is stable and requires extra, which is contrib",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := house(t)
			write(t, root, c.files)

			err := modules.CheckGroups(load(t, root))
			if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestRevision(t *testing.T) {
	for _, c := range []struct{ folder, version, want string }{
		{".", "v0.0.0-20261129105609-143cae6cca82", "143cae6cca82"},
		{"agent", "v0.2.1-0.20261129105609-143cae6cca82", "143cae6cca82"},
		{".", "v0.2.0", "v0.2.0"},
		{"agent", "v0.2.0", "agent/v0.2.0"},
		{"agent", "v0.2.0-rc-1", "agent/v0.2.0-rc-1"},
	} {
		if got := modules.Revision(c.folder, c.version); got != c.want {
			t.Errorf("%s at %s: %q, want %q", c.folder, c.version, got, c.want)
		}
	}
}
