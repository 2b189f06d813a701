package installation

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Uninstall removes the objects that Install has made, in reverse order. The webhook configuration
// comes first, and the agent when no API server can call it any more. Call it again until the state
// is [Removed]. Of r only ID and Client matter.
//
// Missing objects are no error, and neither is a runtime that is gone, which has no client. A
// runtime that cannot be reached is an error.
func (i *Installer) Uninstall(ctx context.Context, r Runtime) (Status, error) {
	if r.Client == nil {
		return Status{State: Removed}, nil
	}

	in := i.cluster(&r)

	held, err := in.remove(ctx, []*unstructured.Unstructured{i.emptyConfiguration()})
	if err != nil || len(held) > 0 {
		return awaitingEndOf(held), err
	}

	if err := i.removeInformer(ctx, in); err != nil {
		return Status{}, err
	}

	objects, err := i.removable(ctx, in)
	if err != nil {
		return Status{}, err
	}

	held, err = in.remove(ctx, objects)
	if err != nil {
		return Status{}, err
	}

	return awaitingEndOf(held), nil
}

// emptyConfiguration has the name of the webhook configuration only.
func (i *Installer) emptyConfiguration() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: content(&admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration",
		},
		ObjectMeta: metav1.ObjectMeta{Name: i.opts.ConfigurationName},
	})}
}

// removable returns all objects except the webhook configuration and those of the informer, in the
// order of their removal. The namespace is among them if Install has made it.
func (i *Installer) removable(ctx context.Context, in *cluster) ([]*unstructured.Unstructured, error) {
	objects := make([]*unstructured.Unstructured, 0, len(files())+2)

	for _, f := range slices.Backward(files()) {
		object := i.object(f.path)

		objects = append(objects, object)

		if object.GetKind() == kindDeployment {
			objects = append(objects, i.secret(&Runtime{}))
		}
	}

	namespace := i.namespace()

	live, err := in.get(ctx, namespace)
	if err == nil && live != nil && ours(live) {
		objects = append(objects, namespace)
	}

	return objects, err
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
