// Command fleetlab measures a fleet on one machine, and checks that nothing is lost.
//
// This process plays N runtimes. Each has its own key, certificate, connection and outbox, with
// heartbeats and random changes. Other processes are replicas of a real operator: a listener with
// SAN pinning against the cache of a controller manager, a fleet, and a workqueue. They run against
// a real API server. TLS and the loopback interface are real, too.
//
// An oracle keeps the time of each change. A change is missed if its runtime is not reconciled
// after it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	if isOperator() {
		fmt.Fprintln(os.Stderr, "operator:", runOperator(context.Background()))
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleetlab:", err)
		os.Exit(1)
	}
}

// run measures each size with each variant, and writes the tables and plots.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	log.SetLogger(logr.Discard())
	opts, err := parse(args, stderr)
	if err != nil {
		return err
	}
	var results []*result
	err = withControlPlane(ctx, func(c *cluster) error {
		results, err = measureAll(ctx, c, opts, stderr)
		return err
	})
	if len(results) == 0 {
		return err
	}
	if written := writeReport(opts, results, stdout); written != nil {
		return written
	}
	if err != nil {
		return err
	}
	return verdict(results)
}

// measureAll returns the results up to the first failure.
func measureAll(ctx context.Context, c *cluster, opts options, progress io.Writer) (results []*result, err error) {
	for _, n := range opts.sizes {
		for _, v := range opts.variants {
			some, err := measure(ctx, c, opts, n, v, progress)
			results = append(results, some...)
			if err != nil {
				return results, fmt.Errorf("%d runtimes, variant %s: %w", n, v.Name, err)
			}
		}
	}
	return results, nil
}

// measure plays the scenarios one after the other in one world.
func measure(
	ctx context.Context, c *cluster, opts options, n int, v variant, progress io.Writer,
) (results []*result, err error) {
	w, err := newWorld(ctx, c, opts, n, v, progress)
	if err != nil {
		return nil, err
	}
	defer w.close()
	for _, s := range opts.scenarios {
		r, err := w.play(ctx, s)
		if r != nil {
			results = append(results, r)
		}
		if err != nil {
			return results, fmt.Errorf("scenario %s: %w", s.name, err)
		}
	}
	return results, nil
}

// verdict fails if a change was missed.
func verdict(results []*result) error {
	for _, r := range results {
		if r.missed > 0 {
			return fmt.Errorf("%d runtimes, scenario %s: %d runtimes were not reconciled after their last change",
				r.n, r.scenario, r.missed)
		}
	}
	return nil
}
