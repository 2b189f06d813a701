package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// world is a small repository with a remote, in the state before its first release.
type world struct {
	*testing.T

	root, remote string
}

func newWorld(t *testing.T) *world {
	t.Helper()

	for name, value := range map[string]string{
		"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.com",
		"GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.com",
		"GIT_CONFIG_GLOBAL": os.DevNull, "GOMODCACHE": t.TempDir(),
	} {
		t.Setenv(name, value)
	}

	w := &world{T: t, root: t.TempDir(), remote: filepath.Join(t.TempDir(), "remote.git")}
	w.git("init", "--quiet", "--initial-branch=main")
	w.write("LICENSE", "the license\n")
	w.write("go.work", "go 1.26.0\n\nuse (\n\t.\n\t./adapters/extra\n\t./cmd/agent\n\t./test\n)\n")
	w.write("CHANGELOG.md", "# Changes\n\n## v0.1.0 (2026-11-22)\n\nThe first one.\n")
	w.write("go.mod", mod("."))
	w.write("core/core.go", "// Package core is small.\npackage core\n\n// One is 1.\nconst One = 1\n\n// Two is 2.\nconst Two = 2\n")
	w.write("cmd/agent/go.mod", mod("cmd/agent", "."))
	w.write("cmd/agent/go.sum", "")
	w.write("cmd/agent/main.go", "package main\n\nimport \""+modules.Path("core")+"\"\n\nfunc main() { println(core.One) }\n")
	w.write("adapters/extra/go.mod", "// contrib: versions without a promise.\n"+mod("adapters/extra", "."))
	w.write("adapters/extra/go.sum", "")
	w.write("adapters/extra/extra.go", "// Package extra adds.\npackage extra\n\nimport \""+modules.Path("core")+"\"\n\n// Three is 3.\nconst Three = core.One + 2\n")
	w.write("test/go.mod", mod("test", "."))
	w.write("test/x.go", "// Package test tests.\npackage test\n\nimport _ \""+modules.Path("core")+"\"\n")
	w.commit()
	w.git("init", "--quiet", "--bare", w.remote)
	w.git("remote", "add", "origin", w.remote)
	w.git("push", "--quiet", "origin", "main")

	return w
}

func mod(dir string, siblings ...string) string {
	var text strings.Builder
	text.WriteString("module " + modules.Path(dir) + "\n\ngo 1.26.0\n")

	for _, sibling := range siblings {
		path := modules.Path(sibling)
		folder := strings.Repeat("../", strings.Count(dir, "/")+1) + sibling
		text.WriteString("\nrequire " + path + " v0.0.0\n\nreplace " + path + " => " + folder + "\n")
	}
	return text.String()
}

func (w *world) write(name, content string) {
	w.Helper()

	path := filepath.Join(w.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		w.Fatal(err)
	}
}

// change replaces a text in a file and commits.
func (w *world) change(name, old, replacement string) {
	w.Helper()

	text, err := os.ReadFile(filepath.Join(w.root, name))
	if err != nil {
		w.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		w.Fatalf("%s has no %q", name, old)
	}

	w.write(name, strings.ReplaceAll(string(text), old, replacement))
	w.commit()
}

// announce adds a section to the changelog.
func (w *world) announce(version, text string) {
	w.Helper()
	w.change("CHANGELOG.md", "# Changes\n", "# Changes\n\n## "+version+" (2026-11-22)\n\n"+text+"\n")
}

func (w *world) git(args ...string) string {
	w.Helper()

	out, err := modules.Git(w.Context(), w.root, args...)
	if err != nil {
		w.Fatal(err)
	}
	return out
}

func (w *world) commit() {
	w.Helper()
	w.git("add", "--all")
	w.git("commit", "--quiet", "--message", "change")
}

func (w *world) release(version string, flags ...string) (string, error) {
	w.Helper()

	var out bytes.Buffer
	err := run(w.Context(), append(flags, "-C="+w.root, "-version="+version, "-apidiff="+apidiff(w.T)), &out, &out)
	return out.String(), err
}

func (w *world) mustRelease(version string, flags ...string) string {
	w.Helper()

	out, err := w.release(version, flags...)
	if err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
	return out
}

func (w *world) mustRefuse(version, want string, flags ...string) {
	w.Helper()

	before := w.git("for-each-ref")
	if out, err := w.release(version, flags...); err == nil || !strings.Contains(err.Error(), want) {
		w.Errorf("%s: error %v, want one about %q\n%s", version, err, want, out)
	}
	if after := w.git("for-each-ref"); after != before {
		w.Errorf("%s was refused and changes references:\n%s", version, after)
	}
}

var buildApidiff = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "apidiff-")
	if err != nil {
		return "", err
	}

	program := filepath.Join(dir, "apidiff")
	cmd := exec.Command("go", "build", "-modfile=apidiff.mod", "-o", program, "tool") // Shared by all tests.
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", &os.PathError{Op: string(out), Path: program, Err: err}
	}

	return program, nil
})

func apidiff(t *testing.T) string {
	t.Helper()

	program, err := buildApidiff()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func TestMain(m *testing.M) {
	program, err := buildApidiff() // With the usual module cache.
	if err != nil {
		panic(err)
	}

	code := m.Run()
	_ = os.RemoveAll(filepath.Dir(program))
	os.Exit(code)
}

// TestRelease tries a release, makes it, and makes others: a compatible one, and then an incompatible one.
func TestRelease(t *testing.T) {
	w := newWorld(t)
	before := w.git("for-each-ref")
	out, err := w.release("v0.1.0", "-dry-run")
	if err != nil || !strings.Contains(out, "Nothing is changed") {
		t.Errorf("%v\n%s", err, out)
	}
	if after := w.git("for-each-ref"); after != before {
		t.Errorf("references changed:\n%s", after)
	}

	// Nothing may remember the content of a version before it is final.
	w.write("core/late.go", "package core\n\n// Late is new.\nconst Late = 3\n")
	w.change("cmd/agent/main.go", "core.One", "core.Late")
	w.first()
	w.compatible()
	w.incompatible()
}

// first makes v0.1.0.
func (w *world) first() {
	w.Helper()

	head := w.git("rev-parse", "HEAD")
	published := w.git("ls-remote", w.remote)
	out := w.mustRelease("v0.1.0")
	commits := map[string]bool{}

	for _, tag := range []string{"v0.1.0", "cmd/agent/v0.1.0", "adapters/extra/v0.1.0"} {
		commits[w.git("rev-parse", tag+"^{commit}")] = true
		if !strings.Contains(out, tag) {
			w.Errorf("the output does not name %s:\n%s", tag, out)
		}
	}

	if len(commits) != 1 || strings.Contains(w.git("tag"), "test/") {
		w.Errorf("want one commit with the tags of released modules, have %v and %s", commits, w.git("tag"))
	}
	if parent := w.git("rev-parse", "v0.1.0^"); parent != head || w.git("rev-parse", "HEAD") != head {
		w.Errorf("want one commit on top of %s beside the branch, its parent is %s", head, parent)
	}

	agent := w.git("show", "v0.1.0:cmd/agent/go.mod")
	if !strings.Contains(agent, "runtime-watcher v0.1.0") || strings.Contains(agent, "replace") {
		w.Errorf("the tagged agent cannot be installed:\n%s", agent)
	}
	if sums := w.git("show", "v0.1.0:cmd/agent/go.sum"); strings.Count(sums, "runtime-watcher v0.1.0") != 2 {
		w.Errorf("the tagged agent has other sums than those of its sibling:\n%s", sums)
	}
	if test := w.git("show", "v0.1.0:test/go.mod"); !strings.Contains(test, "runtime-watcher v0.1.0") || !strings.Contains(test, "=> ../.") {
		w.Errorf("the tests do not follow:\n%s", test)
	}
	if w.git("status", "--porcelain") != "" || w.git("ls-remote", w.remote) != published {
		w.Error("the working tree or the remote changed")
	}

	w.mustRefuse("v0.1.0", "not later than the last release")
}

func (w *world) compatible() {
	w.Helper()

	w.change("core/core.go", "const One", "const Three = 3\n\n// One is 1.\nconst One")
	w.announce("v0.1.1", "More.")

	if out := w.mustRelease("v0.1.1"); !strings.Contains(out, "Three: added") {
		w.Errorf("the output does not name the new constant:\n%s", out)
	}
}

func (w *world) incompatible() {
	w.Helper()

	w.change("core/core.go", "Two", "Zwei")
	w.announce("v0.1.2", "### Incompatible\n\nTwo is Zwei.")
	w.mustRefuse("v0.1.2", "want a later version than v0.1.x")
	w.announce("v0.2.0", "Two is Zwei.")
	w.mustRefuse("v0.2.0", `want the heading "### Incompatible"`)
	w.change("CHANGELOG.md", "\n\nTwo is Zwei.", "\n\n### Incompatible\n\nTwo is Zwei.")

	if out := w.mustRelease("v0.2.0"); !strings.Contains(out, "Two: removed") {
		w.Errorf("the output does not name the removed constant:\n%s", out)
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	for version, want := range map[string]string{
		"":          "want a version such as v0.1.0",
		"0.1.0":     "want a version such as v0.1.0",
		"v0.1":      "want a version such as v0.1.0",
		"v2.0.0":    "major version as suffix",
		"v0.2.0":    `want a section "## v0.2.0 (YYYY-MM-DD)"`,
		"v0.1.0-rc": "changelog",
	} {
		w.mustRefuse(version, want)
	}

	w.change("CHANGELOG.md", "(2026-11-22)", "(unreleased)")
	w.mustRefuse("v0.1.0", "want a section")
	w.change("CHANGELOG.md", "(unreleased)", "(2026-11-22)")
	w.write("new.txt", "")
	w.mustRefuse("v0.1.0", "?? new.txt")
	w.commit()
	w.change("cmd/agent/main.go", "core.One", "core.Missing")
	w.mustRefuse("v0.1.0", "undefined: core.Missing")
}

// TestGroups breaks the API of a module of the group contrib in a patch release of the stable ones,
// and then releases v1 of the stable ones.
func TestGroups(t *testing.T) {
	w := newWorld(t)
	w.mustRelease("v0.1.0")

	w.change("adapters/extra/extra.go", "Three is 3.\nconst Three", "Drei is 3.\nconst Drei")
	w.announce("v0.1.1", "Three is Drei.")
	w.mustRefuse("v0.1.1", "want a later version than v0.1.x")
	w.mustRefuse("v0.1.1", `want the heading "### Incompatible in contrib"`, "-contrib=v0.2.0")

	w.change("CHANGELOG.md", "\n\nThree is Drei.", "\n\n### Incompatible in contrib\n\nThree is Drei.")

	out := w.mustRelease("v0.1.1", "-contrib=v0.2.0")
	if !strings.Contains(out, "make tidy VERSION=v0.1.1 CONTRIB=v0.2.0") {
		t.Errorf("the output does not name both versions:\n%s", out)
	}
	if w.git("rev-parse", "v0.1.1^{commit}") != w.git("rev-parse", "adapters/extra/v0.2.0^{commit}") {
		t.Error("the groups have tags at two commits, want one")
	}
	if tags := w.git("tag", "--list", "adapters/extra/v0.1.1", "cmd/agent/v0.2.0"); tags != "" {
		t.Errorf("a module has the version of the other group: %s", tags)
	}

	extra := w.git("show", "adapters/extra/v0.2.0:adapters/extra/go.mod")
	if !strings.Contains(extra, "runtime-watcher v0.1.1") || !strings.Contains(extra, "// contrib:") {
		t.Errorf("want the stable version and the group in go.mod:\n%s", extra)
	}

	w.announce("v1.0.0", "Stable.")
	w.mustRefuse("v1.0.0", "from v1 on CONTRIB")
	w.mustRefuse("v1.0.0", "stay at v0", "-contrib=v1.0.0")
	w.mustRefuse("v1.0.0", "not later than the last release of the group contrib, v0.2.0", "-contrib=v0.2.0")
	w.mustRelease("v1.0.0", "-contrib=v0.2.1")
}

func TestAStableLibraryRequiresNoContrib(t *testing.T) {
	w := newWorld(t)
	w.write("adapters/other/go.mod", mod("adapters/other", "adapters/extra", "."))
	w.write("adapters/other/other.go", "// Package other uses.\npackage other\n\nimport _ \""+modules.Path("adapters/extra")+"\"\n")
	w.commit()
	w.mustRefuse("v0.1.0", "adapters/other is stable and requires adapters/extra, which is contrib")
}
