package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// report writes the output.
type report struct {
	mu  sync.Mutex
	out io.Writer
}

// printf writes at once. A closed pipe ends the program.
func (r *report) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.out, format, args...)
}

func (r *report) title(s settings) {
	how := "contract " + string(s.contract)
	if s.nats {
		how += ", through NATS"
	}
	r.printf("Runtime Watcher: a change in a runtime starts a reconcile in the control plane (%s)\n\n", how)
}

// The columns of stages and steps.
const (
	stageFormat = "  %-13s %-76s %7s\n"
	rowFormat   = "  %-36s %8s   %-15s %s\n"
)

// stage runs a stage and prints its result and duration.
func (r *report) stage(ctx context.Context, stage stage) error {
	began := time.Now()
	result, err := stage.prepare(ctx)
	if err == nil {
		r.printf(stageFormat, stage.name, result, seconds(time.Since(began)))
	}
	return err
}

// Write implements [io.Writer], for the progress of a build.
func (r *report) Write(text []byte) (int, error) {
	r.printf("  %-13s ... %s\n", "", strings.TrimPrefix(strings.TrimSpace(string(text)), "controlplane: "))
	return len(text), nil
}

func (r *report) heading() {
	r.printf("\nWrites to Deployment %s/%s in the runtime, and their effects:\n\n", namespace, deploymentName)
	r.printf(rowFormat, "WRITE", "TOOK", "AGENT DECIDES", "RECONCILE IN THE CONTROL PLANE")
}

// row is the result of a step.
type row struct {
	does, decision, sees string
	took, wait           time.Duration
}

func (r *report) row(line row) {
	effect := "none, as expected"
	if line.sees != "" {
		effect = fmt.Sprintf("started %4s after the commit, sees %s", millis(line.wait), line.sees)
	}
	r.printf(rowFormat, line.does, millis(line.took), line.decision, effect)
}

// sum is the result of all steps.
type sum struct {
	waits              []time.Duration
	writes, reconciles int
	counts             map[string]float64
	took               time.Duration
}

func (r *report) summary(s sum) {
	r.printf("\nAll effects are as expected, after %s. %d of %d writes mattered. "+
		"%d reconciles started: all of %s, none of runtime-2.\n",
		seconds(s.took), len(s.waits), s.writes, s.reconciles, runtimeName)
	r.printf("From commit to reconcile: %s to %s. Of these, the agent waits %s (the settle time),\n"+
		"so that the operator does not read before the commit.\n",
		millis(slices.Min(s.waits)), millis(slices.Max(s.waits)), millis(settle))
	r.printf("Events, with the resync at the start of the agent: "+
		"%.0f accepted = %.0f delivered + %.0f coalesced, 0 dropped.\n",
		s.counts["accepted_total"], s.counts["delivered_total"], s.counts["coalesced_total"])
}

func millis(d time.Duration) string  { return fmt.Sprintf("%d ms", d.Milliseconds()) }
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
