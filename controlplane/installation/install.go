package installation

import (
	"context"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
)

// Install does the next steps of an installation without waiting, and corrects changes by other
// clients. Call it again while the state is not [Ready], and for example every 10 min after that.
//
// The webhook configuration comes last, when the agent answers. If a rollout is stalled, an answer
// from an old replica is enough. An existing configuration gets a new bundle before the agent gets
// a new certificate. Neither a new Secret nor a new manager restarts an agent. With
// [Options].Informer, an existing configuration is removed first.
//
// A call with nothing to change reads three objects: the webhook configuration, the Deployment and
// the endpoints of the Service. With [Options].Informer it reads two: the ClusterRole and the
// Deployment. It corrects the first two objects immediately, and all other objects after 1 h.
//
// Install changes only objects with its mark, which is the annotation with [Options].Owner. If an
// object with one of its names exists without the mark, Install changes nothing, and the error
// names the object. [Options].FormerOwners and [Options].Adopt allow Install to take such objects
// over.
//
// If Install returns an error, only Former of the [Status] is set. A permanent error
// (core.IsPermanent) needs another Runtime: its reason is invalid_runtime, invalid_watch or
// invalid_configuration. An error with the reason owned ends when the other installation is removed
// or adopted. Retry all other errors.
//
// With a client of runtimes.NewKubeconfigs, a call uses at most 64 MiB for the answers of the
// runtime. Install truncates texts from the runtime.
func (i *Installer) Install(ctx context.Context, r Runtime) (Status, error) {
	v := i.newVisit(&r)
	ctx, end := i.budgets.beginCall(ctx, v.renderer)
	defer end()
	return bounded(v.install(ctx))
}

// Unchanged reports whether a call of Install with the last Secret would change nothing. The status
// is the status of such a call. Unchanged needs no Secret and reads the same objects as a call of
// Install with nothing to change. If it returns false, call Install.
func (i *Installer) Unchanged(ctx context.Context, r Runtime) (status Status, unchanged bool, err error) {
	if r.Client == nil || r.Verify {
		return Status{}, false, nil
	}

	r.Secret = nil
	v := i.newVisit(&r)
	ctx, end := i.budgets.beginCall(ctx, v.renderer)
	defer end()
	status, unchanged, err = v.checkUnchanged(ctx)
	status, err = bounded(status, err)
	return status, unchanged, err
}

// bounded cuts texts from the runtime.
func bounded(status Status, err error) (Status, error) {
	status.Message = remote.Text(status.Message)
	status.Notice = remote.Text(status.Notice)
	return status, remote.Error(err)
}

// install does one call of Install. The visit belongs to that call, and the memory has its own
// lock. Calls for the same runtime must not run concurrently.
func (v *visit) install(ctx context.Context) (Status, error) {
	if v.runtime.Verify {
		v.memory.records.outdateRecord(v.id) // Even if this call fails.
	}
	if err := v.validateRuntime(); err != nil {
		return Status{}, fmt.Errorf("%w %q: %w", errInvalidRuntime, v.id, err)
	}

	status, unchanged, err := v.checkUnchanged(ctx)
	if unchanged || err != nil {
		return status, err
	}

	v.memory.records.outdateRecord(v.id)
	v.last, _ = v.memory.records.load(v.id)
	return v.correctObjects(ctx)
}

func (v *visit) validateRuntime() error {
	needs := purposes{nats: v.opts.settings().overNATS()}
	if !v.opts.Informer {
		needs.host = v.opts.host()
	}

	if err := v.runtime.validate(needs); err != nil {
		return err
	}
	isDirect := v.opts.Settings[settingProxy] == proxyDirect
	if isDirect && v.runtime.ProxyCredentials != nil { // The agent would end with it.
		return fmt.Errorf("ProxyCredentials: want none with %s=%s", settingProxy, proxyDirect)
	}
	_, err := parsePort(v.address)
	return err
}

// correctObjects applies all objects, in an order in which the API server never calls an agent that
// cannot answer. Nothing is written before each object was found to be of this installer.
func (v *visit) correctObjects(ctx context.Context) (Status, error) {
	if err := v.readFound(ctx); err != nil {
		return Status{}, err
	}
	if err := v.rights.checkOwners(v.found.decidingObjects()); err != nil {
		return Status{}, err
	}

	if err := v.planObjects(ctx); err != nil {
		return Status{}, err
	}
	if err := v.readOthers(ctx); err != nil {
		return Status{}, err
	}
	if err := v.rights.checkOwners(v.found.otherObjects()); err != nil {
		return Status{}, err
	}

	status, err := v.carryOut(ctx)
	if err != nil { // A write may have been done nevertheless.
		status = Status{}
	}
	status.Former = v.former
	return status, err
}

// planObjects plans the objects to apply. It asks the runtime by a dry run for the changes of
// others, and books the next restart of the agents, which is due if others have changed webhooks.
func (v *visit) planObjects(ctx context.Context) error {
	v.ownNamespace = v.ownsOrMakesNamespace()
	v.former = v.formerManagers()
	want, err := v.renderConfiguration()
	if err != nil {
		return err
	}
	v.want = want

	if err := v.planConfiguration(ctx); err != nil {
		return err
	}
	stale := v.former
	if v.want.callsMissed {
		v.log.WarnContext(ctx, "another program changed the webhooks, so the agents restart after the correction")
		stale = v.opts.managersOf(v.runtime.Watches)
	}

	due := nextRestart(lastRestart(v.found.managers, v.opts.key(annotationRestart)), stale)
	why := cause{former: len(v.former) > 0, missed: v.want.callsMissed}
	pods := v.memory.restarts.scheduleRestart(v.id, due, why, v.opts.Now())
	v.addObjects(v.want, restart{booked: due, inPods: pods})
	return nil
}

// carryOut writes. The copy of a pull secret is removed before the ConfigMap loses its annotation.
func (v *visit) carryOut(ctx context.Context) (Status, error) {
	if v.runtime.PullSecret == nil {
		if err := v.removeAll(ctx, v.formerPullSecret()); err != nil {
			return Status{}, err
		}
	}
	if err := v.claimRuntime(ctx); err != nil {
		return Status{}, err
	}
	if v.want.callsMissed {
		// After the correction, nothing else shows that the restart is due.
		if _, err := v.applyOne(ctx, v.want.managers); err != nil {
			return Status{}, err
		}
	}

	if v.opts.Informer {
		return v.installInformer(ctx)
	}
	return v.installWebhook(ctx)
}
