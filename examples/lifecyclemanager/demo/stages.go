package main

import (
	"context"
	"errors"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

// deploy applies config/native and the Watcher of the module, as `kubectl apply -k` does.
func (d *demo) deploy(ctx context.Context) error {
	objects, err := lab.Kustomize("native")
	if err != nil {
		return err
	}
	if err := d.Deploy(ctx, objects); err != nil {
		return err
	}
	return d.ApplyFile(ctx, "samples/keda-watcher.yaml")
}

// register registers both runtimes, and waits for their agents. The users of the second one see
// modules that are in beta.
func (d *demo) register(ctx context.Context) (err error) {
	if d.before, err = d.Runtimes[second].Inventory(ctx); err != nil {
		return err
	}
	beta := map[string]string{v1beta2.BetaLabel: "true"}
	if err := errors.Join(d.Register(ctx, first, nil), d.Register(ctx, second, beta)); err != nil {
		return err
	}
	return machine.Poll(ctx, func() bool { return d.is(ctx, first, "fresh", "") && d.isFresh(ctx) })
}

// is reports whether the fleet has a runtime in a state for both controllers, for a reason or none.
func (d *demo) is(ctx context.Context, id, state, reason string) bool {
	fleet, err := d.Fleet(ctx, id)
	return err == nil && len(fleet) == 2 && !slices.ContainsFunc(fleet, func(f lab.Freshness) bool {
		return f.State != state || f.Reason != reason
	})
}
