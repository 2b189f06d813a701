package main

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	coreMod     = "module github.com/runtime-watcher/runtime-watcher/core\n\ngo 1.26.0\n"
	listenerMod = `module github.com/runtime-watcher/runtime-watcher/listener

go 1.26.0

require github.com/runtime-watcher/runtime-watcher/core v0.0.0

replace github.com/runtime-watcher/runtime-watcher/core => ../core
`
)

// house returns the files of a small repository in which every check passes.
func house() map[string]string {
	return map[string]string{
		"go.work":               "go 1.26.0\n\nuse (\n\t./core\n\t./listener\n)\n",
		"core/go.mod":           coreMod,
		"core/core.go":          "// Package core is small.\npackage core\n\n//go:generate touch generated\n\n// One is 1.\nconst One = 1\n",
		"core/generated":        "",
		"core/core_test.go":     "package core\n\nimport \"testing\"\n\nfunc TestOne(t *testing.T) {\n\tif One != 1 {\n\t\tt.Error(One)\n\t}\n}\n",
		"listener/go.mod":       listenerMod,
		"listener/listener.go":  "// Package listener is small.\npackage listener\n\nimport \"github.com/runtime-watcher/runtime-watcher/core\"\n\n// Two is 2.\nconst Two = core.One + 1\n",
		"listener/testdata/x.y": "",
		".golangci.yml":         "linters:\n  enable:\n    # Bugs.\n    - gosec\n    - errcheck\n\n  settings:\n    - mnd\n",
		"tools/exported.txt":    "   1 core\n   1 listener\n",
		"core/bench_test.go": "package core\n\nimport \"testing\"\n\nvar kept []byte\n\nfunc BenchmarkOne(b *testing.B) {\n" +
			"\tfor b.Loop() {\n\t\tkept = make([]byte, 512)\n\t}\n}\n",
		"tools/bench-baseline.txt": "pkg: github.com/runtime-watcher/runtime-watcher/core\nBenchmarkOne-2 9 9 ns/op 512 B/op 1 allocs/op\n",
	}
}

func TestChecks(t *testing.T) {
	tests := map[string]struct {
		check string
		spoil func(map[string]string)
		want  []string
	}{
		"a module that go.work does not use": {
			"workspace", func(f map[string]string) { f["go.work"] = "go 1.26.0\n\nuse ./core\n" },
			[]string{"listener has a go.mod, and go.work does not use it"},
		},
		"another Go version": {
			"workspace", func(f map[string]string) { f["core/go.mod"] = strings.Replace(coreMod, "1.26.0", "1.25.0", 1) },
			[]string{"core/go.mod says go 1.25.0, go.work says go 1.26.0"},
		},
		"another name": {
			"modules", func(f map[string]string) { f["core/go.mod"] = strings.Replace(coreMod, "/core", "/heart", 1) },
			[]string{"the module is called", "watcher/heart", "watcher/core"},
		},
		"a sibling without replace": {
			"modules", func(f map[string]string) { f["listener/go.mod"], _, _ = strings.Cut(listenerMod, "replace") },
			[]string{"listener: requires core", "want its folder"},
		},
		"a sibling replaced by another folder": {
			"modules", func(f map[string]string) {
				f["listener/go.mod"] = strings.Replace(listenerMod, "=> ../core", "=> ../other", 1)
			},
			[]string{`"../other"`, "want its folder"},
		},
		"a sibling that is never released": {
			"modules", func(f map[string]string) {
				f["listener/go.mod"] = strings.ReplaceAll(listenerMod, "core", "test")
			},
			[]string{"listener: requires test, which is never released"},
		},
		"a new exported name": {
			"exported", func(f map[string]string) { f["core/new.go"] = "package core\n\n// New is new.\ntype New int\n" },
			[]string{"core: 2 exported names, tools/exported.txt says 1"},
		},
		"fewer exported names": {
			"exported", func(f map[string]string) { f["tools/exported.txt"] = "   9 core\n   1 listener\n" },
			[]string{"core: 1 exported names, tools/exported.txt says 9"},
		},
		"a module without an agreed number": {
			"exported", func(f map[string]string) { f["tools/exported.txt"] = "   1 core\n" },
			[]string{"listener: 1 exported names, tools/exported.txt says nothing"},
		},
		"a number without its module": {
			"exported", func(f map[string]string) { f["tools/exported.txt"] += "   3 adapters/old\n" },
			[]string{"adapters/old: no such module, tools/exported.txt says 3"},
		},
		"a benchmark that allocates more": {
			"memory", func(f map[string]string) {
				f["core/bench_test.go"] = strings.Replace(f["core/bench_test.go"], "512", "1024", 1)
			},
			[]string{"core BenchmarkOne: 1024 B/op, before 512"},
		},
		"a benchmark that is gone": {
			"memory", func(f map[string]string) { f["core/bench_test.go"] = "package core\n" },
			[]string{"core BenchmarkOne: gone"},
		},
		"a directive for a linter that is not enabled": {
			"nolint", func(f map[string]string) {
				f["deploy/x.go"] = "package x\n\nvar a int //nolint:gosec // Why.\n\nvar b int //nolint:errcheck,mnd // Why.\n"
			},
			[]string{"deploy/x.go:5: nolint of mnd, which is not enabled"},
		},
		"a test that sleeps": {
			"sleep", func(f map[string]string) {
				f["core/sleep_test.go"] = "package core\n\nimport \"time\"\n\nfunc init() { time.Sleep(1) }\n"
			},
			[]string{"core/sleep_test.go:5"},
		},
		"code that is not formatted": {
			"format", func(f map[string]string) { f["core/ugly.go"] = "package core\nconst  Ugly=1\n" },
			[]string{"core/ugly.go"},
		},
		"a requirement too much": {
			"tidy", func(f map[string]string) { f["listener/listener.go"] = "package listener\n" },
			[]string{"listener: go mod tidy -diff", "-require github.com/runtime-watcher/runtime-watcher/core"},
		},
		"stale generated code": {
			"generated", func(f map[string]string) {
				f["core/core.go"] = strings.Replace(f["core/core.go"], "touch generated", "cp core.go generated", 1)
			},
			[]string{"changed: core/generated"},
		},
		"a module that does not compile": {
			"alone", func(f map[string]string) { f["core/core.go"] = "package core\n\nconst One = two\n" },
			[]string{"core: go vet", "undefined: two"},
		},
		"a test that fails": {
			"alone", func(f map[string]string) { f["core/core.go"] = "package core\n\nconst One = 3\n" },
			[]string{"core: go test", "FAIL: TestOne"},
		},
		"a tree that is not committed": {
			"clean", func(f map[string]string) { f["core/new.go"] = "package core\n" },
			[]string{"?? core/new.go"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := house()
			dir := checkout(t, files)
			test.spoil(files)
			write(t, dir, files)

			err := verify(t, dir, test.check)
			if err == nil {
				t.Fatalf("the check %s passes", test.check)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the check says\n%v\nwithout %q", err, want)
				}
			}
		})
	}
}

func TestAllIsWell(t *testing.T) {
	dir := checkout(t, house())
	for _, c := range ofAnyRepository() {
		if err := verify(t, dir, c.name); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestModulesWithoutPackages(t *testing.T) {
	dir := checkout(t, map[string]string{
		"go.work":         "go 1.26.0\n\nuse (\n\t./core\n\t./listener\n)\n",
		"core/go.mod":     coreMod,
		"listener/go.mod": strings.Replace(coreMod, "/core", "/listener", 1),

		".golangci.yml":            "",
		"tools/exported.txt":       "   0 core\n   0 listener\n",
		"tools/bench-baseline.txt": "",
	})
	for _, c := range ofAnyRepository() {
		if err := verify(t, dir, c.name); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// ofAnyRepository returns the checks that need no module of this repository.
func ofAnyRepository() []check {
	return slices.DeleteFunc(checks(), func(c check) bool { return c.name == "consumer" })
}

func TestSleeps(t *testing.T) {
	const bubble = "func TestY(t *testing.T) { synctest.Test(t, y) }\n"
	tests := map[string]struct {
		source string
		want   int
	}{
		"in real time":               {`func TestX(t *testing.T) { time.Sleep(1) }`, 1},
		"in a helper":                {`func wait() { time.Sleep(1) }`, 1},
		"in the bubble":              {`func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }`, 0},
		"beside the bubble":          {`func TestX(t *testing.T) { synctest.Test(t, f); time.Sleep(1) }`, 1},
		"in a bubble with a name":    {"func in(f func()) { synctest.Test(nil, f) }\nfunc TestX(t *testing.T) { in(func() { time.Sleep(1) }) }", 0},
		"in a helper of the bubble":  {bubble + `func wait(d time.Duration) { time.Sleep(d) }`, 0},
		"in a method of the bubble":  {bubble + `func (c *Clock) Wait(t *testing.T) { time.Sleep(1) }`, 0},
		"in another test's own time": {bubble + `func BenchmarkX(b *testing.B) { time.Sleep(1) }`, 1},
		"something else":             {`func TestX(t *testing.T) { clock.Sleep(1); time.After(1) }`, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			file, err := parser.ParseFile(token.NewFileSet(), "x_test.go", "package x\n"+test.source, 0)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(sleeps([]*ast.File{file})); got != test.want {
				t.Errorf("found %d, want %d", got, test.want)
			}
		})
	}
}

func TestFirst(t *testing.T) {
	if got := first(2, "a\nb\nc\nd"); got != "a\nb\n... and 2 lines more" {
		t.Errorf("got %q", got)
	}
	if got := first(2, "a\nb"); got != "a\nb" {
		t.Errorf("got %q", got)
	}
}

func TestSelectChecks(t *testing.T) {
	if got, err := selectChecks("tidy,alone"); err != nil || len(got) != 2 || got[1].name != "alone" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := selectChecks("tidy,nonsense"); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v", err)
	}
}

// verify runs one check as CI does, with a clean tree before it.
func verify(t *testing.T, dir, name string) error {
	t.Helper()
	repo, err := openRepository(context.Background(), dir, []string{"core", "listener"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	repo.mustBeClean = true
	selected, err := selectChecks(name)
	if err != nil {
		t.Fatal(err)
	}
	return selected[0].run(context.Background(), repo)
}

// checkout returns a folder under git in which the files are committed.
func checkout(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	for _, args := range [][]string{
		{"init", "-q"},
		{"add", "-A"},
		{"-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false", "commit", "-q", "-m", "all"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args[0], err, out)
		}
	}
	return dir
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
