package installation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Installer installs the agent. Create it with [New]. Its methods may be called concurrently,
// except for one runtime.
type Installer struct {
	image        string
	controlPlane string
	port         int32
	opts         Options
}

// New returns an installer of an image of the agent. The agents send to the control plane at
// <host>:<port>. An error names every invalid parameter.
func New(image, controlPlane string, opts Options) (*Installer, error) {
	opts = opts.withDefaults()
	port, err := parsePort(controlPlane)
	if image == "" {
		err = errors.Join(errors.New("image of the agent: want one, have none"), err)
	}
	if err := errors.Join(err, opts.validate()); err != nil {
		return nil, fmt.Errorf("installation: %w", err)
	}
	return &Installer{image: image, controlPlane: controlPlane, port: port, opts: opts}, nil
}

// Install does the next steps of an installation, without waiting, and corrects changes by others.
// Call it again while the state is not [Ready], and from time to time after that.
//
// The webhook configuration comes last, when the agent answers. An existing configuration gets a
// new bundle before the agent gets a new certificate. A new Secret restarts nothing. With
// [SourceInformer], an existing configuration is removed first.
//
// Beside an error only [Status.Former] is set. An error that wraps [ErrInvalidRuntime] or
// admission.ErrInvalidConfiguration needs another Runtime. Retry all others.
func (i *Installer) Install(ctx context.Context, r Runtime) (Status, error) {
	if err := r.validate(i.host(), !i.watches()); err != nil {
		return Status{}, err
	}

	in := i.cluster(&r)

	namespace, err := in.get(ctx, i.namespace())
	if err != nil {
		return Status{}, err
	}

	ownNamespace := namespace == nil || ours(namespace)
	if i.watches() {
		return i.installInformer(ctx, in, &r, namespace, ownNamespace)
	}
	return i.installWebhook(ctx, in, &r, namespace, ownNamespace)
}

// installWebhook installs agents that the API server calls.
func (i *Installer) installWebhook(
	ctx context.Context, in *cluster, r *Runtime, namespace *unstructured.Unstructured, ownNamespace bool,
) (Status, error) {
	configuration, err := i.configuration(r, ownNamespace)
	if err != nil {
		return Status{}, err
	}

	former, stored, err := i.renewConfiguration(ctx, in, configuration)
	if err != nil {
		return Status{}, err
	}

	status, err := i.installAgent(ctx, in, r, namespace, ownNamespace)
	if err == nil && status.State == Ready {
		err = i.callAgent(ctx, in, configuration, stored)
	}
	return finished(status, former, err)
}

// finished returns only the former managers beside an error.
func finished(status Status, former []core.Manager, err error) (Status, error) {
	if err != nil {
		status = Status{}
	}
	status.Former = former
	return status, err
}

// callAgent makes the API server call the agent. Without a stored configuration, the agents may
// have had the rights of an informer before.
func (i *Installer) callAgent(
	ctx context.Context, in *cluster, configuration *admissionregistrationv1.ValidatingWebhookConfiguration, stored bool,
) error {
	if !stored {
		if err := i.removeInformer(ctx, in); err != nil {
			return err
		}
	}
	if err := in.apply(ctx, i.unstructured(configuration)); err != nil {
		return err
	}
	return i.prune(ctx, in)
}

// host is the name by which the API server of a runtime calls the agent.
func (i *Installer) host() string { return Name + "." + i.opts.Namespace + ".svc" }

func (i *Installer) cluster(r *Runtime) *cluster {
	return &cluster{Client: r.Client, id: r.ID, log: i.opts.Logger.With(slog.String("runtime", string(r.ID)))}
}

// installAgent applies the objects of the agent.
func (i *Installer) installAgent(
	ctx context.Context, in *cluster, r *Runtime, namespace *unstructured.Unstructured, ownNamespace bool,
) (Status, error) {
	usable, err := in.applyNamespace(ctx, i.namespace(), namespace)
	if err != nil || !usable {
		return progressing(reasonNamespaceEnding, "waiting for the end of Namespace "+i.opts.Namespace), err
	}

	for _, object := range i.objects(r, ownNamespace) {
		if err := in.apply(ctx, object); err != nil {
			return Status{}, err
		}
	}

	return i.observe(ctx, in)
}

func (i *Installer) unstructured(
	configuration *admissionregistrationv1.ValidatingWebhookConfiguration,
) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: content(configuration)}
	i.opts.Adjust(object)
	return object
}

// prune removes the objects of the canary after it was turned off.
func (i *Installer) prune(ctx context.Context, in *cluster) error {
	if !i.opts.NoCanary {
		return nil
	}
	_, err := in.remove(ctx, i.canaryObjects())
	return err
}

// canaryObjects are in the order of their removal.
func (i *Installer) canaryObjects() (objects []*unstructured.Unstructured) {
	for _, f := range files() {
		if f.canary {
			objects = append([]*unstructured.Unstructured{i.object(f.path)}, objects...)
		}
	}
	return objects
}
