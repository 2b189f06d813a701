package installation

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// Uninstall removes the objects that Install has made, in reverse order. The webhook configuration
// is removed first, and the agent when API servers can no longer call it. Call Uninstall again
// until the state is [Removed]. Uninstall uses only ID and Client of r.
//
// Uninstall removes only objects with the mark of this installer, and each object only if it is the
// object that was read. Uninstall removes the namespace if Install has created it and it contains
// no other objects, of any kind that the API server serves. If the kinds or the objects cannot be
// listed, the namespace stays, and a line is logged. To list them, Client must come from
// runtimes.NewKubeconfigs or remote.NewClient.
//
// Missing objects are not an error. A runtime that cannot be reached is an error, and so is a
// missing Client. If the runtime no longer exists, call [Installer.Forget] instead.
func (i *Installer) Uninstall(ctx context.Context, r Runtime) (Status, error) {
	if r.Client == nil {
		return Status{}, fmt.Errorf("runtime %q: %w: if the runtime no longer exists, call Forget", r.ID, errNoClient)
	}

	i.memory.forgetRuntime(r.ID)
	v := i.newVisit(&r)
	ctx, end := i.budgets.beginCall(ctx, v.renderer)
	defer end()
	return bounded(v.uninstall(ctx))
}

// Forget removes everything that the installer remembers of a runtime. Forget makes no request and
// leaves the objects in the runtime. Call Forget for a runtime that no longer exists, or that
// another installer serves from now on. Calls for the same runtime must not run concurrently.
func (i *Installer) Forget(id core.RuntimeID) { i.memory.forgetRuntime(id) }

func (v *visit) uninstall(ctx context.Context) (Status, error) {
	if err := v.readFound(ctx); err != nil {
		return Status{}, err
	}
	for _, object := range v.found.decidingObjects() {
		if v.rights.checkRuntime(object) != nil {
			return Status{State: Removed}, nil //nolint:nilerr // Nothing there belongs to this runtime.
		}
	}

	held, err := v.removeInstalled(ctx)
	if err != nil {
		return Status{}, err
	}
	if len(held) > 0 || !v.rights.ownsNamespace() {
		return awaitingEndOf(held), nil
	}
	return v.removeNamespace(ctx)
}

// removeInstalled removes the webhook configuration, and all other objects when it is gone. An
// object that the options adopt has no mark before an installation, and stays.
func (v *visit) removeInstalled(ctx context.Context) (held []*unstructured.Unstructured, err error) {
	held, err = v.removeIf(ctx, v.rights.isOfThisRuntime, v.opts.bareConfiguration())
	if err != nil || len(held) > 0 {
		return held, err
	}
	return v.removeIf(ctx, v.rights.isOfThisRuntime, v.installedObjects()...)
}

// installedObjects has the ConfigMap last, which marks the runtime. An interrupted removal is
// continued while the ConfigMap is there.
func (v *visit) installedObjects() (objects []*unstructured.Unstructured) {
	if v.opts.Informer || v.found.role != nil {
		objects = v.manifests.removable(partInformer)
	}
	objects = append(objects, v.manifests.copyOf(deploymentFile), v.bareSecret())
	objects = append(objects, v.formerPullSecret()...)

	for _, part := range []int{partService, partCanary, partBase} {
		objects = append(objects, v.manifests.removable(part)...)
	}
	return append(objects, v.bareManagers())
}

// removeNamespace leaves a namespace with objects of others, which would end with it.
func (v *visit) removeNamespace(ctx context.Context) (Status, error) {
	if v.found.namespaceEnds() {
		return awaitingEndOf([]*unstructured.Unstructured{v.found.namespace}), nil
	}

	guest, err := v.findGuest(ctx)
	if err != nil && ctx.Err() != nil {
		return Status{}, err // The next call checks again.
	}
	if err != nil {
		v.log.WarnContext(ctx, "the namespace of the agent stays, because its objects cannot be listed",
			slog.String("namespace", v.opts.Namespace), slog.String("error", remote.Text(err.Error())))
		return Status{State: Removed}, nil
	}
	if guest != "" {
		v.log.InfoContext(ctx, "namespace of the agent stays, because it contains objects of other owners",
			slog.String("namespace", v.opts.Namespace), slog.String("object", guest))
		return Status{State: Removed}, nil
	}

	if err := ownership.DeleteUnchanged(ctx, v, v.found.namespace); err != nil {
		return Status{}, v.wrapRequest(err, "delete Namespace", v.opts.Namespace)
	}
	left, err := v.readObject(ctx, v.renderNamespace())
	if err != nil || left == nil {
		return Status{State: Removed}, err
	}
	return awaitingEndOf([]*unstructured.Unstructured{left}), nil
}

// findGuest returns kind and name of an object in the namespace after all objects of this
// installation were removed, "" if there is none. An object of another installation with our owner
// is a guest, too. It fails if a kind that may have objects there cannot be listed.
func (v *visit) findGuest(ctx context.Context) (string, error) {
	return FindGuest(ctx, v.Client, v.opts.Namespace, nil)
}
