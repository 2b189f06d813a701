package observability

import (
	"regexp"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// section returns the part of a document with that heading.
func section(t *testing.T, document, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(read(t, document), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", document, heading)
	}
	level, _, _ := strings.Cut(heading, " ")
	next := regexp.MustCompile(`\n#{2,` + string(rune('0'+len(level))) + `} `)
	if end := next.FindStringIndex(rest); end != nil {
		rest = rest[:end[0]]
	}
	return rest
}

// TestEachReasonHasARow fails when a reason of the fleet has no row in the table of states.
func TestEachReasonHasARow(t *testing.T) {
	states := section(t, "docs/reference/fleet-api.md", "## States")
	for _, condition := range fleet.Conditions() {
		if reason := condition.Reason; reason != "" && !strings.Contains(states, "`"+reason+"`") {
			t.Errorf("reason %q has no row in the section States", reason)
		}
	}
}

// TestLogMessagesAreListed fails when a message of level warn or error has no action.
func TestLogMessagesAreListed(t *testing.T) {
	list := section(t, "docs/reference/reasons-and-messages.md", "## Log messages")
	for _, message := range messages(t) {
		if !strings.Contains(list, "| `"+message+"` |") {
			t.Errorf("the message %q has no row in the section Log messages", message)
		}
	}
}

const runbooks = "docs/operations/runbooks.md"

// TestRunbooks fails when an alert has no runbook or no severity, or when a runbook is too long, has
// no command to copy, or asks Prometheus for what no process has.
func TestRunbooks(t *testing.T) {
	const longest = 120 // words
	exists := newKnown(t)
	query := regexp.MustCompile(`(?m)^q '([^']*)'$`)
	_, parsed := readRules(t)
	for _, rule := range parsed.all() {
		_, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], runbooks+"#")
		want := strings.ToLower(rule.Alert)
		if anchor != want || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" {
			t.Errorf("%s: runbook %q, want %s with severity and summary", rule.Alert, anchor, want)
		}
		text := section(t, runbooks, "### "+rule.Alert)
		if words := len(strings.Fields(text)); words > longest || !strings.Contains(text, "```sh\n") {
			t.Errorf("%s has %d words, want at most %d, and commands to copy", rule.Alert, words, longest)
		}
		for _, found := range query.FindAllStringSubmatch(text, -1) {
			if strings.Contains(found[1], "runtime_watcher_") {
				exists.check(t, rule.Alert, found[1])
			}
		}
	}
}
