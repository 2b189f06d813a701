package certificates

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Certificates are one CA and what it signs. Create it with [New]; its methods may be called concurrently, also by several
// replicas, though only one of them gains from it.
type Certificates struct {
	client    client.Client
	namespace string
	names     names
	dnsNames  []string
	confirmed Confirmations
	opts      Options
}

// New returns the certificates of that name and namespace in the control plane. The name begins those of all objects. The server
// certificate is for dnsNames: those by which agents reach the listener or gateway.
//
// The client should read from the API server, as client.New does, or its cache should hold only the Secrets of the namespace:
// a manager's cache holds those of the whole cluster. It needs the rights that docs/certificates.md lists.
//
// It creates nothing yet. An error names what is wrong with the parameters.
func New(
	c client.Client, name types.NamespacedName, dnsNames []string, confirmed Confirmations, opts Options,
) (*Certificates, error) {
	opts = opts.withDefaults()
	wrong := []error{names(name.Name).validate(), opts.validate()}

	want := func(what string, given bool) {
		if !given {
			wrong = append(wrong, fmt.Errorf("certificates: want %s, have none", what))
		}
	}

	want("a client", c != nil)
	want("a namespace", name.Namespace != "")
	want("DNS names of the server", len(dnsNames) > 0)
	want("Confirmations", confirmed != nil)

	for _, dnsName := range dnsNames {
		if err := checkDNSName(dnsName); err != nil {
			wrong = append(wrong, fmt.Errorf("certificates: DNS name of the server: %w", err))
		}
	}

	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}

	return &Certificates{
		client: c, namespace: name.Namespace, names: names(name.Name),
		dnsNames: slices.Clone(dnsNames), confirmed: confirmed, opts: opts,
	}, nil
}

// Status is how far the CA and the server certificate are.
type Status struct {
	// Phase is what is being done.
	Phase Phase
	// Ready means that the Secret of the listener has a bundle, a certificate and a key. It stays true while a CA rotates.
	Ready bool
	// Generation numbers the CA that is to sign everything, from 1; CAFingerprint is the SHA-256 of its DER bytes in lower case
	// hex, empty until it is issued.
	Generation    int
	CAFingerprint string
	// Waiting are the runtimes that hold up the rotation: their certificates are not issued yet, or they have not confirmed the CA.
	// After a switch that did not wait for them, they are those that are cut off.
	Waiting []core.RuntimeID
	// Message says all this in a sentence.
	Message string
	// RequeueAfter is when to call Reconcile again.
	RequeueAfter time.Duration
}

// ListenerSecret is the name of the Secret that a listener or gateway mounts: ca.crt is the bundle to verify clients with,
// tls.crt and tls.key are the server certificate. They always fit each other.
func (c *Certificates) ListenerSecret() types.NamespacedName { return c.key(c.names.listener()) }

// ClientsIssuer is the name of the Issuer that signs for runtimes, whose annotations steer and tell about a rotation.
func (c *Certificates) ClientsIssuer() types.NamespacedName { return c.key(c.names.clients()) }

func (c *Certificates) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: c.namespace, Name: name}
}

// maxSteps bounds what one call does. A rotation has fewer that do not wait.
const maxSteps = 8

// Reconcile brings the CA and the server certificate nearer to what is wanted, from the first Issuer to the last step of a
// rotation, as far as it goes without waiting. Call it again after [Status.RequeueAfter], and when a Secret or a
// Certificate changes. It may be interrupted anywhere.
func (c *Certificates) Reconcile(ctx context.Context) (Status, error) {
	for range maxSteps {
		status, again, err := c.reconcileOnce(ctx)
		if err != nil || !again {
			return status, err
		}
	}

	return Status{}, errors.New("certificates: no end of steps: does another field owner undo them?")
}

func (c *Certificates) reconcileOnce(ctx context.Context) (status Status, again bool, err error) {
	begun := time.Now()

	seen, err := c.observe(ctx)
	if err != nil {
		return Status{}, false, err
	}

	s := plan(seen.view, c.limits())
	status = c.status(seen.view, s)
	status.RequeueAfter = max(status.RequeueAfter, rest(time.Since(begun)))

	if err := c.maintain(ctx, seen, status); err != nil {
		return status, false, fmt.Errorf("certificates: %w", err)
	}

	if s.action == actionNone {
		c.tell(ctx, seen, status)

		return status, false, nil
	}

	c.opts.Logger.InfoContext(ctx, "step of the certificates", slog.String("phase", string(s.phase)), slog.String("action", s.action.String()),
		slog.Int("generation", status.Generation), slog.Int("waiting", len(s.waiting)))

	if err := c.act(ctx, seen, s); err != nil {
		return status, false, fmt.Errorf("certificates: %s: %w", s.action, err)
	}

	// Re-issuing takes its time, in any case.
	return status, s.action != actionReissue && s.action != actionReissueServer, nil
}

// rest is how long to leave an API server alone after a look at all runtimes, so that it takes at most a tenth of the time: a rotation may
// wait for weeks until the last one of thousands has confirmed.
func rest(look time.Duration) time.Duration {
	const looks = 9

	return min(looks*look, longestRequeue)
}

func (c *Certificates) limits() limits {
	return limits{
		rotateBefore: c.opts.RotateCABefore, switchBefore: c.opts.SwitchBefore,
		propagation: c.opts.Propagation, issuingAtOnce: c.opts.IssuingAtOnce,
	}
}

func (c *Certificates) status(v view, s step) Status {
	newest := v.newest()
	status := Status{
		Phase: s.phase, Ready: v.published.present, Generation: newest.generation, CAFingerprint: newest.fingerprint,
		Waiting: s.waiting, RequeueAfter: max(s.after, pollInterval/2),
	}
	status.Message = message(status)

	return status
}

// act does one step.
func (c *Certificates) act(ctx context.Context, seen *observed, s step) error {
	switch s.action {
	case actionCreate:
		return c.createAuthority(ctx, s.generation, s.request)
	case actionSignClients:
		return c.apply(ctx, c.issuer(c.names.clients(), s.generation))
	case actionSignServer:
		return c.apply(ctx, c.issuer(c.names.servers(), s.generation))
	case actionPublish:
		return c.publish(ctx, seen)
	case actionReissue:
		return c.reissueAll(ctx, s.reissue)
	case actionReissueServer:
		return c.reissue(ctx, c.names.server())
	case actionRetire:
		return c.retire(ctx, seen, s.generation)
	case actionNone:
	}

	return nil
}

func (a action) String() string {
	return [...]string{
		"none", "create a CA", "sign for runtimes", "sign for the server", "publish the bundle and the server certificate",
		"reissue for runtimes", "reissue for the server", "retire old CAs",
	}[a]
}

// maintain applies what is the same in every phase: so it is corrected when somebody edits it.
func (c *Certificates) maintain(ctx context.Context, seen *observed, status Status) error {
	if c.opts.CAIssuer.Name == "" {
		if err := c.apply(ctx, c.selfSigned()); err != nil {
			return err
		}
	}

	if err := c.sweep(ctx, seen); err != nil {
		return err
	}

	if seen.serverSigner == 0 || seen.clientSigner == 0 {
		return nil
	}

	clients := c.issuer(c.names.clients(), seen.clientSigner)
	clients.Annotations = map[string]string{AnnotationRotation: status.Message}

	for _, object := range []client.Object{clients, c.issuer(c.names.servers(), seen.serverSigner), c.serverCertificate()} {
		if err := c.apply(ctx, object); err != nil {
			return err
		}
	}

	return nil
}

// tell names those that a rotation waits for.
func (c *Certificates) tell(ctx context.Context, seen *observed, status Status) {
	if len(status.Waiting) == 0 {
		return
	}

	c.opts.Logger.WarnContext(ctx, "rotation of the CA waits for runtimes", slog.String("phase", string(status.Phase)),
		slog.Int("generation", status.Generation), slog.Any("runtimes", status.Waiting))

	if c.opts.Recorder != nil && seen.clientsIssuer != nil {
		c.opts.Recorder.Eventf(seen.clientsIssuer, nil, corev1.EventTypeWarning, "RotationWaits", string(status.Phase), "%s", status.Message)
	}
}
