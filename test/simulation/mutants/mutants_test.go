// Package mutants shows that the simulation can fail: it puts one fault after the other into a copy of the
// code, and tells after how many schedules the oracle finds it.
package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test"
)

var (
	seeds = flag.Int("seeds", 200, "the most schedules for a mutant")
	only  = flag.String("only", "nothing is resent", "a regular expression for the names of mutants")
)

// The table must follow the code: a mutant that does not apply proves nothing.
func TestMutantsApply(t *testing.T) {
	t.Parallel()

	for file, mutants := range table {
		for _, m := range mutants {
			m.apply(t, file)
		}
	}
}

// TestMutants tries one mutant. make simulate-mutants tries them all.
func TestMutants(t *testing.T) {
	control := runControl(t)

	match := regexp.MustCompile(*only)
	tried := 0
	for _, file := range slices.Sorted(maps.Keys(table)) {
		for _, m := range table[file] {
			if !match.MatchString(m.name) {
				continue
			}

			tried++
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()

				verdict, text := m.try(t, file, control)
				t.Log(text)

				switch verdict {
				case found:
				case missed:
					t.Error("the oracle does not find the mutant")
				case broken:
					t.Error("the child failed, and names neither a violated rule nor a panic: that proves nothing about the mutant")
				}
			})
		}
	}

	if tried == 0 {
		t.Errorf("no mutant matches %s", *only)
	}
}

// apply returns the file with the fault in it.
func (m mutant) apply(t *testing.T, file string) []byte {
	t.Helper()

	changed, err := replaceTokens(test.Read(t, file), m.old, m.new)
	if err != nil {
		t.Errorf("%s: %s: %v: bring the table up to date", m.name, file, err)
	}
	return changed
}

// try builds the simulation with the fault, and runs it until the oracle finds something.
func (m mutant) try(t *testing.T, file string, control control) (verdict, string) {
	t.Helper()

	changed := filepath.Join(t.TempDir(), "changed.go")
	overlay := filepath.Join(t.TempDir(), "overlay.json")

	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(test.Root(), file): changed}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(changed, m.apply(t, file), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}

	child := child{
		binary: build(t, "-overlay", overlay), first: 1, seeds: *seeds,
		limit: hang + time.Duration(*seeds)*max(each, slower*control.schedule),
	}
	result := child.run(t)
	if seed := failing.FindSubmatch(result.out); len(seed) > 1 && !control.passes(t, string(seed[1])) {
		return broken, fmt.Sprintf("seed %s fails without the fault, too", seed[1])
	}
	return result.judge()
}

// control is the simulation without a fault.
type control struct {
	binary   string
	schedule time.Duration // the time of one
}

// passes plays the schedule of a finding without the fault. A seed that fails anyway proves nothing about the mutant.
func (c control) passes(t *testing.T, seed string) bool {
	t.Helper()

	first, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	verdict, _ := child{binary: c.binary, first: first, seeds: 1, limit: hang}.run(t).judge()
	return verdict == missed
}

// runControl runs the simulation without a fault, in the same way. It returns the time of one
// schedule. A child that fails without a fault makes each mutant look found.
func runControl(t *testing.T) control {
	t.Helper()

	schedules := min(*seeds, controlSeeds)
	child := child{binary: build(t), first: 1, seeds: schedules, limit: hang + time.Duration(schedules)*slower*each}

	began := time.Now()
	verdict, text := child.run(t).judge()
	if verdict != missed {
		t.Fatalf("control: the simulation without a fault must pass: %s", text)
	}
	return control{binary: child.binary, schedule: time.Since(began) / time.Duration(schedules)}
}

// build compiles the simulation, and returns the path of the program.
func build(t *testing.T, flags ...string) string {
	t.Helper()

	binary := filepath.Join(t.TempDir(), "simulation.test")
	args := append([]string{"test", "-c", "-vet=off", "-o", binary}, flags...)

	command := exec.CommandContext(t.Context(), "go", append(args, "./test/simulation")...)
	command.Dir = test.Root()

	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

// child is one run of the simulation as a process.
type child struct {
	binary string
	first  uint64
	seeds  int
	limit  time.Duration
}

func (c child) run(t *testing.T) outcome {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), c.limit)
	defer cancel()

	folder := t.TempDir()
	// The time-out of package testing is a panic, which is no finding.
	args := []string{
		"-test.run=^TestSimulation$", "-test.v", "-test.timeout=0", "-shrink=false", "-workers=1",
		"-seed", strconv.FormatUint(c.first, 10), "-seeds", strconv.Itoa(c.seeds),
	}

	command := exec.CommandContext(ctx, c.binary, args...)
	command.Dir = folder
	command.Env = append(os.Environ(), "TMPDIR="+folder)

	out, err := command.CombinedOutput()
	return outcome{out: out, failed: err != nil, late: ctx.Err() != nil, seeds: c.seeds}
}

// outcome is what a child left behind.
type outcome struct {
	out    []byte
	failed bool
	// late means that the child was ended after its limit.
	late  bool
	seeds int
}

type verdict int

const (
	// missed means that all schedules ran, and the oracle found nothing.
	missed verdict = iota
	// found means that the oracle names a violated rule, or that the mutant panicked.
	found
	// broken means that the child says nothing about the mutant: wrong flags, a full disk, a kill.
	broken
)

// judge says what the child proves. A failure counts only if its text names a violated rule or a
// panic.
func (o outcome) judge() (verdict, string) {
	played := schedules.FindSubmatch(o.out)

	switch {
	case o.late:
		return found, "found: a schedule does not end"
	case !o.failed && played != nil && string(played[1]) == strconv.Itoa(o.seeds):
		return missed, fmt.Sprintf("not found in %d schedules", o.seeds)
	case o.failed && played != nil && rule.Match(o.out):
		return found, fmt.Sprintf("found after %s schedules: %s", played[1], bytes.TrimSpace(rule.Find(o.out)))
	case o.failed && crash.Match(o.out):
		return found, fmt.Sprintf("found: %s", crash.Find(o.out))
	default:
		return broken, fmt.Sprintf("no verdict, the end of the output is: %s", o.out[max(0, len(o.out)-lastOutput):])
	}
}

const (
	// hang and each bound the time of a run: with a fault, a schedule may never end.
	hang = 5 * time.Minute
	each = 500 * time.Millisecond // of a schedule on a busy machine
	// slower is how much longer than the control a schedule with a fault may take.
	slower = 5
	// controlSeeds are enough to show that the child runs, and how long a schedule takes.
	controlSeeds = 20
	// lastOutput is the size of what is printed of a child that proves nothing, in bytes.
	lastOutput = 2000
)

var (
	// failing has the seed of a finding.
	failing   = regexp.MustCompile(`(?m)seed (\d+): its log is in`)
	schedules = regexp.MustCompile(`(\d+) schedules in`)
	// rule has the names of the oracle's rules. A rule that is not here makes its mutants fail as
	// broken, so a new one is noticed.
	rule  = regexp.MustCompile(`(?m)^\s+(answer|backlog|balance|economy|fate|liveness|numbers|poll|rotation|share|state|trigger|truth|wait|world): .*$`)
	crash = regexp.MustCompile(`(?m)^.*(panic:|fatal error:).*$`)
)

// A child that fails for another reason than the fault must not count as a finding.
func TestAFailingChildProvesNothing(t *testing.T) {
	t.Parallel()

	const passed = "    simulation_test.go:58: 20 schedules in 3s, 400 a minute\nPASS\n"
	const violated = "    simulation_test.go:85: seed 7: its log is in x\n        liveness: default/a was not reconciled\n" +
		"    simulation_test.go:58: 7 schedules in 1s, 420 a minute\nFAIL\n"

	for _, tt := range []struct {
		name string
		give outcome
		want verdict
	}{
		{"all schedules pass", outcome{out: []byte(passed), seeds: 20}, missed},
		{"fewer schedules than asked", outcome{out: []byte(passed), seeds: 30}, broken},
		{"no schedule ran, and the child passed", outcome{out: []byte("testing: warning: no tests to run\nPASS\n"), seeds: 20}, broken},
		{"a violated rule", outcome{out: []byte(violated), failed: true, seeds: 20}, found},
		{"a panic", outcome{out: []byte("panic: runtime error: index out of range [5]\n"), failed: true, seeds: 20}, found},
		{"a dead lock", outcome{out: []byte("fatal error: all goroutines are asleep\n"), failed: true, seeds: 20}, found},
		{"an unknown flag", outcome{out: []byte("flag provided but not defined: -shrunk\n"), failed: true, seeds: 20}, broken},
		{"killed", outcome{failed: true, seeds: 20}, broken},
		{
			"schedules ran, and something else failed",
			outcome{out: []byte("    simulation_test.go:58: 20 schedules in 3s, 400 a minute\n    disk full\nFAIL\n"), failed: true, seeds: 20},
			broken,
		},
	} {
		if got, text := tt.give.judge(); got != tt.want {
			t.Errorf("%s: want verdict %d, have %d: %s", tt.name, tt.want, got, text)
		}
	}
}
