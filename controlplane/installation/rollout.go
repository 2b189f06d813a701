package installation

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
)

// installWebhook installs agents that the API server calls. The role belongs to agents that watched
// until now. Former replicas may be such agents, and serve no webhook.
func (v *visit) installWebhook(ctx context.Context) (Status, error) {
	configuration, err := v.renewConfiguration(ctx)
	if err != nil {
		return Status{}, err
	}

	live, status, err := v.installAgent(ctx)
	if err != nil {
		return status, err
	}
	formerServe := v.found.role == nil && status.formerServe()
	if status.State != Ready && !formerServe {
		return status, nil
	}

	if v.found.role != nil {
		if _, err := v.remove(ctx, v.manifests.removable(partInformer)...); err != nil {
			return status, err
		}
	}
	if !v.want.allWebhooks {
		configuration, err = v.putConfiguration(ctx, configuration, v.want.configuration)
		if err != nil {
			return status, err
		}
	}

	if status.State != Ready {
		return status, nil
	}
	if v.want.restartWaits {
		return status.withFailure(ReasonWebhooksContested,
			"another program repeatedly changes the webhooks, "+
				"so the next restart of the agents waits for up to an hour"), nil
	}
	return v.completeInstallation(ctx, status, configuration, live)
}

// installInformer installs agents that watch. The webhook configuration goes first, because these
// agents do not answer. The resync of their start replaces the changes in between.
func (v *visit) installInformer(ctx context.Context) (Status, error) {
	if v.found.configuration != nil {
		held, err := v.remove(ctx, v.opts.bareConfiguration())
		if err != nil || len(held) > 0 {
			return awaitingEndOf(held), err
		}
	}

	live, status, err := v.installAgent(ctx)
	if err != nil || status.State != Ready {
		return status, err
	}
	return v.completeInstallation(ctx, status, v.found.role, live)
}

// installAgent applies all objects except the webhook configuration, and judges the agents.
func (v *visit) installAgent(ctx context.Context) (agents, Status, error) {
	if v.found.namespaceEnds() {
		return agents{}, progressing(ReasonNamespaceEnding, "waiting for the end of Namespace "+v.opts.Namespace), nil
	}

	live, err := v.applyObjects(ctx)
	if err != nil {
		return agents{}, Status{}, err
	}
	status, err := v.judgeAgents(live, v.opts.service())
	return live, status, err
}

// applyObjects applies the early objects before the late ones, as the pods cannot start without the
// Secret.
func (v *visit) applyObjects(ctx context.Context) (live agents, err error) {
	if err := v.applyAll(ctx, v.want.early); err != nil {
		return agents{}, err
	}

	err = together(
		func() error { return v.applyAll(ctx, v.want.late) },
		v.applyingObject(ctx, v.want.deployment, &live.deployment),
		v.listingSlices(ctx, v.opts.service(), &live.slices),
		func() error { return v.applyNamespace(ctx) },
	)
	return live, err
}

// applyNamespace corrects a namespace of ours. The namespace is never replaced, because it may hold
// foreign objects.
func (v *visit) applyNamespace(ctx context.Context) error {
	if !v.rights.ownsNamespace() {
		return nil
	}
	_, err := ownership.Apply(ctx, v, v.renderNamespace(), v.found.namespace, fieldOwner)
	return v.wrapRequest(err, "correct Namespace", v.opts.Namespace)
}

// completeInstallation removes the objects of the canary after the canary was turned off, and the
// objects of a former agent. marker is the object that shows in the next visit that nothing has
// changed.
func (v *visit) completeInstallation(
	ctx context.Context, status Status, marker *unstructured.Unstructured, live agents,
) (Status, error) {
	if v.opts.NoCanary {
		if err := v.removeAll(ctx, v.manifests.removable(partCanary)); err != nil {
			return Status{}, err
		}
	}
	status, err := v.replaceFormer(ctx, status)
	if err != nil || status.State != Ready {
		return status, err
	}

	last := v.want.record
	last.at = v.opts.Now()
	last.marker = versionOf(marker)
	last.deployment = versionOf(live.deployment)
	last.exclusions = v.want.keptExclusions
	v.memory.records.store(v.id, last)
	return last.exclusions.judgeReady(status), nil
}
