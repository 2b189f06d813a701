package chaos_test

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

	"github.com/runtime-watcher/runtime-watcher/test/chaos/naive"
	"github.com/runtime-watcher/runtime-watcher/test/chaos/natsagent"
	"github.com/runtime-watcher/runtime-watcher/test/chaos/operator"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// program names the variable that lets this program be another one, so that a test can kill it.
const program = "CHAOS_PROGRAM"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(program) {
	case "operator":
		err = operator.Run(context.Background())
	case "natsagent":
		err = natsagent.Run(context.Background())
	case "naive":
		err = naive.Run(context.Background())
	default:
		err = runTests(m)
	}

	if err != nil {
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
	return errors.Join(goleak.Find(toxiproxys()...), children())
}

// toxiproxys are goroutines that wait for ever, as toxiproxy does when a connection ends while it
// gets a toxic.
func toxiproxys() []goleak.Option {
	return []goleak.Option{goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run")}
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
