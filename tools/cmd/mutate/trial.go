package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// trial runs the tests of one package.
type trial struct {
	folder, work, only string
	through            []string

	// took is the time of the tests without a fault, and blocks contains their coverage.
	took   time.Duration
	blocks []block
}

// block is code of a file, from one line and column to another.
type block struct {
	file     string
	from, to [2]int
	covered  bool
}

// verdict is the result of the tests with one fault.
type verdict string

const (
	found  verdict = "found"
	missed verdict = "missed"
	// late is the verdict on a fault with which the tests do not end. Such a fault counts neither
	// as found nor as missed.
	late      verdict = "timed out"
	uncovered verdict = "not covered"
)

// Bounds on the time of the tests: a multiple of their time without a fault, and at least a minute.
const (
	patience      = 6
	leastPatience = time.Minute
)

// control runs the tests without a fault. If the control failed, each fault would seem to be found.
func (t *trial) control(ctx context.Context) error {
	profile := filepath.Join(t.work, "profile")
	if out, err := t.build(ctx, "-cover", "-covermode=atomic"); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}

	began := time.Now()
	out, err := t.play(ctx, 0, "-test.coverprofile="+profile)
	t.took = time.Since(began)
	if err != nil {
		return fmt.Errorf("control: the tests without a fault must pass: %w\n%s", err, out)
	}

	text, err := os.ReadFile(profile)
	if err != nil {
		return err
	}

	t.blocks = blocksOf(string(text))
	return nil
}

// compile builds the tests with the first n faults that compile, and returns these faults.
func (t *trial) compile(ctx context.Context, all []fault, n int) ([]fault, error) {
	for {
		n = min(n, len(all))
		if n == 0 {
			return nil, errors.New("no fault is left that compiles")
		}

		drawn, err := combine(t.folder, t.work, all[:n])
		if err != nil {
			return nil, err
		}

		overlay := "-overlay=" + drawn.overlay
		out, err := exec.CommandContext(ctx, "go", "build", "-gcflags=-e", overlay, t.path()).CombinedOutput()
		if err == nil {
			out, err = t.build(ctx, overlay)
			if err != nil {
				return nil, fmt.Errorf("%w: %s", err, out)
			}
			return drawn.faults, nil
		}

		rejected := drawn.rejected(out)
		if len(rejected) == 0 || ctx.Err() != nil {
			return nil, fmt.Errorf("no fault is to blame: %w: %s", err, out)
		}

		kept := make([]fault, 0, len(all))
		for i := range all {
			if !rejected[i] {
				kept = append(kept, all[i])
			}
		}

		all = kept
	}
}

// try runs the tests with a fault, unless no test reaches it.
func (t *trial) try(ctx context.Context, f *fault, number int) (verdict, error) {
	if !t.covers(f) {
		return uncovered, nil
	}

	limit := max(patience*t.took, leastPatience)
	out, err := t.play(ctx, number, "-test.failfast", "-test.timeout="+limit.String())

	if ctx.Err() != nil {
		return "", ctx.Err()
	}

	return judge(out, err)
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL|^panic: |^fatal error: |^goleak: Errors`)

// judge counts a failure only if a test failed or the program crashed.
func judge(out []byte, err error) (verdict, error) {
	switch {
	case err == nil:
		return missed, nil
	case bytes.Contains(out, []byte("panic: test timed out")):
		return late, nil
	case failure.Match(out):
		return found, nil
	default:
		return "", fmt.Errorf("the tests prove nothing: %w\n%s", err, out)
	}
}

func (t *trial) path() string { return "./" + filepath.ToSlash(t.folder) }

func (t *trial) binary() string { return filepath.Join(t.work, "tests") }

func (t *trial) build(ctx context.Context, flags ...string) ([]byte, error) {
	args := append([]string{"go", "test", "-c", "-vet=off", "-o", t.binary()}, flags...)
	return t.command(ctx, append(args, t.path())).CombinedOutput()
}

// play runs the tests in the folder of their package, with one fault or with none.
func (t *trial) play(ctx context.Context, number int, flags ...string) ([]byte, error) {
	cmd := t.command(ctx, append([]string{t.binary(), "-test.short", "-test.run=" + t.only}, flags...))
	cmd.Dir = t.folder
	cmd.Env = append(os.Environ(), variable+"="+strconv.Itoa(number))

	return cmd.CombinedOutput()
}

func (t *trial) command(ctx context.Context, args []string) *exec.Cmd {
	args = slices.Concat(t.through, args)
	return exec.CommandContext(ctx, args[0], args[1:]...)
}

// blocksOf reads a profile. Its lines are: file:line.column,line.column statements count.
func blocksOf(profile string) (blocks []block) {
	line := regexp.MustCompile(`(?m)^(.+):(\d+)\.(\d+),(\d+)\.(\d+) \d+ (\d+)$`)
	for _, match := range line.FindAllStringSubmatch(profile, -1) {
		var n [4]int
		for i := range n {
			n[i], _ = strconv.Atoi(match[2+i]) // The expression takes digits only.
		}

		blocks = append(blocks, block{filepath.Base(match[1]), [2]int{n[0], n[1]}, [2]int{n[2], n[3]}, match[6] != "0"})
	}
	return blocks
}

// covers reports whether tests reach a fault. Code outside of all blocks, such as a constant or the
// condition of a case, may be reached.
func (t *trial) covers(f *fault) bool {
	at := [2]int{f.line, f.column}
	reached := true
	for _, b := range t.blocks {
		if b.file != filepath.Base(f.file) || before(at, b.from) || !before(at, b.to) {
			continue
		}
		if b.covered {
			return true
		}

		reached = false
	}
	return reached
}

func before(a, b [2]int) bool { return a[0] < b[0] || a[0] == b[0] && a[1] < b[1] }
