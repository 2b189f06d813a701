package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
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
func (d *demo) playSteps() {
	begin := d.journal.now()
	d.report.printf("\nWrites to Deployment %s/%s in the runtime, and their effects:\n\n", namespace, deploymentName)
	d.report.printf(rowFormat, "WRITE", "TOOK", "AGENT DECIDES", "RECONCILE IN THE CONTROL PLANE")

	all := steps(d.remotes[0].cluster.Client)
	var waits []time.Duration
	for _, step := range all {
		d.stage = stage{name: fmt.Sprintf("step %q", step.does), next: "see agent.log and quickstart.log"}
		if wait := d.playStep(step); step.sees != "" {
			waits = append(waits, wait)
		}
	}

	d.printSummary(begin, len(all), waits)
}

// playStep makes a write, waits for its effect and prints it. It returns the time from the commit
// to the reconcile.
func (d *demo) playStep(step step) time.Duration {
	before := d.journal.now()
	began := time.Now()
	lab.NoError(d, step.write(d.Context()))
	committed := time.Now() // The API server answers after the commit.
	d.await("the decision "+step.decision, func() bool {
		return slices.Contains(d.journal.since(before, agentDecides), entry{where: agentDecides, about: step.decision})
	})

	var wait time.Duration
	effect := "none, as expected"
	if step.sees == "" {
		d.checkNoEvent(before)
	} else {
		// The settle time may end before a late answer.
		wait = max(0, d.awaitReconcile(before, step.sees).Sub(committed))
		effect = fmt.Sprintf("started %4s after the commit, sees %s", millis(wait), step.sees)
	}

	d.report.printf(rowFormat, step.does, millis(committed.Sub(began)), step.decision, effect)
	return wait
}

// checkNoEvent fails after any event of an object.
func (d *demo) checkNoEvent(before int) {
	if slices.ContainsFunc(d.journal.since(before, listenerAccepts), func(e entry) bool { return e.about != aResync }) {
		d.Fatal("an event in the control plane, want none")
	}
}

// awaitReconcile returns the start of the reconcile that reads the written state.
func (d *demo) awaitReconcile(after int, sees string) (started time.Time) {
	d.await("a reconcile that sees "+sees, func() bool {
		for _, r := range d.journal.since(after, operatorReconciles) {
			if r.runtime == runtimeName && r.about == sees {
				started = r.began
				return true
			}
		}
		return false
	})
	return started
}

// printSummary checks that no other runtime was reconciled, and that the counts of the agent
// balance.
func (d *demo) printSummary(begin, writes int, waits []time.Duration) {
	accepted, delivered, coalesced := d.awaitSettled()
	reconciles := d.journal.since(begin, operatorReconciles)
	for _, r := range reconciles {
		if r.runtime != runtimeName {
			d.Fatalf("%s was reconciled without a change", r.runtime)
		}
	}

	d.report.printf("\nAll effects are as expected, after %s. %d of %d writes mattered. "+
		"%d reconciles started: all of %s, none of runtime-2.\n",
		seconds(time.Since(d.started)), len(waits), writes, len(reconciles), runtimeName)
	d.report.printf("From commit to reconcile: %s to %s. At first, the agent waits %s (the settle time),\n"+
		"so that the operator does not read before the commit. "+
		"While the operator checks the reads of its reconciles,\n"+
		"the agent waits only %s.\n",
		millis(slices.Min(waits)), millis(slices.Max(waits)), millis(settle), millis(settleChecked))
	d.report.printf("Events, with the resync at the start of the agent: "+
		"%.0f accepted = %.0f delivered + %.0f coalesced, 0 dropped.\n", accepted, delivered, coalesced)
}

// awaitSettled returns the fates of all events when none is pending. It fails if an event was
// dropped, or if the counts do not balance.
func (d *demo) awaitSettled() (accepted, delivered, coalesced float64) {
	var metrics []byte
	count := func(fate string) float64 { return lab.Sum(metrics, "runtime_watcher_agent_events_"+fate) }
	d.await("no event is pending", func() bool {
		metrics = d.remotes[0].agent.Scrape()
		return count("pending") == 0
	})

	accepted = count("accepted_total")
	delivered = count("delivered_total")
	coalesced = count("coalesced_total")
	dropped := count("dropped_total")
	if dropped != 0 || accepted != delivered+coalesced {
		d.Fatalf("%v events are accepted, %v delivered, %v coalesced and %v dropped, want all delivered or coalesced",
			accepted, delivered, coalesced, dropped)
	}
	return accepted, delivered, coalesced
}
