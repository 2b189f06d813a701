// Package mutants shows that the simulation can fail: it puts one fault after the other into a copy of the
// code, and tells after how many schedules the oracle finds it.
package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
	match, tried := regexp.MustCompile(*only), 0
	for _, file := range slices.Sorted(maps.Keys(table)) {
		for _, m := range table[file] {
			if !match.MatchString(m.name) {
				continue
			}
			tried++
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				found, text := m.try(t, file)
				t.Log(text)
				if !found {
					t.Error("the oracle does not find the mutant")
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
	source := string(test.Read(t, file))
	if n := strings.Count(source, m.old); n != 1 {
		t.Errorf("%s: want the old text once in %s, have it %d times: bring the table up to date", m.name, file, n)
	}
	return []byte(strings.Replace(source, m.old, m.new, 1))
}

// try builds the simulation with the fault, and runs it until the oracle finds something.
func (m mutant) try(t *testing.T, file string) (found bool, text string) {
	t.Helper()
	folder := t.TempDir()
	changed, overlay := filepath.Join(folder, "changed.go"), filepath.Join(folder, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(test.Root(), file): changed}})
	if err := errors.Join(err, os.WriteFile(changed, m.apply(t, file), 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(folder, "simulation.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, "./test/simulation")
	build.Dir = test.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hang+time.Duration(*seeds)*each)
	defer cancel()
	command := exec.CommandContext(ctx, binary, "-test.run=^TestSimulation$", "-test.v", "-shrink=false", "-workers=1",
		"-seeds", strconv.Itoa(*seeds))
	command.Dir = folder
	command.Env = append(os.Environ(), "TMPDIR="+folder)
	out, err := command.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return true, "found: a schedule does not end"
	case err == nil:
		return false, fmt.Sprintf("not found in %d schedules", *seeds)
	case !schedules.Match(out):
		return true, fmt.Sprintf("found: %s", crash.Find(out))
	default:
		return true, fmt.Sprintf("found after %s schedules: %s", schedules.FindSubmatch(out)[1], bytes.TrimSpace(rule.Find(out)))
	}
}

// hang and each bound the time of a run: with a fault, a schedule may never end.
const (
	hang = 5 * time.Minute
	each = 500 * time.Millisecond // of a schedule on a busy machine
)

var (
	schedules = regexp.MustCompile(`(\d+) schedules in`)
	rule      = regexp.MustCompile(`(?m)^\s+[a-z]+: `)
	crash     = regexp.MustCompile(`(?m)^.*(panic:|fatal error:).*$`)
)
