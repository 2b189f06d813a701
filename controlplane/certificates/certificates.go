package certificates

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
	"github.com/runtime-watcher/runtime-watcher/core"
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
	// skipped contains the text that was logged last for each Secret with blocks that are not used.
	// Its keys are the names of few Secrets: the listener's Secret and the Secrets in
	// [Options.AdditionalCAs].
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
	return c.keyOf(c.names.listener())
}

func (c *Certificates) keyOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: c.namespace, Name: name}
}

// CheckService fails if the certificates of webhooks are not valid for a Service with that name in
// the runtimes.
func (c *Certificates) CheckService(service types.NamespacedName) error {
	if host := service.Name + "." + service.Namespace + ".svc"; !slices.Contains(c.opts.serviceNames(), host) {
		return fmt.Errorf("certificates: options Service %q and RuntimeNamespace %q: want those of the agent, %s",
			c.opts.Service, c.opts.RuntimeNamespace, service)
	}
	return nil
}

func (c *Certificates) inSet() []client.ListOption {
	return []client.ListOption{client.InNamespace(c.namespace), client.MatchingLabels{c.names.key(labelSet): c.names.set}}
}

// BothUsagesIssuer is an optional method of the client of [New]. If IssuesBothUsages returns true,
// each issued certificate is valid for clients and for servers, and its usages are not compared.
// The client of package gardener has the method. A client that wraps that client must also have the
// method.
type BothUsagesIssuer interface {
	IssuesBothUsages() bool
}

func (c *Certificates) bothUsages() bool {
	issuer, ok := c.client.(BothUsagesIssuer)
	return ok && issuer.IssuesBothUsages()
}

const noticeReminder = time.Hour
