package installation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Installer installs the agent. Create it with [New]. Its methods may be called concurrently,
// except for one runtime.
type Installer struct {
	image        string
	controlPlane string
	opts         Options
	manifests    map[string]*unstructured.Unstructured // by path, never changed
	looks        looks
}

// New returns an installer of an image of the agent. The agents send to the control plane at
// <host>:<port>, which may be empty if each [Runtime] has an address. An error names every invalid
// parameter.
func New(image, controlPlane string, opts Options) (*Installer, error) {
	opts = opts.withDefaults()
	var problems []error
	if image == "" {
		problems = append(problems, errors.New("image of the agent: want one, have none"))
	}
	if controlPlane != "" {
		_, err := parsePort(controlPlane)
		problems = append(problems, err)
	} else if opts.Owner == "" {
		problems = append(problems, errors.New("address of the control plane, or Owner: want one of them, have none"))
	}
	if err := errors.Join(append(problems, opts.validate())...); err != nil {
		return nil, fmt.Errorf("installation: %w", err)
	}
	return &Installer{image: image, controlPlane: controlPlane, opts: opts, manifests: opts.manifests()}, nil
}

// Install does the next steps of an installation, without waiting, and corrects changes by others.
// Call it again while the state is not [Ready], and from time to time after that.
//
// The webhook configuration comes last, when the agent answers. An existing configuration gets a
// new bundle before the agent gets a new certificate. A new Secret restarts nothing, and neither
// does a new manager.
//
// A call that has nothing new reads three objects: the webhook configuration, the Deployment and
// the endpoints of the Service. It corrects the first two at once, and all others after
// [Options.VerifyAfter].
//
// Beside an error only [Status.Former] is set. An error that wraps [ErrInvalidRuntime] or
// admission.ErrInvalidConfiguration needs another Runtime, and one that wraps [ErrOwned] the end of
// the other installation. Retry all others.
func (i *Installer) Install(ctx context.Context, r Runtime) (Status, error) {
	if err := errors.Join(r.validate(i.host()), i.validateAddress(&r)); err != nil {
		return Status{}, err
	}

	in := i.cluster(&r)

	status, unchanged, err := i.glance(ctx, in, &r)
	if unchanged || err != nil {
		return status, err
	}

	i.looks.forget(r.ID)

	return i.correct(ctx, in, &r)
}

// host is the name by which the API server of a runtime calls the agent.
func (i *Installer) host() string { return i.opts.Name + "." + i.opts.Namespace + ".svc" }

func (i *Installer) cluster(r *Runtime) *cluster {
	return &cluster{
		Client: r.Client, id: r.ID, fieldOwner: i.opts.FieldOwner,
		log: i.opts.Logger.With(slog.String("runtime", string(r.ID))),
	}
}

// existing are the objects that decide about the others, nil where there is none.
type existing struct {
	namespace, configuration, managers *unstructured.Unstructured
}

// read reads one object first, which opens the connection that all further requests share.
func (i *Installer) read(ctx context.Context, in *cluster) (existing, error) {
	var found existing
	if err := in.getInto(ctx, i.bareConfiguration(), &found.configuration)(); err != nil {
		return existing{}, err
	}
	err := together(
		in.getInto(ctx, i.namespace(), &found.namespace),
		in.getInto(ctx, i.managersMap(&Runtime{}, ""), &found.managers),
	)
	return found, err
}

// correct applies all objects, in an order in which no write of the runtime waits for an agent.
func (i *Installer) correct(ctx context.Context, in *cluster, r *Runtime) (Status, error) {
	found, err := i.read(ctx, in)
	if err != nil {
		return Status{}, err
	}

	if err := i.checkOwner(in, found.configuration, found.managers); err != nil {
		return Status{}, err
	}

	want, err := i.wanted(r, found.namespace == nil || ours(found.namespace), i.restart(r, found.managers))
	if err != nil {
		return Status{}, err
	}

	renewed, err := i.renewConfiguration(ctx, in, found.configuration, want.configuration)
	if err != nil {
		return Status{}, err
	}

	status, err := i.installAgent(ctx, in, found, want, renewed)
	status.Former = renewed.former

	return status, err
}

// installAgent applies the objects of the agent. The API server calls it from the moment that it
// answers.
func (i *Installer) installAgent(
	ctx context.Context, in *cluster, found existing, want *wanted, renewed renewal,
) (Status, error) {
	usable, err := in.ensureNamespace(ctx, i.namespace(), found.namespace)
	if err != nil || !usable {
		return progressing(reasonNamespaceEnding, "waiting for the end of Namespace "+i.opts.Namespace), err
	}

	if err := i.claim(ctx, in, want.managers, found.managers); err != nil {
		return Status{}, err
	}

	deployment, slices, err := i.applyObjects(ctx, in, found, &want.objects)
	if err != nil {
		return Status{}, err
	}

	status, err := i.judge(in, deployment, slices)
	if err != nil || status.State != Ready {
		return status, err
	}

	configuration := renewed.live
	if !renewed.complete {
		if configuration, err = in.apply(ctx, i.unstructured(want.configuration)); err != nil {
			return Status{}, err
		}
	}

	if err := i.prune(ctx, in); err != nil {
		return status, err
	}

	status, err = i.replace(ctx, in, status)
	if err != nil || status.State != Ready {
		return status, err
	}

	i.looks.keep(in.id, look{
		sum: want.sum, at: i.opts.Now(), ownNamespace: want.ownNamespace, restart: want.restart,
		configuration: markOf(configuration), deployment: markOf(deployment),
	})

	return status, nil
}

// applyObjects applies the early objects before the late ones in a first installation, as the pods
// cannot start without the Secret. Afterwards it applies all at the same time.
func (i *Installer) applyObjects(
	ctx context.Context, in *cluster, found existing, all *objects,
) (deployment *unstructured.Unstructured, slices *unstructured.UnstructuredList, err error) {
	early := func() error { return in.applyAll(ctx, all.early) }
	late := []func() error{
		func() error { return in.applyAll(ctx, all.late) },
		func() (err error) { deployment, err = in.apply(ctx, all.deployment); return err },
		func() (err error) { slices, err = i.slices(ctx, in); return err },
		func() error { return in.correctNamespace(ctx, i.namespace(), found.namespace) },
	}

	if found.configuration != nil {
		err = together(append(late, early)...)
		return deployment, slices, err
	}

	if err := early(); err != nil {
		return nil, nil, err
	}

	err = together(late...)

	return deployment, slices, err
}

func (i *Installer) unstructured(
	configuration *admissionregistrationv1.ValidatingWebhookConfiguration,
) *unstructured.Unstructured {
	return i.finished(&unstructured.Unstructured{Object: content(configuration)})
}

// prune removes the objects of the canary after it was turned off.
func (i *Installer) prune(ctx context.Context, in *cluster) error {
	if !i.opts.NoCanary {
		return nil
	}
	var tasks []func() error
	for _, object := range i.canaryObjects() {
		tasks = append(tasks, func() error {
			_, err := in.remove(ctx, []*unstructured.Unstructured{object})
			return err
		})
	}
	return together(tasks...)
}

func (i *Installer) canaryObjects() (objects []*unstructured.Unstructured) {
	for _, f := range files() {
		if f.canary {
			objects = append(objects, i.object(f.path))
		}
	}
	return objects
}
