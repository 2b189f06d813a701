package machine_test

import (
	"os"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// A broken pipe elsewhere, as a connection that its server has closed, is no reason to end.
func TestAClosedOutputInterrupts(t *testing.T) {
	brokenPipe := func() *os.File {
		reading, writing, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := reading.Close(); err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { _ = writing.Close() })
		return writing
	}

	ctx, out, stop := machine.UntilInterrupted(brokenPipe())
	defer stop()

	if _, err := brokenPipe().WriteString("elsewhere"); err == nil {
		t.Fatal("no error from a broken pipe")
	}

	select {
	case <-ctx.Done():
		t.Fatal("interrupted by a broken pipe that is not its output")
	case <-time.After(100 * time.Millisecond): // A signal would come immediately.
	}

	if _, err := out.Write([]byte("output")); err == nil || ctx.Err() == nil {
		t.Errorf("a write to a closed output: %v, and the context is %v", err, ctx.Err())
	}
}
