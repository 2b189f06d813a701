package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// readme is the README of the repository. What it shows must be what there is.
func readme(t *testing.T) string {
	t.Helper()

	return read(t, "../../README.md")
}

func read(t *testing.T, path string) string {
	t.Helper()

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }

// find returns the first text that matches.
func find(t *testing.T, pattern, text string) string {
	t.Helper()

	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("nothing matches %q in\n%s", pattern, text)
	}

	return found[len(found)-1]
}

func TestReadmeShowsTheSettingsOfTheAgent(t *testing.T) {
	if table := read(t, "../../cmd/agent/testdata/settings.md"); !strings.Contains(readme(t), "\n"+table) {
		t.Errorf("README.md must contain:\n%s", table)
	}
}

func TestReadmeShowsCodeThatCompiles(t *testing.T) {
	const lines = 15

	source := read(t, "../../adapters/controllerruntime/example_component_test.go")
	setUp := find(t, `(?s)\n(func setUp\(.*?\n}\n)`, source)

	if !strings.Contains(readme(t), "```go\n"+setUp+"```\n") {
		t.Errorf("README.md must contain:\n%s", setUp)
	}

	if n := strings.Count(find(t, `(?s)^[^\n]*\n(.*)}\n$`, setUp), "\n"); n > lines {
		t.Errorf("embedding takes %d lines, want at most %d", n, lines)
	}
}

// checkReadmeOutput compares what the README shows with what was printed, numbers and signs of life aside.
func checkReadmeOutput(t *testing.T, printed string) {
	t.Helper()

	shown := find(t, "(?s)```\n(Runtime Watcher: .*?)```\n", readme(t))
	if diff := cmp.Diff(normalised(shown), normalised(printed)); diff != "" {
		t.Errorf("README.md is behind (-README +printed):\n%s", diff)
	}
}

func normalised(text string) []string {
	text = regexp.MustCompile(`\d+(\.\d+)*`).ReplaceAllString(text, "#")
	text = regexp.MustCompile(`(?m)^ .* \.{3} .*\n`).ReplaceAllString(text, "")
	text = regexp.MustCompile(` +`).ReplaceAllString(text, " ")

	return strings.Split(strings.TrimSpace(text), "\n")
}
