// Package loss makes faults between a runtime and an operator, and compares every write with the
// reconciles of the operator: each last write is reconciled after its commit. The faults are at
// random, and repeatable by a seed.
package loss

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/operator"
)

// program names the variable that lets this program be another one, so that a test can kill it.
const program = "LOSS_PROGRAM"

func TestMain(m *testing.M) {
	programs := map[string]func(context.Context) error{
		"":         func(context.Context) error { return runTests(m) },
		"operator": operator.Run, "naive": runNaive,
	}
	if err := programs[os.Getenv(program)](context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var errFailed = errors.New("tests failed")

// runTests returns an error when a test failed, or when a goroutine or a process is left.
func runTests(m *testing.M) error {
	if lab.RunTests(m) != 0 {
		return errFailed
	}
	// toxiproxy waits for ever when a connection ends while it gets a toxic.
	return errors.Join(goleak.Find(goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run")),
		children())
}

// children returns an error when a process that this one started is still there.
func children() error {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	var left []error
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // It has ended meanwhile.
		}
		// pid (name) state ppid ..., see proc_pid_stat(5); the name may hold anything.
		_, rest, _ := bytes.Cut(text, []byte(") "))
		if fields := bytes.Fields(rest); len(fields) > 1 && string(fields[1]) == strconv.Itoa(os.Getpid()) {
			left = append(left, fmt.Errorf("a process is left: %s", bytes.TrimSpace(text)))
		}
	}
	return errors.Join(left...)
}

// self returns the path of this program, which is also the other programs.
func self() string { return lab.Must(os.Executable()) }
