package installation

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// ErrInvalidRuntime means that the agent can not be installed with what was given of a runtime. Nothing was changed there.
var ErrInvalidRuntime = errors.New("agent can not be installed in runtime")

// Runtime is where the agent is installed, and with what.
type Runtime struct {
	// ID must be the Common Name of the certificate: an agent with that of another runtime would speak for it.
	ID core.RuntimeID
	// Client is for the runtime, with the rights of a cluster administrator, and without cache, as client.New makes it. Its scheme does not
	// matter. Nil means that the runtime is gone: then there is nothing to uninstall.
	Client client.Client
	// Secret has ca.crt, tls.crt and tls.key, as certificates.RuntimeStatus has them. The API server of the runtime trusts what ca.crt
	// signed, too.
	Secret map[string][]byte
	// Watches are what the API server asks the agent about.
	Watches []admission.Watch
}

// Installer installs the agent. Create it with [New]; its methods may be called concurrently, for one runtime one at a time.
type Installer struct {
	image        string
	controlPlane string
	port         int32
	opts         Options
}

// New returns an installer of an image of the agent, which is to send to the control plane at <host>:<port>. The error names all that
// is wrong.
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

// Install brings a runtime nearer to what is wanted, as far as it goes without waiting, and corrects what somebody changed there. It is
// to be called again while it is [Progressing], and from time to time after that.
//
// No write in the runtime waits for an agent that is not there: the webhook configuration comes last, when the agent answers. When
// there is one already, it learns of a new bundle first, before the agent shows a certificate that it would not trust. A new Secret
// restarts nothing.
//
// [Status.Former] may be there beside an error, all else is not. An error that wraps [ErrInvalidRuntime] or admission.ErrInvalidConfiguration needs another Runtime, all others another try.
func (i *Installer) Install(ctx context.Context, r Runtime) (Status, error) {
	if err := r.validate(); err != nil {
		return Status{}, err
	}

	configuration, err := i.configuration(&r)
	if err != nil {
		return Status{}, err
	}

	in := &cluster{Client: r.Client, id: r.ID, log: i.opts.Logger.With(slog.String("runtime", string(r.ID)))}

	former, err := i.renewConfiguration(ctx, in, configuration)
	if err != nil {
		return Status{}, err
	}

	status, err := i.installAgent(ctx, in, &r, configuration)
	status.Former = former

	return status, err
}

// installAgent makes the agent be there and answer, and then lets the API server call it.
func (i *Installer) installAgent(
	ctx context.Context, in *cluster, r *Runtime, configuration *admissionregistrationv1.ValidatingWebhookConfiguration,
) (Status, error) {
	usable, err := in.applyNamespace(ctx, i.namespace())
	if err != nil || !usable {
		return Status{State: Progressing, Awaiting: "the end of Namespace " + i.opts.Namespace, Replicas: i.opts.Replicas}, err
	}

	for _, object := range i.objects(r) {
		if err := in.apply(ctx, object); err != nil {
			return Status{}, err
		}
	}

	status, err := i.answers(ctx, in)
	if err != nil || status.State != Ready {
		return status, err
	}

	if err := in.apply(ctx, i.unstructured(configuration)); err != nil {
		return Status{}, err
	}

	return status, i.prune(ctx, in)
}

func (i *Installer) unstructured(configuration *admissionregistrationv1.ValidatingWebhookConfiguration) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: content(configuration)}
	i.opts.Adjust(object)

	return object
}

// prune removes what an earlier configuration needed.
func (i *Installer) prune(ctx context.Context, in *cluster) error {
	if i.opts.Canary {
		return nil
	}

	_, err := in.remove(ctx, i.canaryObjects())

	return err
}

// canaryObjects are in the order in which they are removed.
func (i *Installer) canaryObjects() (objects []*unstructured.Unstructured) {
	for _, f := range files() {
		if f.canary {
			objects = append([]*unstructured.Unstructured{i.object(f.path)}, objects...)
		}
	}

	return objects
}

// validate compares identities: a Secret that was mixed up would make one runtime speak for another.
func (r *Runtime) validate() error {
	if r.Client == nil {
		return fmt.Errorf("%w %q: want a client, have none", ErrInvalidRuntime, r.ID)
	}

	pair, err := tls.X509KeyPair(r.Secret[corev1.TLSCertKey], r.Secret[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("%w %q: its Secret: %w", ErrInvalidRuntime, r.ID, err)
	}

	if have := pair.Leaf.Subject.CommonName; have != string(r.ID) || r.ID == "" {
		return fmt.Errorf("%w %q: its Secret has the certificate of %.80q", ErrInvalidRuntime, r.ID, have)
	}

	return nil
}
