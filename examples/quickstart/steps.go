package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// step is one write in the runtime, and its expected effect.
type step struct {
	// does describes the write.
	does  string
	write func(ctx context.Context) error
	// decision is the expected decision of the agent.
	decision string
	// sees is the state that a reconcile must read. Empty: there must be no reconcile.
	sees string
}

// steps returns writes to one Deployment.
func steps(runtime client.Client) []step {
	const image = "app:v1"
	deployment := newDeployment(1)
	update := func(change func(*appsv1.Deployment), opts ...client.UpdateOption) func(context.Context) error {
		return func(ctx context.Context) error {
			change(deployment)
			return runtime.Update(ctx, deployment, opts...)
		}
	}
	replicas := func(n int32) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.Spec.Replicas = new(n) }
	}
	note := func(d *appsv1.Deployment) { d.Annotations["note"] = "hello" }
	create := func(ctx context.Context) error { return runtime.Create(ctx, deployment) }
	remove := func(ctx context.Context) error { return runtime.Delete(ctx, deployment) }
	return []step{
		{"create", create, "accepted", describe(1, image)},
		{"change the spec: replicas 1 to 2", update(replicas(2)), "accepted", describe(2, image)},
		{"change only metadata: an annotation", update(note), "unchanged", ""},
		{"dry run: replicas 2 to 3", update(replicas(3), client.DryRunAll), "dry_run", ""},
		{"delete", remove, "accepted", "no Deployment"},
	}
}

// playSteps makes one write after the other, each after the effect of the one before.
func (d *demo) playSteps(ctx context.Context) error {
	begin := d.journal.now()
	d.report.printf("\nWrites to Deployment %s/%s in the runtime, and their effects:\n\n", namespace, deploymentName)
	d.report.printf(rowFormat, "WRITE", "TOOK", "AGENT DECIDES", "RECONCILE IN THE CONTROL PLANE")
	var waits []time.Duration
	all := steps(d.remotes[0].cluster.Client)
	for _, step := range all {
		wait, err := d.playStep(ctx, step)
		if err != nil {
			return fmt.Errorf("step %q: %w\n  next: see agent.log and quickstart.log", step.does, err)
		}
		if step.sees != "" {
			waits = append(waits, wait)
		}
	}
	return d.summary(ctx, begin, len(all), waits)
}

// playStep makes a write, waits for its effect and prints it. It returns the time from the commit
// to the reconcile.
func (d *demo) playStep(ctx context.Context, step step) (time.Duration, error) {
	before, began := d.journal.now(), time.Now()
	if err := step.write(ctx); err != nil {
		return 0, err
	}
	committed := time.Now() // The API server answers after the commit.
	if err := d.awaitDecision(ctx, before, step.decision); err != nil {
		return 0, err
	}
	started, err := d.awaitEffect(ctx, before, step.sees)
	if err != nil {
		return 0, err
	}
	wait := max(0, started.Sub(committed)) // The settle time may end before a late answer.
	effect := "none, as expected"
	if step.sees != "" {
		effect = fmt.Sprintf("started %4s after the commit, sees %s", millis(wait), step.sees)
	}
	d.report.printf(rowFormat, step.does, millis(committed.Sub(began)), step.decision, effect)
	return wait, nil
}

// awaitEffect returns the start of the reconcile that reads the written state. If sees is empty, it
// fails after any event of an object instead.
func (d *demo) awaitEffect(ctx context.Context, before mark, sees string) (time.Time, error) {
	if sees != "" {
		return d.awaitReconcile(ctx, before, sees)
	}
	_, deliveries, _ := d.journal.since(before)
	if slices.ContainsFunc(deliveries, func(d core.Delivery) bool { return !d.Event.Resync }) {
		return time.Time{}, errors.New("an event in the control plane, want none")
	}
	return time.Time{}, nil
}

func (d *demo) awaitDecision(ctx context.Context, after mark, want string) error {
	err := d.journal.await(ctx, "the decision "+want, func() bool {
		return slices.Contains(d.journal.decisions[after.decisions:], want)
	})
	if err != nil {
		decisions, _, _ := d.journal.since(after)
		return fmt.Errorf("%w; the decisions were %q", err, decisions)
	}
	return nil
}

// awaitReconcile returns the start of the reconcile that reads the written state.
func (d *demo) awaitReconcile(ctx context.Context, after mark, sees string) (started time.Time, err error) {
	err = d.journal.await(ctx, "a reconcile that sees "+sees, func() bool {
		i := slices.IndexFunc(d.journal.reconciles[after.reconciles:], func(r reconciled) bool {
			return r.runtime == runtimeName && r.sees == sees
		})
		if i >= 0 {
			started = d.journal.reconciles[after.reconciles+i].started
		}
		return i >= 0
	})
	if err != nil {
		_, deliveries, reconciles := d.journal.since(after)
		err = fmt.Errorf("%w; there were %d deliveries and the reconciles %+v", err, len(deliveries), reconciles)
	}
	return started, err
}

// summary checks that no other runtime was reconciled, and that the counts of the agent balance.
func (d *demo) summary(ctx context.Context, begin mark, writes int, waits []time.Duration) error {
	counts, err := d.remotes[0].agent.settled(ctx)
	if err != nil {
		return err
	}
	_, _, reconciles := d.journal.since(begin)
	for _, r := range reconciles {
		if r.runtime != runtimeName {
			return fmt.Errorf("%s was reconciled without a change", r.runtime)
		}
	}
	d.report.printf("\nAll effects are as expected, after %s. %d of %d writes mattered. "+
		"%d reconciles started: all of %s, none of runtime-2.\n",
		seconds(time.Since(d.started)), len(waits), writes, len(reconciles), runtimeName)
	d.report.printf("From commit to reconcile: %s to %s. Of these, the agent waits %s (the settle time),\n"+
		"so that the operator does not read before the commit.\n",
		millis(slices.Min(waits)), millis(slices.Max(waits)), millis(settle))
	d.report.printf("Events, with the resync at the start of the agent: "+
		"%.0f accepted = %.0f delivered + %.0f coalesced, 0 dropped.\n",
		counts["accepted_total"], counts["delivered_total"], counts["coalesced_total"])
	return nil
}

// settled returns the fates of all events when none is pending. It fails if an event was dropped,
// or if the counts do not balance.
func (a *agent) settled(ctx context.Context) (counts map[string]float64, err error) {
	late := poll(ctx, func() bool {
		counts, err = a.events(ctx)
		return err != nil || counts["pending"] == 0
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the agent's metrics: %w", err)
	case late != nil:
		return nil, fmt.Errorf("events are still pending: %v: %w", counts, late)
	default:
		return counts, balanced(counts)
	}
}

func balanced(counts map[string]float64) error {
	if counts["dropped_total"] != 0 || counts["accepted_total"] != counts["delivered_total"]+counts["coalesced_total"] {
		return fmt.Errorf("the agent's events are %v, want accepted = delivered + coalesced, and none dropped", counts)
	}
	return nil
}
