// Command mutants shows that the simulation can fail: it puts one fault after the other into a copy of the
// code, and prints after how many schedules the oracle finds it. It ends with 1 when one is not found.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	seeds := flag.Int("seeds", 2000, "the most schedules for a mutant")
	only := flag.String("run", "", "a regular expression for the names of mutants")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	survivors, err := run(ctx, os.Stdout, *seeds, *only)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || survivors > 0 {
		os.Exit(1) //nolint:gocritic // Nothing is left to clean up.
	}
}

// run tries all mutants that match, one for each processor at a time, and returns how many were not found.
func run(ctx context.Context, out io.Writer, seeds int, only string) (survivors int, err error) {
	match, err := regexp.Compile(only)
	if err != nil {
		return 0, err
	}
	root, err := repository(ctx)
	if err != nil {
		return 0, err
	}
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		errs    []error
		slots   = make(chan struct{}, runtime.NumCPU())
	)
	for _, m := range table() {
		if !match.MatchString(m.name) {
			continue
		}
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			found, text, err := m.try(ctx, root, seeds)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", m.name, err))
			}
			if !found {
				survivors++
			}
			_, _ = fmt.Fprintf(out, "%-72s %s\n", m.name, text)
		})
	}
	running.Wait()
	return survivors, errors.Join(errs...)
}

// repository returns the folder of the workspace.
func repository(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return "", err
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// apply returns the file with the fault in it.
func (m mutant) apply(root string) (string, error) {
	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return "", fmt.Errorf("want the old text once in %s, have it %d times: bring the table up to date", m.file, n)
	}
	return strings.Replace(string(source), m.old, m.new, 1), nil
}

// try builds the simulation with the fault, and runs it until the oracle finds something.
func (m mutant) try(ctx context.Context, root string, seeds int) (found bool, text string, err error) {
	folder, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return false, "", err
	}
	defer os.RemoveAll(folder)
	binary := filepath.Join(folder, "simulation.test")
	if err := m.build(ctx, root, folder, binary); err != nil {
		return false, "", err
	}
	return simulate(ctx, folder, binary, seeds)
}

func (m mutant) build(ctx context.Context, root, folder, binary string) error {
	source, err := m.apply(root)
	if err != nil {
		return err
	}
	changed, overlay := filepath.Join(folder, "changed.go"), filepath.Join(folder, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, m.file): changed}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(changed, []byte(source), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, "./test/simulation")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// hang and each bound the time of a run: with a fault, a schedule may never end.
const (
	hang = 5 * time.Minute
	each = 500 * time.Millisecond // of a schedule on a busy machine
)

var (
	schedules = regexp.MustCompile(`(\d+) schedules in`)
	rules     = regexp.MustCompile(`(?m)^\s+([a-z]+): `)
)

func simulate(ctx context.Context, folder, binary string, seeds int) (found bool, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, hang+time.Duration(seeds)*each)
	defer cancel()
	command := exec.CommandContext(ctx, binary, "-test.run=^TestSimulation$", "-test.v", "-shrink=false",
		"-seeds", strconv.Itoa(seeds))
	command.Dir = folder
	command.Env = append(os.Environ(), "TMPDIR="+folder)
	out, err := command.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return true, "found: a schedule does not end", nil
	case err == nil:
		return false, fmt.Sprintf("NOT FOUND in %d schedules", seeds), nil
	case !schedules.Match(out):
		return true, "found: " + firstLine(string(out), "panic:", "fatal error:"), nil
	default:
		return true, fmt.Sprintf("found after %s schedules: %s", schedules.FindSubmatch(out)[1], firstRule(out)), nil
	}
}

func firstRule(out []byte) string {
	if rule := rules.FindSubmatch(out); rule != nil {
		return string(rule[1])
	}
	return "?"
}

// firstLine returns the first line that contains one of the words.
func firstLine(text string, words ...string) string {
	for line := range strings.Lines(text) {
		for _, word := range words {
			if strings.Contains(line, word) {
				return strings.TrimSpace(line)
			}
		}
	}
	return "?"
}
