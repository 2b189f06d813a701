// Source is a change source, an alternative to the admission webhook. It reads a watch from
// standard input, and sends the changes that matter to the control plane. README.md shows how to
// run Source.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "source:", err)
		os.Exit(1)
	}
}

// run ends with its input. All events are delivered by then.
func run(ctx context.Context, args []string, watch io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("source", flag.ContinueOnError)
	addr := flags.String("control-plane-address", "", "`host:port` of the listener; empty prints the events instead")
	manager := flags.String("manager", "my-operator", "`name` of the operator that gets the events")
	var files keys.Paths
	flags.StringVar(&files.CA, "ca", "ca.crt", "`file` with the CA of the listener")
	flags.StringVar(&files.Certificate, "cert", "tls.crt", "`file` with the certificate of this runtime")
	flags.StringVar(&files.Key, "key", "tls.key", "`file` with its private key")

	if err := flags.Parse(args); err != nil {
		return err
	}

	to, err := newForwarder(*addr, files, stdout)
	if err != nil {
		return err
	}

	// A watch sees committed writes, so events need neither a settle time nor resends.
	events, err := outbox.New(to, outbox.Options{
		Settle: -1, Resend: []time.Duration{}, ResendResync: -1, MaxBatch: 100, InFlight: 1,
	})
	if err != nil {
		return err
	}

	// The end of ctx makes the outbox deliver all events that it has accepted.
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- events.Start(ctx) }()
	err = newSource(core.Manager(*manager), events).readChanges(watch)
	stop()

	return errors.Join(err, <-ended)
}

func newForwarder(addr string, files keys.Paths, stdout io.Writer) (core.Forwarder, error) {
	if addr == "" {
		return printer(stdout), nil
	}

	material, err := keys.NewFiles(files, keys.FilesOptions{})
	if err != nil {
		return nil, err
	}

	return httpmtls.NewForwarder(material, addr, contract.V3, httpmtls.Options{})
}

func printer(out io.Writer) core.ForwarderFunc {
	return func(_ context.Context, manager core.Manager, batch core.Batch) error {
		for _, e := range batch.Events {
			fmt.Fprintln(out, manager, e.Operation, e.WatchedGVK.Kind, e.Watched)
		}
		return nil
	}
}
