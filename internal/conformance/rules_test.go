package conformance_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
)

const specification, extending = "reference/contract-v3.md", "guide/extending.md"

// sections returns the text of each section of a document, by its anchor.
func sections(t *testing.T, document string) map[string]string {
	t.Helper()

	text, err := os.ReadFile("../../docs/" + document)
	if err != nil {
		t.Fatal(err)
	}

	found := make(map[string]string)
	for _, part := range regexp.MustCompile(`(?m)^##+ `).Split(string(text), -1)[1:] {
		heading, body, _ := strings.Cut(part, "\n")
		found[strings.ReplaceAll(strings.ToLower(heading), " ", "-")] = body
	}

	return found
}

func TestEachRuleHasASection(t *testing.T) {
	t.Parallel()

	wire := sections(t, specification)
	seen := make(map[string]bool)
	documented := map[conformance.End]map[string]string{
		conformance.Sender: wire, conformance.Receiver: wire, conformance.Forwarder: sections(t, extending),
	}

	for _, rule := range conformance.Rules() {
		if _, ok := documented[rule.End][rule.Section]; !ok {
			t.Errorf("%s/%s: its document has no section #%s", rule.End, rule.ID, rule.Section)
		}
		if key := string(rule.End) + "/" + rule.ID; seen[key] || rule.Says == "" {
			t.Errorf("%s is there twice, or says nothing", key)
		} else {
			seen[key] = true
		}
	}
}

// Words of RFC 2119, and statements about what an end does.
var normative = regexp.MustCompile(`(?i)\b(must|should|may|required|sends?|answers?|refuses?|ignores?|asks?)\b`)

func TestEachSectionHasARule(t *testing.T) {
	t.Parallel()
	for anchor, body := range sections(t, specification) {
		ruled := slices.ContainsFunc(conformance.Rules(), func(r conformance.Rule) bool { return r.Section == anchor })
		if normative.MatchString(body) && !ruled {
			t.Errorf("no rule for #%s of docs/reference/contract-v3.md", anchor)
		}
	}
}
