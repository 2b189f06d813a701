package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
)

// step is one write in the runtime, and what must come of it.
type step struct {
	// does says what is written.
	does  string
	write func(ctx context.Context) error
	// decision is that of the agent.
	decision admission.Decision
	// sees is what a reconcile must see; empty: none must start.
	sees string
}

// steps write to one Deployment.
func steps(runtime client.Client) []step {
	const (
		image       = "app:v1"
		one   int32 = 1
		two   int32 = 2
		three int32 = 3
	)

	deployment := newDeployment(one)
	update := func(opts ...client.UpdateOption) func(context.Context, func(*appsv1.Deployment)) error {
		return func(ctx context.Context, change func(*appsv1.Deployment)) error {
			change(deployment)

			return runtime.Update(ctx, deployment, opts...)
		}
	}

	return []step{
		{
			does:     "create",
			write:    func(ctx context.Context) error { return runtime.Create(ctx, deployment) },
			decision: admission.Accepted, sees: sight(one, image),
		},
		{
			does: "change the spec: replicas 1 to 2",
			write: func(ctx context.Context) error {
				return update()(ctx, func(d *appsv1.Deployment) { d.Spec.Replicas = new(two) })
			},
			decision: admission.Accepted, sees: sight(two, image),
		},
		{
			does: "change only metadata: an annotation",
			write: func(ctx context.Context) error {
				return update()(ctx, func(d *appsv1.Deployment) { d.Annotations["note"] = "nothing to see" })
			},
			decision: admission.Unchanged,
		},
		{
			does: "dry run: replicas 2 to 3",
			write: func(ctx context.Context) error {
				return update(client.DryRunAll)(ctx, func(d *appsv1.Deployment) { d.Spec.Replicas = new(three) })
			},
			decision: admission.DryRun,
		},
		{
			does:     "delete",
			write:    func(ctx context.Context) error { return runtime.Delete(ctx, deployment) },
			decision: admission.Accepted, sees: "no Deployment",
		},
	}
}

// playSteps makes one write after the other, each when all is known of the one before.
func (s *scene) playSteps(ctx context.Context) error {
	begin := s.diary.now()

	s.report.heading()

	var waits []time.Duration

	all := steps(s.runtime.Client)
	for _, step := range all {
		wait, err := s.playStep(ctx, step)
		if err != nil {
			return fmt.Errorf("step %q: %w\n  next: see agent.log and quickstart.log", step.does, err)
		}

		if step.sees != "" {
			waits = append(waits, wait)
		}
	}

	return s.summary(ctx, begin, len(all), waits)
}

// playStep makes a write, waits for what must come of it, and prints it. It returns the time from the commit to the reconcile.
func (s *scene) playStep(ctx context.Context, step step) (time.Duration, error) {
	before := s.diary.now()
	began := time.Now()

	if err := step.write(ctx); err != nil {
		return 0, err
	}

	// The API server answers when a write is committed.
	committed := time.Now()

	if err := s.awaitDecision(ctx, before, step.decision); err != nil {
		return 0, err
	}

	line := row{does: step.does, took: committed.Sub(began), decision: string(step.decision)}

	if step.sees == "" {
		if _, deliveries, reconciles := s.diary.since(before); len(deliveries)+len(reconciles) > 0 {
			return 0, fmt.Errorf("%d events reached the operator and %d reconciles started, want none", len(deliveries), len(reconciles))
		}

		s.report.row(line)

		return 0, nil
	}

	reconciled, err := s.awaitReconcile(ctx, before, step.sees)
	if err != nil {
		return 0, err
	}

	// Where the answer is late, the settle time can be over before it is here.
	line.wait, line.sees = max(0, reconciled.started.Sub(committed)), reconciled.sees
	s.report.row(line)

	return line.wait, nil
}

func (s *scene) awaitDecision(ctx context.Context, after mark, want admission.Decision) error {
	err := s.diary.await(ctx, "the agent to decide "+string(want), func() bool {
		return slices.Contains(s.diary.decisions[after.decisions:], string(want))
	})
	if err != nil {
		decisions, _, _ := s.diary.since(after)

		return fmt.Errorf("%w; its decisions were %q", err, decisions)
	}

	return nil
}

// awaitReconcile returns the reconcile of the runtime that sees what was written.
func (s *scene) awaitReconcile(ctx context.Context, after mark, sees string) (found reconciled, err error) {
	err = s.diary.await(ctx, "a reconcile that sees "+sees, func() bool {
		i := slices.IndexFunc(s.diary.reconciles[after.reconciles:], func(r reconciled) bool {
			return r.runtime == runtimeName && r.sees == sees
		})
		if i >= 0 {
			found = s.diary.reconciles[after.reconciles+i]
		}

		return i >= 0
	})
	if err != nil {
		_, deliveries, reconciles := s.diary.since(after)
		err = fmt.Errorf("%w; %d events reached the operator, and its reconciles were %+v", err, len(deliveries), reconciles)
	}

	return found, err
}

// summary looks at all that has happened: to whom, and whether the agent's accounts balance.
func (s *scene) summary(ctx context.Context, begin mark, writes int, waits []time.Duration) error {
	counts, err := s.agent.settled(ctx)
	if err != nil {
		return err
	}

	_, _, reconciles := s.diary.since(begin)
	for _, r := range reconciles {
		if r.runtime != runtimeName {
			return fmt.Errorf("%s was reconciled, where nothing happened", r.runtime)
		}
	}

	s.report.summary(sum{waits: waits, writes: writes, reconciles: len(reconciles), counts: counts, took: time.Since(s.started)})

	return nil
}

// settled returns the fates of all events when none is on its way any more, and fails when one was dropped or the accounts do not balance.
func (a *agent) settled(ctx context.Context) (map[string]float64, error) {
	const often = 20 * time.Millisecond

	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	tick := time.NewTicker(often)
	defer tick.Stop()

	for {
		counts, err := a.events(ctx, "accepted_total", "delivered_total", "coalesced_total", "dropped_total", "pending")
		if err != nil {
			return nil, fmt.Errorf("read the agent's metrics: %w", err)
		}

		if counts["pending"] == 0 {
			return counts, balanced(counts)
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("events are still on their way: %v: %w", counts, ctx.Err())
		}
	}
}

func balanced(counts map[string]float64) error {
	if counts["dropped_total"] != 0 || counts["accepted_total"] != counts["delivered_total"]+counts["coalesced_total"] {
		return fmt.Errorf("the agent's events are %v, want accepted = delivered + coalesced, and none dropped", counts)
	}

	return nil
}
