package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
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

func TestReadmeShowsCodeThatCompiles(t *testing.T) {
	const lines = 15

	source := read(t, "../../adapters/controllerruntime/example_component_test.go")
	setUp := find(t, `(?s)\n(func setUp\(.*?\n}\n)`, source)

	if !strings.Contains(readme(t), "```go\n"+setUp+"```\n") {
		t.Errorf("README.md must contain:\n%s", setUp)
	}

	if n := strings.Count(find(t, `(?s)\) error {\n(.*)}\n$`, setUp), "\n"); n > lines {
		t.Errorf("embedding takes %d lines, want at most %d", n, lines)
	}
}

func TestReadmeShowsPollingThatCompiles(t *testing.T) {
	source := read(t, "../../adapters/controllerruntime/example_fleet_test.go")
	setUp := find(t, `(?s)\n(func setUpPolling\(.*?\n}\n)`, source)

	if !strings.Contains(readme(t), "```go\n"+setUp+"```\n") {
		t.Errorf("README.md must contain:\n%s", setUp)
	}
}

func TestReadmeShowsRuntimesThatCompile(t *testing.T) {
	source := read(t, "../../adapters/controlplane/runtimes/example_test.go")
	setUp := find(t, `(?s)\n(func setUpRuntimes\(.*?\n}\n)`, source)

	if !strings.Contains(readme(t), "```go\n"+setUp+"```\n") {
		t.Errorf("README.md must contain:\n%s", setUp)
	}
}

// What the README shows of a fleet has the names that the handler gives it.
func TestReadmeShowsAFleet(t *testing.T) {
	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}

	watched.Observe("runtime-1", "kyma", []core.WatchEvent{{Kind: core.KindHeartbeat, Epoch: "e", Sequence: 1, Heartbeat: &core.Heartbeat{
		Number: 1, Interval: time.Second, Instance: "i", Version: "v", CertificateFingerprint: "f", CertificateExpiry: time.Now().Add(time.Hour * 48),
		CAFingerprints: []string{"f"}, ConfigHash: "h",
	}}})

	answer := httptest.NewRecorder()
	listener.FleetHandler(watched).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))

	names := func(text string) []string {
		found := regexp.MustCompile(`"\w+":`).FindAllString(text, -1)
		slices.Sort(found)

		return slices.Compact(found)
	}
	if diff := cmp.Diff(names(answer.Body.String()), names(find(t, "(?s)```json\n(\\{\n.*?)```", readme(t)))); diff != "" {
		t.Errorf("README.md is behind (-handler +README):\n%s", diff)
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
