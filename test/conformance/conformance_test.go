// Package conformance runs cmd/conformance against our own ends and against others, with and
// without faults.
package conformance

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	// endVariable makes the test binary an end under test, and faultVariable seeds a fault into it.
	endVariable, faultVariable = "RW_END", "RW_FAULT"
)

func TestMain(m *testing.M) {
	ends := map[string]func(context.Context, string) error{"receiver": receive, "sender": send}
	end := ends[os.Getenv(endVariable)]
	if end == nil {
		// Tests wait, and compute little.
		_ = flag.Set("test.parallel", "16") // It is there.
		os.Exit(m.Run())
	}
	if err := end(context.Background(), os.Getenv(faultVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// results are the rules of a run: whether each is kept.
type results map[string]bool

// judge runs the program, and returns what its report says.
func judge(t *testing.T, program, fault string, args ...string) results {
	t.Helper()
	junit := filepath.Join(t.TempDir(), "junit.xml")
	end := args[0]
	cmd := exec.CommandContext(t.Context(), program, append([]string{end, "-junit", junit}, args[1:]...)...)
	cmd.Env = append(os.Environ(), endVariable+"="+end, faultVariable+"="+fault)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	table, err := cmd.Output()
	t.Logf("%s %s\n%s", end, fault, table)
	var report struct {
		Failures int `xml:"failures,attr"`
		Skipped  int `xml:"skipped,attr"`
		Cases    []struct {
			Name    string    `xml:"name,attr"`
			Failure *struct{} `xml:"failure"`
		} `xml:"testcase"`
	}
	text, readErr := os.ReadFile(junit)
	if readErr != nil || xml.Unmarshal(text, &report) != nil {
		t.Fatalf("no report: %v, %v\n%s", err, readErr, &stderr)
	}
	var exit *exec.ExitError
	whole := end == "receiver" || slices.Contains(args, "-single")
	if failed := errors.As(err, &exit) && exit.ExitCode() == 1; failed != (report.Failures > 0) || report.Skipped > 0 && whole {
		t.Errorf("%d rules are broken and %d skipped, and the program ended with %v\n%s",
			report.Failures, report.Skipped, err, &stderr)
	}
	kept := results{}
	for _, c := range report.Cases {
		rule, _, _ := strings.Cut(c.Name, ":")
		kept[rule] = c.Failure == nil
	}
	return kept
}

func wantKept(t *testing.T, found results) {
	t.Helper()
	for rule, kept := range found {
		if !kept {
			t.Errorf("%s is broken", rule)
		}
	}
	if len(found) == 0 {
		t.Error("no rule was judged")
	}
}

// patience is for a busy machine. Only a broken rule takes so long.
const patience = "-patience=5m"

// wantFound holds that each of these rules finds a fault, and that another one is kept. Each waits on its own.
func wantFound(t *testing.T, program, end, fault, control string, broken []string) {
	t.Helper()
	t.Run(fault, func(t *testing.T) {
		t.Parallel()
		wantKept(t, judge(t, program, fault, end, patience, "-only=^"+control+"$", os.Args[0]))
		for _, rule := range broken {
			t.Run(rule, func(t *testing.T) {
				t.Parallel()
				found := judge(t, program, fault, end, "-patience=10s", "-single", "-only=^"+rule+"$", os.Args[0])
				if kept, judged := found[rule]; kept || !judged {
					t.Errorf("%s does not find it. It was judged: %t", rule, judged)
				}
			})
		}
	})
}

// The sender in Python knows nothing of our code.
func TestPython(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		lab.Missing(t, "needs Python (Debian: python3): %v", err)
	}
	sender := filepath.Join(test.Root(), "examples", "python-sender", "sender.py")
	wantKept(t, judge(t, lab.Build(t, "cmd/conformance"), "", "sender", patience, python, sender))
	const most = 300
	if lines := bytes.Count(test.Read(t, "examples/python-sender/sender.py"), []byte("\n")); lines > most {
		t.Errorf("the sender has %d lines, want at most %d", lines, most)
	}
}

func TestReceiver(t *testing.T) {
	t.Parallel()
	binary := lab.Build(t, "cmd/conformance")
	wantKept(t, judge(t, binary, "", "receiver", patience, os.Args[0]))
	for fault, f := range receiverFaults() {
		wantFound(t, binary, "receiver", fault, "accepted", f.found)
	}
}
