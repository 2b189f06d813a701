// Package loss makes faults between a runtime and an operator, and compares every write with the
// reconciles of the operator: each last write is reconciled after its commit. The faults are at
// random, and repeatable by a seed.
package loss

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
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
	// TestLateCommitsAreSeen waits for a minute, and computes little.
	if err := flag.Set("test.parallel", "3"); err != nil {
		return err
	}
	if lab.RunTests(m) != 0 {
		return errFailed
	}
	// toxiproxy waits for ever when a connection ends while it gets a toxic.
	err := goleak.Find(goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"))
	if left := lab.Children(); len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("processes are left: %v", left))
	}
	return err
}

// self returns the path of this program, which is also the other programs.
func self() string { return lab.Must(os.Executable()) }

const naiveTimeout = 2 * time.Second

// runNaive forwards events within admission, with short retries, and then drops them, as programs
// that are deployed today. It shows that the suite can fail. Its settings are in the environment. The webhook and
// the forwarder are the real ones: only the outbox between them is missing.
func runNaive(ctx context.Context) error {
	material, err := keys.NewFiles(keys.Paths{
		CA: os.Getenv("CA_CERT"), Certificate: os.Getenv("TLS_CERT"), Key: os.Getenv("TLS_KEY"),
	}, keys.FilesOptions{})
	if err != nil {
		return err
	}
	forwarder, err := httpmtls.NewForwarder(material, os.Getenv("KCP_ADDR"), contract.V2,
		httpmtls.Options{Timeout: naiveTimeout, ServerName: "127.0.0.1"})
	if err != nil {
		return err
	}
	forward := core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		if forwarder.Forward(ctx, manager, core.NewBatch(event)) != nil {
			return core.Dropped
		}
		return core.Accepted
	})
	handler, err := admission.New(forward, admission.Options{})
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr: "127.0.0.1:" + os.Getenv("WEBHOOK_PORT"), Handler: handler, ReadHeaderTimeout: naiveTimeout,
		TLSConfig: keys.WebhookTLSConfig(material, nil),
	}
	return errors.Join(server.ListenAndServeTLS("", ""), forwarder.Close())
}
