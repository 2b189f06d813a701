package observability

import (
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// section returns the part of docs/operations/operations.md with that heading.
func section(t *testing.T, title string) string {
	t.Helper()
	_, rest, found := strings.Cut(read(t, "docs/operations/operations.md"), "\n## "+title+"\n")
	if !found {
		t.Fatalf("docs/operations/operations.md has no section %q", title)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

// TestEachReasonIsAFailureMode fails when a reason of the fleet, an alert or a cause of a resync has
// no row.
func TestEachReasonIsAFailureMode(t *testing.T) {
	modes := section(t, "Failure modes")
	for _, condition := range fleet.Conditions() {
		if reason := condition.Reason; reason != "" && !strings.Contains(modes, "`"+reason+"`") {
			t.Errorf("reason %q has no row in the section Failure modes", reason)
		}
	}

	_, parsed := readRules(t)
	for _, rule := range parsed.all() {
		if name := strings.TrimPrefix(rule.Alert, "RuntimeWatcher"); !strings.Contains(modes, name) &&
			name != "RuntimesDegraded" { // It stands for all reasons.
			t.Errorf("alert %s has no row in the section Failure modes", rule.Alert)
		}
	}
}

// columnsOfModes is the number of columns of the tables.
const columnsOfModes = 6

// TestFailureModesNameWhatExists fails when the table names an alert that does not exist.
func TestFailureModesNameWhatExists(t *testing.T) {
	alerts := map[string]bool{"none": true}
	_, parsed := readRules(t)
	for _, rule := range parsed.all() {
		alerts[strings.TrimPrefix(rule.Alert, "RuntimeWatcher")] = true
	}

	for line := range strings.Lines(section(t, "Failure modes")) {
		cells := strings.Split(line, " | ")
		if len(cells) != columnsOfModes || strings.HasPrefix(line, "| failure") || strings.HasPrefix(line, "| ---") {
			continue
		}
		for name := range strings.SplitSeq(cells[3], ", ") {
			if !alerts[name] {
				t.Errorf("no alert has the name %q: %s", name, line)
			}
		}
	}
}

// TestLogMessagesAreListed fails when a message of level warn or error has no action.
func TestLogMessagesAreListed(t *testing.T) {
	list := section(t, "Log messages")
	for _, message := range messages(t) {
		if !strings.Contains(list, "| `"+message+"` |") {
			t.Errorf("the message %q has no row in the section Log messages", message)
		}
	}
}
