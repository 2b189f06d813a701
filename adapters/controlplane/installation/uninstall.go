package installation

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Uninstall removes everything that Install has made, in reverse order: first of all the API server calls nobody any more, and only
// when that is sure the agent goes. It is to be called again until it has [Removed] everything. What is not there, or only half, is no
// error; neither is a runtime that is gone, which has no client. Of r only ID and Client matter.
//
// A runtime that can not be reached is an error, as nobody but the caller knows whether it will come back.
func (i *Installer) Uninstall(ctx context.Context, r Runtime) (Status, error) {
	if r.Client == nil {
		return Status{State: Removed}, nil
	}

	in := &cluster{Client: r.Client, id: r.ID, log: i.opts.Logger.With(slog.String("runtime", string(r.ID)))}

	configuration := &unstructured.Unstructured{Object: content(&admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration",
		},
		ObjectMeta: metav1.ObjectMeta{Name: i.opts.ConfigurationName},
	})}

	held, err := in.remove(ctx, []*unstructured.Unstructured{configuration})
	if err != nil || len(held) > 0 {
		return awaitingEndOf(held), err
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

// removable are all objects but the webhook configuration, in the order in which they are removed. The namespace is only one of them
// if Install made it.
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

	return Status{State: Progressing, Awaiting: "the end of " + strings.Join(names, ", ")}
}
