package tools

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	rootMod  = "module example.org/x\n\ngo 1.26.0\n"
	agentMod = "module example.org/x/agent\n\ngo 1.26.0\n\nrequire example.org/x v0.0.0\n\nreplace example.org/x => ..\n"
)

// house returns the files of a small repository in which every check of verify.sh passes.
func house(t *testing.T) map[string]string {
	t.Helper()

	files := map[string]string{
		"go.work":        "go 1.26.0\n\nuse (\n\t.\n\t./agent\n)\n",
		"go.mod":         rootMod,
		"core/core.go":   "// Package core is small.\npackage core\n\n//go:generate touch generated\n\n// One is 1.\nconst One = 1\n",
		"core/generated": "",
		"agent/go.mod":   agentMod,
		"agent/main.go":  "package main\n\nimport \"example.org/x/core\"\n\nfunc main() { println(core.One) }\n",
	}
	for _, script := range []string{"tidy.sh", "verify.sh"} {
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}

		files["tools/"+script] = string(text)
	}

	return files
}

const checks = "workspace tidy generated alone clean"

func TestVerifyPasses(t *testing.T) {
	t.Parallel()
	if out, err := verify(t, checkout(t, house(t)), checks); err != nil || strings.Count(out, "ok ") != 5 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestVerifyFails(t *testing.T) {
	for name, test := range map[string]struct {
		check string
		spoil map[string]string
		want  string
	}{
		"a module that go.work does not use": {"workspace", map[string]string{"go.work": "go 1.26.0\n\nuse .\n"}, "> agent"},
		"another Go version":                 {"workspace", map[string]string{"go.mod": strings.Replace(rootMod, "1.26.0", "1.25.0", 1)}, "./go.mod has another Go version"},
		"another name":                       {"workspace", map[string]string{"agent/go.mod": strings.Replace(agentMod, "x/agent", "x/client", 1)}, "agent/go.mod: the module is not called after its folder"},
		"a sibling that is never released":   {"workspace", map[string]string{"agent/go.mod": agentMod + "\nrequire example.org/x/test v0.0.0\n"}, "agent requires a module that is never released"},
		"a requirement too much":             {"tidy", map[string]string{"agent/main.go": "package main\n\nfunc main() {}\n"}, "agent/go.mod"},
		"a replacement too much":             {"tidy", map[string]string{"go.mod": rootMod + "\nreplace example.org/x/agent => ./agent\n"}, "go.mod"},
		"stale generated code":               {"generated", map[string]string{"core/core.go": "package core\n\n//go:generate cp core.go generated\n\nconst One = 1\n"}, "core/generated"},
		"a module that does not compile":     {"alone", map[string]string{"core/core.go": "package core\n\nconst One = two\n"}, "undefined: two"},
		"a tree that is not committed":       {"clean", map[string]string{"core/new.go": "package core\n"}, "?? core/new.go"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := checkout(t, house(t))
			write(t, dir, test.spoil)
			out, err := verify(t, dir, test.check)
			if err == nil || !strings.Contains(out, "FAIL  "+test.check) || !strings.Contains(out, test.want) {
				t.Errorf("%v, want a failure about %q\n%s", err, test.want, out)
			}
		})
	}
}

// TestTidyRequiresHead holds that VERSION=HEAD is the pseudo-version of the commit, after the last release.
func TestTidyRequiresHead(t *testing.T) {
	t.Parallel()
	dir := checkout(t, house(t))

	for _, want := range []string{"v0.0.0-[0-9]{14}-[0-9a-f]{12}", "v0.1.10-0.[0-9]{14}-[0-9a-f]{12}"} {
		cmd := exec.CommandContext(t.Context(), "tools/tidy.sh", ".", "agent")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "VERSION=HEAD", "GOFLAGS=")
		out, err := cmd.CombinedOutput()

		mod, _ := os.ReadFile(filepath.Join(dir, "agent", "go.mod")) // It is there.
		if err != nil || !regexp.MustCompile("require example.org/x "+want+"\n").Match(mod) {
			t.Errorf("%v: want %s\n%s%s", err, want, out, mod)
		}

		git(t, dir, "tag", "--force", "v0.1.9")
		git(t, dir, "tag", "--force", "v0.2.0-rc.1")
	}
}

// TestDownloadedAssets plays setup-envtest. Tests run in folders of their own, so the path must be absolute. The index is
// that of a commit.
func TestDownloadedAssets(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"setup-envtest": "#!/bin/sh\n! echo \"$6\" | grep -q '/[0-9a-f]\\{40\\}/' || echo \"$4/k8s\"\n"})
	cmd := exec.CommandContext(t.Context(), "./assets.sh")
	cmd.Env = append(os.Environ(), "KUBEBUILDER_ASSETS=", "SETUP_ENVTEST="+filepath.Join(dir, "setup-envtest"))
	if out, err := cmd.Output(); err != nil || !filepath.IsAbs(string(out)) {
		t.Errorf("assets.sh prints %q (%v), want an absolute path", out, err)
	}
}

// verify runs some checks as CI does.
func verify(t *testing.T, dir, only string) (string, error) {
	t.Helper()

	cmd := exec.CommandContext(t.Context(), "bash", "tools/verify.sh", ".", "agent")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CI=true", "ONLY="+only, "GOWORK=", "GOFLAGS=")
	out, err := cmd.CombinedOutput()

	return string(out), err
}

// checkout returns a folder under git in which the files are committed.
func checkout(t *testing.T, files map[string]string) string {
	t.Helper()

	dir := t.TempDir()
	write(t, dir, maps.Clone(files))
	git(t, dir, "init", "-q")
	git(t, dir, "add", "-A")
	git(t, dir, "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false", "commit", "-q", "-m", "all")

	return dir
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()

	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v\n%s", args[0], err, out)
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
