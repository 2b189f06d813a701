package installation

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Uninstall removes the objects that Install has made, in reverse order. The webhook configuration
// comes first, and the agent when no API server can call it any more. Call it again until the state
// is [Removed]. Of r only ID and Client matter.
//
// Missing objects are no error, and neither is a runtime that is gone, which has no client. A
// runtime that cannot be reached is an error.
func (i *Installer) Uninstall(ctx context.Context, r Runtime) (Status, error) {
	i.looks.Delete(r.ID)
	if r.Client == nil {
		return Status{State: Removed}, nil
	}
	ctx, end := i.budgets.Begin(ctx)
	defer end()
	return bounded(i.uninstall(ctx, i.cluster(&r)))
}

func (i *Installer) uninstall(ctx context.Context, in *cluster) (Status, error) {
	found, err := i.read(ctx, in)
	if err != nil {
		return Status{}, err
	}
	if err := i.checkOwner(in, found.configuration, found.managers, found.role); err != nil {
		return Status{State: Removed}, nil //nolint:nilerr // Nothing there is of this installer.
	}
	held, err := in.remove(ctx, []*unstructured.Unstructured{i.bareConfiguration()})
	if err != nil || len(held) > 0 {
		return awaitingEndOf(held), err
	}
	held, err = in.remove(ctx, i.removable(found))
	if err != nil {
		return Status{}, err
	}
	return awaitingEndOf(held), nil
}

// bareConfiguration names the webhook configuration.
func (i *Installer) bareConfiguration() *unstructured.Unstructured {
	kind := admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration")
	return named(kind, "", i.opts.ConfigurationName)
}

// removable returns all objects except the webhook configuration, in the order of their removal.
// The ConfigMap comes last, as it marks the runtime as one of this installer, and after it the
// namespace, if Install has made it.
func (i *Installer) removable(found existing) []*unstructured.Unstructured {
	objects := make([]*unstructured.Unstructured, 0, len(files())+7)
	if i.watches() || found.role != nil {
		objects = append(objects, i.informerObjects(nil).removable()...)
	}
	for _, f := range slices.Backward(files()) {
		object := i.object(f.path)
		objects = append(objects, object)
		if object.GetKind() == kindDeployment {
			objects = append(objects, i.secret(&Runtime{}))
			objects = append(objects, i.formerPullSecret(found.managers)...)
		}
	}
	objects = append(objects, i.managersMap(&Runtime{}, ""))
	if found.namespace != nil && ours(found.namespace) {
		objects = append(objects, i.namespace())
	}
	return objects
}

func awaitingEndOf(held []*unstructured.Unstructured) Status {
	if len(held) == 0 {
		return Status{State: Removed}
	}
	names := make([]string, len(held))
	for n, object := range held {
		names[n] = object.GetKind() + " " + object.GetName()
	}
	return progressing(reasonObjectsEnding, "waiting for the end of "+strings.Join(names, ", "))
}
