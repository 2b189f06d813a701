package chaos_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/test/chaos/naive"
	"github.com/runtime-watcher/runtime-watcher/test/chaos/operator"
)

// program names the variable that lets this program be another one, so that a test can kill it.
const program = "CHAOS_PROGRAM"

func TestMain(m *testing.M) {
	var err error

	switch os.Getenv(program) {
	case "operator":
		err = operator.Run(context.Background())
	case "naive":
		err = naive.Run()
	default:
		log.SetLogger(logr.Discard()) // That of envtest, which asks for one.
		os.Exit(m.Run())
	}

	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
