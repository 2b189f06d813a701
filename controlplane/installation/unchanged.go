package installation

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// checkUnchanged reads the objects that watching depends on, and reports whether they need no
// correction: the last complete installation is recent, and neither its parameters nor these
// objects have changed. A nil Secret counts as unchanged.
func (v *visit) checkUnchanged(ctx context.Context) (status Status, unchanged bool, err error) {
	last, known := v.memory.records.load(v.id)
	if !known || !v.isRecent(last) {
		return Status{}, false, nil
	}

	marker, live, err := v.readAgain(ctx)
	if err != nil {
		return Status{}, false, err
	}
	isSame := versionOf(marker) == last.marker && versionOf(live.deployment) == last.deployment
	if !isSame || !v.haveMark(marker, live.deployment) {
		return Status{}, false, nil
	}

	status, err = v.judgeAgents(live, v.opts.service())
	if err != nil || status.State != Ready {
		// A missing object may keep the agent from answering.
		return status, false, err
	}
	return last.exclusions.judgeReady(status), true, nil
}

// isRecent reports whether a record is recent, and of the same parameters.
func (v *visit) isRecent(last record) bool {
	if v.opts.Now().Sub(last.at) >= verifyAfter {
		return false
	}
	isSameSecret := v.runtime.Secret == nil || last.secret == sumOf(v.runtime.Secret)
	return isSameSecret && last.parameters == v.sumParameters()
}

// readAgain reads the marker and the agents. The first request opens the connection that the
// further requests share.
func (v *visit) readAgain(ctx context.Context) (marker *unstructured.Unstructured, live agents, err error) {
	if err := v.readingObject(ctx, v.marker(), &marker)(); err != nil {
		return nil, agents{}, err
	}
	err = together(
		v.readingObject(ctx, v.manifests.copyOf(deploymentFile), &live.deployment),
		v.listingSlices(ctx, v.opts.service(), &live.slices),
	)
	return marker, live, err
}

// marker makes the agents see changes, has their owner, and a name that is unique there.
func (v *visit) marker() *unstructured.Unstructured {
	if v.opts.Informer {
		return v.manifests.copyOf(roleFile)
	}
	return v.opts.bareConfiguration()
}
