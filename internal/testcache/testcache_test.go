package testcache_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reading is a test of module inner, which reads two documents and compiles a program outside of it.
// The go command does not notice the document with the plain path.
const reading = `package inner

import (
	"os"
	"testing"

	"example.com/inner/testcache"
)

func TestRead(t *testing.T) {
	if _, err := os.ReadFile(testcache.Path("../docs/guide.md")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile("../docs/other.md"); err != nil {
		t.Fatal(err)
	}
	if err := testcache.NoticeSources("../program"); err != nil {
		t.Fatal(err)
	}
	if err := testcache.NoticeFiles("../deploy"); err != nil {
		t.Fatal(err)
	}
}
`

// A change behind the module must not leave a cached result.
func TestGoTestNoticesAChange(t *testing.T) {
	t.Parallel()

	source, err := os.ReadFile("testcache.go")
	if err != nil {
		t.Fatal(err)
	}

	root := t.TempDir()
	write(t, root, "inner/go.mod", "module example.com/inner\n\ngo 1.26.0\n")
	write(t, root, "inner/testcache/testcache.go", string(source))
	write(t, root, "inner/inner_test.go", reading)
	write(t, root, "docs/guide.md", "one\n")
	write(t, root, "docs/other.md", "one\n")
	write(t, root, "deploy/base/role.yaml", "one\n")
	write(t, root, "program/README.md", "one\n")
	write(t, root, "program/main.go", "package main\n")
	write(t, root, "program/part/part.go", "package part\n")
	write(t, root, "program/part/part_test.go", "package part\n")

	if goTest(t, root) {
		t.Fatal("the first run is cached")
	}
	if !goTest(t, root) {
		t.Fatal("the second run is not cached, and nothing has changed")
	}

	for _, step := range []struct {
		path       string
		wantCached bool
	}{
		{"docs/guide.md", false},
		{"docs/other.md", true},
		{"deploy/base/role.yaml", false},
		{"deploy/base/new.yaml", false},
		{"program/README.md", true},
		{"program/main.go", false},
		{"program/part/part.go", false},
		{"program/part/part_test.go", true},
	} {
		write(t, root, step.path, "package changed\n\n// "+step.path+"\n")

		if isCached := goTest(t, root); isCached != step.wantCached {
			t.Errorf("after a change of %s: want cached %t, have %t", step.path, step.wantCached, isCached)
		}
		if !goTest(t, root) {
			t.Errorf("after a change of %s: the next run is not cached", step.path)
		}
	}
}

// write creates or changes a file. Each file is an hour old, because the go command never caches a
// result that depends on a file of the last two seconds.
func write(t *testing.T, root, path, text string) {
	t.Helper()

	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
}

// goTest runs the test of the inner module, and reports whether its result comes from the cache.
func goTest(t *testing.T, root string) bool {
	t.Helper()

	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", ".")
	cmd.Dir = filepath.Join(root, "inner")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")

	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	return strings.Contains(string(out), "(cached)")
}
