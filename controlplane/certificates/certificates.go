package certificates

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// Certificates are a CA and the certificates that it signs. Create it with [New]. Its methods may
// be called concurrently, even by several replicas.
type Certificates struct {
	client          client.Client
	namespace       string
	names           objectNames
	dnsNames        []string
	findUnconfirmed func(ca string, runtimes []core.RuntimeID) []core.RuntimeID
	opts            Options
	locks           keymutex.KeyMutex // of runtimes, as two objects may have the same ID
	notices         *pacedlog.Pace    // about a rotation that waits

	// certificates and secrets have the versions of the objects of runtimes while Follow runs. They
	// have no keys.
	certificates, secrets *follow.Objects
	bundle                atomic.Value // of the listener's Secret, a string
	// skipped has the text that was logged last for each Secret with blocks that are not used. Its
	// keys are the names of few Secrets: the listener's and those of [Options.AdditionalCAs].
	skipped sync.Map
}

// Parts are the required arguments of [New] in addition to the client.
type Parts struct {
	// Name is the namespace of all objects in the control plane and the beginning of their names.
	Name types.NamespacedName
	// DNSNames are the names by which agents reach the listener or gateway. The server certificate
	// is valid for these names.
	DNSNames []string
	// Unconfirmed returns the runtimes that have not confirmed that they trust the CA with the
	// given fingerprint (SHA-256 of its DER bytes in lower-case hex), as [FromFleet] does. If in
	// doubt, it must return a runtime, because a server certificate of a CA that the runtime does
	// not trust cuts the runtime off. It must return immediately and must not change its arguments.
	Unconfirmed func(ca string, runtimes []core.RuntimeID) []core.RuntimeID
}

// New returns the certificates for a name in the control plane. New creates no objects. An error
// names every invalid parameter.
//
// The client should read from the API server, as client.New does, or from a cache of the Secrets of
// the namespace. The cache of a manager holds the Secrets of all namespaces.
// docs/platforms/certificates.md lists the rights that the client needs.
func New(c client.Client, parts Parts, opts Options) (*Certificates, error) {
	opts = opts.withDefaults()
	names := objectNames{parts.Name.Name, opts.Names}
	if err := errors.Join(
		objectNames{set: parts.Name.Name}.validate(),
		opts.validate(parts.DNSNames),
		option.Unless(c != nil, "certificates: want a client, have none"),
		option.Unless(parts.Name.Namespace != "", "certificates: Parts.Name: want a namespace, have none"),
		option.Unless(len(parts.DNSNames) > 0, "certificates: Parts.DNSNames: want names of the server, have none"),
		option.Unless(parts.Unconfirmed != nil, "certificates: Parts.Unconfirmed: want a function for confirmations, have none"),
	); err != nil {
		return nil, err
	}

	return &Certificates{
		client: c, namespace: parts.Name.Namespace, names: names,
		dnsNames: canonicals(parts.DNSNames), findUnconfirmed: parts.Unconfirmed, opts: opts,
		locks: keymutex.NewHashed(concurrency), notices: pacedlog.NewPace(noticeReminder),
		certificates: follow.New(certv1.SchemeGroupVersion.WithKind(certv1.CertificateKind), names.certificateVersion),
		secrets:      follow.New(corev1.SchemeGroupVersion.WithKind("Secret"), follow.ResourceVersion),
	}, nil
}

// Status is the progress of the CA and the server certificate.
type Status struct {
	// Phase is the phase of the rotation: Bootstrap, Creating, Propagating, Reissuing, Confirming,
	// Switching, Retiring or Stable.
	Phase Phase
	// Confirming means that the rotation waits until all runtimes trust the new CA. A runtime
	// trusts it when its agent has the new bundle.
	Confirming bool
	// Ready means that the listener's Secret has a bundle, a certificate and a key. It stays true
	// while a CA rotates.
	Ready bool
	// Generation is the number of the youngest CA, from 1.
	Generation int
	// CAFingerprint is the SHA-256 of the DER bytes of that CA in lower-case hex. It is empty until
	// the CA is issued.
	CAFingerprint string
	// Waiting are the runtimes that delay the rotation: their certificates are not issued yet, or
	// they have not confirmed the CA. After a switch that did not wait for these runtimes, Waiting
	// contains the runtimes that are cut off.
	Waiting []core.RuntimeID
	// Overdue are the runtimes with a certificate that was not issued within 10 minutes or not
	// renewed within a tenth of RenewBefore.
	Overdue []core.RuntimeID
	// Message describes the status in a sentence.
	Message string
	// RequeueAfter is the time until the next call of Reconcile.
	RequeueAfter time.Duration
}

// ListenerSecret returns the name of the Secret for listeners and gateways. In that Secret, ca.crt
// is the bundle that verifies clients, and tls.crt and tls.key are the server certificate and its
// key. The three keys always match.
func (c *Certificates) ListenerSecret() types.NamespacedName {
	if c.opts.ListenerSecret.Name != "" {
		return c.opts.ListenerSecret
	}
	return c.key(c.names.listener())
}

func (c *Certificates) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: c.namespace, Name: name}
}

// maxSteps bounds the steps of one call. A rotation has fewer that do not wait.
const maxSteps = 8

// Reconcile does the next steps for the CA and the server certificate, from the first Issuer to the
// end of a rotation, without waiting. Call it again after [Status.RequeueAfter], and when a Secret
// or a Certificate changes. It may be interrupted at any point.
func (c *Certificates) Reconcile(ctx context.Context) (Status, error) {
	for range maxSteps {
		status, again, err := c.reconcileOnce(ctx)
		if err != nil || !again {
			return status, err
		}
	}
	return Status{}, fmt.Errorf("certificates: more than %d steps: does another field owner undo them?", maxSteps)
}

func (c *Certificates) reconcileOnce(ctx context.Context) (status Status, again bool, err error) {
	begun := time.Now()
	seen, err := c.observe(ctx)
	if err != nil {
		return Status{}, false, err
	}
	if err := c.checkListener(seen); err != nil {
		return Status{}, false, err
	}

	s := plan(seen.view)
	status = c.status(seen.view, s)
	// Reading all runtimes takes at most a tenth of the time: a rotation of thousands may wait for
	// weeks.
	const pauses = 9
	status.RequeueAfter = max(status.RequeueAfter, min(pauses*time.Since(begun), longestRequeue))
	if err := c.maintain(ctx, seen, status); err != nil {
		return status, false, fmt.Errorf("certificates: %w", err)
	}
	if s.action == actionNone {
		c.announce(ctx, seen, status)
		return status, false, nil
	}

	c.opts.Logger.InfoContext(ctx, "step of the certificates",
		slog.String("phase", string(s.phase)), slog.String("action", string(s.action)),
		slog.Int("generation", status.Generation), slog.Int("waiting", len(s.waiting)))
	if err := c.act(ctx, seen, s); err != nil {
		return status, false, fmt.Errorf("certificates: %s: %w", s.action, err)
	}

	// A new certificate is never issued immediately.
	return status, s.action != actionReissue && s.action != actionReissueServer, nil
}

func (c *Certificates) status(v view, s step) Status {
	newest := v.newest()
	status := Status{
		Phase: s.phase, Confirming: s.phase == PhaseConfirming, Ready: v.published.present,
		Generation: newest.generation, CAFingerprint: newest.fingerprint,
		Waiting: s.waiting, Overdue: overdue(v, c.opts.RenewBefore), RequeueAfter: max(s.after, pollInterval/2),
	}

	status.Message = message(status)
	return status
}

func (c *Certificates) act(ctx context.Context, seen *observed, s step) error {
	switch s.action {
	case actionDiscard, actionRetire:
		// The key of a CA with a Certificate goes in the next sweep: cert-manager would make a new
		// one.
		for _, generation := range s.remove {
			if err := ownership.DeleteUnchanged(ctx, c.client, seen.objects[generation]); err != nil {
				return err
			}
		}
	case actionCreate:
		if c.opts.ImportCA.Name != "" && seen.isNew() {
			return c.importAuthority(ctx, seen, s.generation)
		}
		return c.apply(ctx, c.authority(s.generation, seen.request))
	case actionSignClients:
		return c.apply(ctx, c.signing(c.names.clients(), s.generation))
	case actionSignServer:
		return c.apply(ctx, c.signing(c.names.servers(), s.generation))
	case actionPublish:
		return c.publish(ctx, seen)
	case actionReissue:
		var failed error
		for _, l := range s.reissue {
			failed = errors.Join(failed, c.reissue(ctx, l.name))
		}
		return failed
	case actionReissueServer:
		return c.reissue(ctx, c.names.server())
	case actionNone:
	}
	return nil
}

// publish writes the Secret of the listener. checkListener has decided which set owns the present
// Secret: an import takes it over.
func (c *Certificates) publish(ctx context.Context, seen *observed) error {
	if seen.wanted == nil {
		return nil
	}
	if seen.listener == nil {
		return c.applyOver(ctx, seen.wanted, nil)
	}
	return c.applyOver(ctx, seen.wanted, seen.listener)
}

func (c *Certificates) maintain(ctx context.Context, seen *observed, status Status) error {
	if c.opts.CAIssuer.Name == "" {
		selfSigned := c.issuer(c.names.selfSigned(), certv1.IssuerConfig{SelfSigned: &certv1.SelfSignedIssuer{}})
		if err := c.apply(ctx, selfSigned); err != nil {
			return err
		}
	}

	if err := c.sweep(ctx, seen); err != nil {
		return err
	}
	if seen.serverSigner == 0 || seen.clientSigner == 0 {
		return nil
	}

	clients := c.signing(c.names.clients(), seen.clientSigner)
	clients.Annotations = map[string]string{c.names.key(annotationRotation): status.Message}
	servers := c.signing(c.names.servers(), seen.serverSigner)
	for _, object := range []client.Object{clients, servers, c.serverCertificate()} {
		if err := c.apply(ctx, object); err != nil {
			return err
		}
	}

	return nil
}

const named = 10

func message(s Status) string {
	text := map[Phase]string{
		PhaseBootstrap:   "waiting for cert-manager to issue the first certificates",
		PhaseCreating:    "waiting for cert-manager to issue the next CA",
		PhasePropagating: "CA N is in the bundle, and signs once every listener has got it",

		PhaseReissuing:  "CA N signs for runtimes",
		PhaseConfirming: "the server certificate switches to CA N once every runtime trusts it",

		PhaseSwitching: "the server certificate switches to CA N",
		PhaseRetiring:  "the server certificate switches to CA N",
		PhaseStable:    "CA N signs everything",
	}[s.Phase]

	text = strings.ReplaceAll(text, "CA N", fmt.Sprintf("CA %d", s.Generation))
	if len(s.Waiting) > 0 {
		text += "; runtimes without it: " + list(s.Waiting)
	}
	return text
}

const issuance = 10 * time.Minute

func overdue(v view, renewBefore time.Duration) (runtimes []core.RuntimeID) {
	const part = 10
	renewal := renewBefore - renewBefore/part

	for _, r := range v.runtimes {
		late := v.now.Sub(r.created) > issuance
		if r.present {
			late = v.now.After(r.notAfter.Add(-renewal))
		}
		if late {
			runtimes = append(runtimes, r.runtime)
		}
	}

	return slices.Compact(runtimes)
}

func list(runtimes []core.RuntimeID) string {
	shown := runtimes
	if len(runtimes) > named {
		shown = append(slices.Clone(runtimes[:named]), "…")
	}
	return fmt.Sprintf("%d %v", len(runtimes), shown)
}

const noticeReminder = time.Hour

func (c *Certificates) announce(ctx context.Context, seen *observed, status Status) {
	if len(status.Waiting) == 0 {
		return
	}
	if _, due := c.notices.Take(status.Message, time.Now()); !due {
		return
	}

	c.opts.Logger.WarnContext(ctx, "rotation of the CA waits for runtimes",
		slog.String("phase", string(status.Phase)), slog.Int("generation", status.Generation),
		slog.Int("waiting", len(status.Waiting)), slog.String("runtimes", list(status.Waiting)))
	if c.opts.Recorder != nil && seen.clientsIssuer != nil {
		c.opts.Recorder.Eventf(seen.clientsIssuer, nil, corev1.EventTypeWarning,
			"RotationWaits", string(status.Phase), "%s", status.Message)
	}
}

// defaultWarmUp is longer than two default heartbeats of an agent.
const defaultWarmUp = 90 * time.Second

// FromFleet returns a function for [Parts].Unconfirmed that treats heartbeats as confirmations. A
// runtime has confirmed a CA when each replica of its agent that sends heartbeats trusts the CA. A
// runtime without heartbeats has not confirmed the CA. No rotation waits for a runtime with a
// revoked sender, because such a runtime gets the new key material and the bundle together.
//
// The heartbeats of a runtime count only after warmUp has passed since the first heartbeat, because
// the first heartbeats may come from only one replica of its agent. This time begins again when
// this process starts or becomes the leader. If warmUp is 0, it is 90 s.
func FromFleet(f *fleet.Fleet, warmUp time.Duration) func(ca string, runtimes []core.RuntimeID) []core.RuntimeID {
	warmUp = cmp.Or(warmUp, defaultWarmUp)
	return func(fingerprint string, runtimes []core.RuntimeID) []core.RuntimeID {
		steady := make(map[core.RuntimeID]bool)
		since := time.Now().Add(-warmUp)
		f.Range(func(s fleet.Status) bool {
			if len(s.Replicas) > 0 && !s.Since.After(since) {
				steady[s.Runtime] = true
			}
			return true
		})

		for _, id := range f.WithoutCA(fingerprint) {
			steady[id] = false
		}

		for _, id := range f.Revoked() {
			steady[id] = true
		}

		return slices.DeleteFunc(slices.Clone(runtimes), func(id core.RuntimeID) bool { return steady[id] })
	}
}

// Follow watches the metadata of the set's objects until ctx ends. For a changed Certificate or
// Secret of a runtime it calls changed with the Owner. When an annotation of the clients' Issuer
// requests a rotation or a switch, it calls changed with the zero name. The function changed must
// not block.
//
// While Follow runs, [Certificates.Version] returns the versions. If cert-manager is missing,
// Follow retries.
func (c *Certificates) Follow(
	ctx context.Context, watching client.WithWatch, changed func(owner types.NamespacedName),
) {
	ofCertificate := follow.Owned(changed)
	ofSecret := func(name, _ string) { ofCertificate(name, c.certificates.Version(name)) }
	ofIssuer := func(name, _ string) {
		if name == c.names.clients() {
			changed(types.NamespacedName{})
		}
	}

	issuers := follow.New(certv1.SchemeGroupVersion.WithKind(certv1.IssuerKind), c.names.requestVersion)
	var tasks sync.WaitGroup
	tasks.Go(func() { c.certificates.Run(ctx, watching, ofCertificate, c.inSet()...) })
	tasks.Go(func() { c.secrets.Run(ctx, watching, ofSecret, c.inSet()...) })
	tasks.Go(func() { issuers.Run(ctx, watching, ofIssuer, c.inSet()...) })
	tasks.Wait()
}

// certificateVersion begins with the owner. The status of a Certificate does not matter.
func (n objectNames) certificateVersion(meta *metav1.PartialObjectMetadata) string {
	return n.annotation(meta, annotationOwner) + " " + n.annotation(meta, annotationOwnerUID) + " " +
		string(meta.UID) + " " + strconv.FormatInt(meta.Generation, 10) + strconv.FormatBool(meta.DeletionTimestamp != nil)
}

func (n objectNames) requestVersion(meta *metav1.PartialObjectMetadata) string {
	return n.annotation(meta, annotationRotate) + "\n" + n.annotation(meta, annotationSwitchAnyway)
}

// Version returns a text that changes whenever r or an object that [Certificates.EnsureRuntime]
// reads for the runtime changes. The text is empty if such an object does not exist or is not
// known. Version reads nothing from the API server.
func (c *Certificates) Version(r Runtime) string {
	bundle, _ := c.bundle.Load().(string)
	if bundle == "" {
		return ""
	}

	parts := []string{bundle, string(r.ID), canonical(r.Domain)}
	if r.Owner != nil {
		parts = append(parts, ownerName(r.Owner), string(r.Owner.GetUID()))
	}

	for _, suffix := range []string{clientSuffix, webhookSuffix} {
		name := objectName(r.ID, suffix)
		certificate := c.certificates.Version(name)
		secret := c.secrets.Version(name)
		if certificate == "" || secret == "" {
			return ""
		}

		parts = append(parts, certificate, secret)
	}

	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return string(sum[:])
}
