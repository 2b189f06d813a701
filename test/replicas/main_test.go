package replicas_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/replicas/replica"
)

// program names the variable that makes this program a replica, so that a test can kill it.
const program = "REPLICAS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(program) == "" {
		os.Exit(lab.RunTests(m))
	}

	if err := replica.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
