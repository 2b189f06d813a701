package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"core/core.go":  "package core\n\n// One is 1.\nconst One = 1\n",
		"test/a.go":     "package test\n",
		"README.md":     "# Three words here\n",
		"tools/keep.go": "package tools\n",
	} {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTable(t *testing.T) {
	var out strings.Builder
	if err := run([]string{"core", "test", "tools"}, repository(t), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for title, want := range map[string]string{
		"core":          "1 1 1 0 4 0 0 0.50 25.0 % 0 0.0 %",
		"released":      "1 1 1 0 4 0 0 0.50 25.0 % 0 0.0 %",
		"all but test/": "1 1 1 0 5 0 0 0.33 20.0 % 0 0.0 %",
		"all":           "1 1 1 0 6 0 0 0.25 16.7 % 0 0.0 %",
	} {
		if got := line(out.String(), title); got != want {
			t.Errorf("%s: got %q, want %q", title, got, want)
		}
	}
	if !strings.Contains(out.String(), "README.md: 4 words, test/ and bench/: 1 lines") {
		t.Errorf("got\n%s", out.String())
	}
}

// line returns the numbers of the row with this title, separated by single blanks.
func line(table, title string) string {
	for row := range strings.Lines(table) {
		if numbers, ok := strings.CutPrefix(strings.TrimSpace(row), title+"  "); ok {
			return strings.Join(strings.Fields(numbers), " ")
		}
	}
	return ""
}

func TestUpdate(t *testing.T) {
	root := repository(t)
	if err := run([]string{"-update", "core", "test", "tools"}, root, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "tools", "exported.txt"))
	if err != nil || string(got) != "   1 core\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestNames(t *testing.T) {
	var out strings.Builder
	if err := run([]string{"-names", "core", "test", "tools"}, repository(t), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if want := "core.One: used by nothing outside its package\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestNoModules(t *testing.T) {
	if err := run(nil, t.TempDir(), io.Discard, io.Discard); err == nil {
		t.Error("nothing to count is no error")
	}
}
