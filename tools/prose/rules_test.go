// Package prose has the rules of the prose linter.
package prose

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var realVale = flag.String("vale", "", "the vale to test the rules with: make prose sets it")

// TestRules runs the real vale with the rules of this repository.
func TestRules(t *testing.T) {
	if *realVale == "" {
		t.Skip("without -vale: make prose runs this test")
	}

	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}

	for name, rules := range map[string][]struct{ rule, text string }{
		"a.md": {
			{"Plain.Persons", "It closes the connection of whoever has the most."},
			{"Plain.Persons", "Nobody reads it."},
			{"", "It closes the connection that `who` has."},
			{"Plain.What", "It keeps what waits."},
			{"Plain.Tell", "The agent tells the operator."},
			{"Plain.Cannot", "It can not fail."},
			{"", "It cannot fail."},
			{"Plain.Names", "The crowd is full."},
			{"Plain.Names", "It crowds out the others."},
			{"Plain.Names", "It looks again."},
			{"", "It turns the limit off, in turn."},
			{"Plain.Personification", "The operator hears of it."},
			{"", "The listener knows the manager."},
			{"Plain.SentenceLength", strings.Repeat("word ", 31) + "."},
			{"", strings.Repeat("word ", 30) + "."},
			{"", strings.Repeat("word ", 20) + ". New " + strings.Repeat("word ", 20) + "."},
			{"Plain.Headings", "# How it works"},
			{"Plain.Headings", "# The agent is small"},
			{"Plain.HeadingWords", "# One two three four five six seven eight"},
			{"", "# Adaptive polling"},
			{"", "    func who() { what() }"},
		},
		"a.go": {
			{"Plain.Persons", "// It closes the connection of whoever has the most."},
			{"Plain.SentenceLength", "// A" + strings.Repeat(" word", 17) + "\n// more" + strings.Repeat(" word", 17) + "."},
			{"", "//nolint" + ":who // It is a directive."},
			{"", "// An example:\n//\n//\twho := what"},
			{"", "//go:generate mockgen who what\n"},
			{"", `var x = "who"`},
			{"Plain.What", `var x = errors.New("it is not what it must be")`},
			{"", `var x = errors.New("it is not a port")`},
			{"", "var x = `a raw string is for who wants one`"},
			{"", "// +kubebuilder:validation:XValidation:message=\"who " + strings.Repeat("word ", 30) + "\""},
		},
	} {
		for _, test := range rules {
			t.Run(test.text, func(t *testing.T) {
				got := rulesIn(t, root, name, test.text)
				if want := test.rule; want == "" && len(got) > 0 || want != "" && !slices.Equal(got, []string{want}) {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		}
	}
}

// rulesIn returns the rules that a file with this text breaks.
func rulesIn(t *testing.T, root, name, text string) []string {
	t.Helper()

	t.Chdir(root)
	if strings.HasSuffix(name, ".go") {
		text = "package a\n\n" + text + "\nvar a int"
	}

	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}

	out, err := exec.Command(*realVale, "--no-global", "--config=.vale.ini", "--no-exit", "--output=JSON", file).Output()
	if err != nil {
		t.Fatal(err)
	}

	var found map[string][]struct{ Check string }
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}

	var rules []string
	for _, alert := range found[file] {
		rules = append(rules, alert.Check)
	}

	return rules
}
