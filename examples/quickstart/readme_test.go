package main

import (
	"encoding/json"
	"maps"
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
	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text := lab.Must(os.ReadFile(testcache.Path(path)))
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

// TestLicenseFiles holds that both tools that look for the license find the same text: module proxies, and REUSE.
func TestLicenseFiles(t *testing.T) {
	if read(t, "../../LICENSE") != read(t, "../../LICENSES/Apache-2.0.txt") {
		t.Error("LICENSES/Apache-2.0.txt differs from LICENSE")
	}
}

// TestDocumentShowsAFleet holds that the JSON of a fleet in docs/reference/fleet-api.md has the names that the handler gives it.
func TestDocumentShowsAFleet(t *testing.T) {
	watched := lab.Must(fleet.New(fleet.Options{}))
	now := time.Now()
	watched.Receiver().Observe(core.Peer{ID: "runtime-1", NotAfter: now.Add(48 * time.Hour)}, "kyma", core.Batch{
		Source: "runtime-1", Epoch: "e", Heartbeat: &core.Heartbeat{
			ID: "i", Time: now, Number: 1, Interval: time.Second, Instance: "i", Sequence: 1, Version: "v",
			CertificateFingerprint: "f", CertificateExpiry: now.Add(48 * time.Hour), CAFingerprints: []string{"f"},
			Canary: core.CanaryAlive, LastReview: now, ConfigHash: "h",
		},
	}, nil)
	answer := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	statuspage.Authenticated(statuspage.FleetHandler(watched)).ServeHTTP(answer, request)
	shown := find(t, "(?s)<!-- names: fleet -->\n```json\n(.*?)```", read(t, "../../docs/reference/fleet-api.md"))
	if diff := cmp.Diff(names(t, answer.Body.String()), names(t, shown)); diff != "" {
		t.Errorf("docs/reference/fleet-api.md is behind (-handler +document):\n%s\n%s", diff, answer.Body)
	}
}

// names returns the names of all members of a text in JSON.
func names(t *testing.T, text string) []string {
	t.Helper()
	if !json.Valid([]byte(text)) {
		t.Errorf("not JSON: %s", text)
	}
	all := make(map[string]bool)
	for _, name := range regexp.MustCompile(`"(\w+)":`).FindAllString(text, -1) {
		all[name] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// checkShownOutput compares the output in README.md with the printed one, except for numbers and signs of life.
func checkShownOutput(t *testing.T, printed string) {
	t.Helper()
	shown := find(t, "(?s)<!-- output: make demo -->\n```\n(.*?)```\n", read(t, "README.md"))
	if diff := cmp.Diff(normalised(shown), normalised(printed)); diff != "" {
		t.Errorf("examples/quickstart/README.md is behind (-document +printed):\n%s", diff)
	}
}

func normalised(text string) []string {
	text = regexp.MustCompile(`\d+(\.\d+)*`).ReplaceAllString(text, "#")
	text = regexp.MustCompile(`(?m)^ .* \.{3} .*\n`).ReplaceAllString(text, "")
	text = regexp.MustCompile(` +`).ReplaceAllString(text, " ")
	return strings.Split(strings.TrimSpace(text), "\n")
}
