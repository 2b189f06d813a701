package certificates

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// errInvalidRuntime means that the ID or the domain of a runtime is invalid.
var errInvalidRuntime error = &reasons.Error{
	Text: "runtime cannot have certificates", Label: "invalid_runtime", Permanent: true,
}

// errRuntimeTaken means that two objects have the same runtime ID.
var errRuntimeTaken error = &reasons.Error{
	Text: "certificates of the runtime belong to another object", Label: "runtime_taken",
}

// BothUsagesIssuer is an optional method of the client of [New]. If IssuesBothUsages returns true,
// each issued certificate is valid for clients and for servers, and its usages are not compared.
// The client of package gardener has the method. A client that wraps that client must also have the
// method.
type BothUsagesIssuer interface {
	IssuesBothUsages() bool
}

// Runtime is a runtime that gets certificates.
type Runtime struct {
	// ID becomes the Common Name of the client certificate: 1 to 64 bytes.
	ID core.RuntimeID
	// Domain is the registered domain of the runtime, in the annotation of [names.Names]: a DNS
	// name without a wildcard that is not a name of the listener.
	Domain string
	// Owner is the object that represents the runtime. No other object gets its certificates.
	// The certificates are deleted with the object if it is in the same namespace or
	// cluster-scoped. Otherwise, and without Owner, they stay until [Certificates.RemoveRuntime] is
	// called.
	Owner client.Object
}

// Reason says why the certificates of a runtime are not ready.
type Reason string

const (
	// ReasonIssuing means that cert-manager has not issued a certificate yet.
	ReasonIssuing Reason = "Issuing"
	// ReasonFailed means that cert-manager has refused a certificate. cert-manager retries it.
	ReasonFailed Reason = "Failed"
	// ReasonOutdated means that a certificate does not match the runtime, for example after a
	// change of its domain. The certificate is being replaced.
	ReasonOutdated Reason = "Outdated"
	// ReasonNoBundle means that the bundle does not contain the CA of the certificate yet.
	ReasonNoBundle Reason = "NoBundle"
)

// RuntimeStatus is the state of the certificates of a runtime.
type RuntimeStatus struct {
	// Ready means that Secret is complete. Otherwise Reason says why Secret is not complete, and
	// Message is a sentence.
	Ready   bool
	Reason  Reason
	Message string
	// Secret is the content of the agent's Secret, or nil unless Ready. It contains the bundle in
	// ca.crt, the client certificate in tls.crt and tls.key, and the serving certificate in
	// webhook.crt and webhook.key. The webhook configuration must get a new bundle before the agent
	// gets the Secret. Otherwise the API server temporarily does not trust the agent.
	Secret map[string][]byte
}

// EnsureRuntime applies the Certificates of a runtime and returns the material that has been
// issued. It does not wait: call it in each reconcile of the runtime, and again soon while the
// status is not ready. While a certificate is renewed, the status stays ready and contains
// the previous certificate.
//
// An error is permanent, with the reason invalid_runtime, if the runtime needs another ID or
// domain. It has the reason runtime_taken if another object has the same ID.
func (c *Certificates) EnsureRuntime(ctx context.Context, r Runtime) (RuntimeStatus, error) {
	if err := c.validateRuntime(r); err != nil {
		return RuntimeStatus{}, err
	}

	c.locks.LockKey(string(r.ID))
	defer c.unlock(r.ID)

	pairs := []*pair{{wanted: c.clientCertificate(r)}, {wanted: c.webhookCertificate(r)}}
	for _, p := range pairs { // All are checked before any is written.
		if err := c.readPair(ctx, p, r); err != nil {
			return RuntimeStatus{}, fmt.Errorf("certificates: runtime %q: %w", r.ID, err)
		}
	}

	for _, p := range pairs {
		if c.isApplied(p) {
			continue
		}
		if err := c.applyOver(ctx, p.wanted, p.live()); err != nil {
			return RuntimeStatus{}, fmt.Errorf("certificates: runtime %q: %w", r.ID, err)
		}
	}

	return c.runtimeStatus(ctx, r, pairs[0], pairs[1])
}

func (c *Certificates) unlock(id core.RuntimeID) { _ = c.locks.UnlockKey(string(id)) } // It never fails.

// pair is one Certificate of a runtime, with its Secret.
type pair struct {
	wanted   *certv1.Certificate
	existing *certv1.Certificate // nil if there is none
	secret   *corev1.Secret      // nil if there is none
}

// live returns the existing Certificate. It returns a nil interface if there is none, because a nil
// pointer in an interface would count as an object.
func (p *pair) live() client.Object {
	if p.existing == nil {
		return nil
	}
	return p.existing
}

// readPair reads the Certificate and the Secret of a pair. It fails if one of them belongs to
// another owner. EnsureRuntime calls it with the lock of the runtime.
func (c *Certificates) readPair(ctx context.Context, p *pair, r Runtime) (err error) {
	key := client.ObjectKeyFromObject(p.wanted)

	p.existing, err = serverside.Get(ctx, c.client, key, &certv1.Certificate{})
	if err != nil {
		return err
	}
	p.secret, err = serverside.Get(ctx, c.client, key, &corev1.Secret{})
	if err != nil {
		return err
	}

	if p.existing == nil && p.secret != nil { // cert-manager would write into it.
		if err := c.checkKey(p.secret, p.wanted); err != nil {
			return fmt.Errorf("%w: %w", errRuntimeTaken, err)
		}
	}

	taken := c.checkOwner(p.existing, r)
	invalid := c.setOwner(p.wanted, r)
	return errors.Join(taken, invalid)
}

func (c *Certificates) bothUsages() bool {
	issuer, ok := c.client.(BothUsagesIssuer)
	return ok && issuer.IssuesBothUsages()
}

func (c *Certificates) validateRuntime(r Runtime) error {
	if err := checkID(r.ID); err != nil {
		return err
	}
	if err := checkDNSName(r.Domain); err != nil {
		return fmt.Errorf("%w: domain of runtime %q (annotation %s): %w",
			errInvalidRuntime, r.ID, c.opts.Names.DomainAnnotation, err)
	}

	isServer := func(name string) bool { return canonical(name) == canonical(r.Domain) }
	if slices.ContainsFunc(c.dnsNames, isServer) {
		return fmt.Errorf("%w: domain of runtime %q: %s is a name of the listener", errInvalidRuntime, r.ID, r.Domain)
	}

	return nil
}

func (c *Certificates) runtimeStatus(
	ctx context.Context, r Runtime, forClient, forWebhook *pair,
) (RuntimeStatus, error) {
	listener, err := serverside.Get(ctx, c.client, c.ListenerSecret(), &corev1.Secret{})
	if err != nil {
		return RuntimeStatus{}, fmt.Errorf("certificates: bundle for runtime %q: %w", r.ID, err)
	}

	bundle, err := c.bundleOf(ctx, listener)
	if err != nil {
		return RuntimeStatus{}, fmt.Errorf("certificates: bundle for runtime %q: %w", r.ID, err)
	}

	for _, p := range []*pair{forClient, forWebhook} {
		if status, ready := c.pairStatus(p, bundle); !ready {
			return status, nil
		}
	}

	return RuntimeStatus{Ready: true, Message: "issued", Secret: map[string][]byte{
		material.CA:                 encode(bundle),
		material.ClientCertificate:  forClient.secret.Data[corev1.TLSCertKey],
		material.ClientKey:          forClient.secret.Data[corev1.TLSPrivateKeyKey],
		material.ServingCertificate: forWebhook.secret.Data[corev1.TLSCertKey],
		material.ServingKey:         forWebhook.secret.Data[corev1.TLSPrivateKeyKey],
	}}, nil
}

// bundleOf returns the bundle that agents may trust, none if this set has not published one.
// Another client may have made the Secret of the listener, with another CA.
func (c *Certificates) bundleOf(ctx context.Context, listener *corev1.Secret) ([]*x509.Certificate, error) {
	if listener == nil {
		return nil, nil
	}
	if !c.names.has(listener) && c.opts.ImportCA.Name != "" {
		return nil, nil // Reconcile takes the Secret over, or names it in its error.
	}
	if err := c.checkMark(listener, "Secret"); err != nil {
		return nil, err
	}
	return c.parseBundle(ctx, listener)
}

// OwnsRuntime reports whether the certificates of a runtime belong to r.Owner. It returns true if
// there are no certificates.
func (c *Certificates) OwnsRuntime(ctx context.Context, r Runtime) (bool, error) {
	if err := checkID(r.ID); err != nil {
		return true, nil //nolint:nilerr // No certificate can have such an ID.
	}

	// No lock: the answer is a hint, and RemoveRuntime decides again under the lock of the runtime.
	existing, err := serverside.Get(ctx, c.client, c.key(objectName(r.ID, clientSuffix)), &certv1.Certificate{})
	if err != nil {
		return false, fmt.Errorf("certificates: runtime %q: %w", r.ID, err)
	}
	if existing == nil {
		return true, nil
	}
	return c.names.isOf(existing, r.ID) && c.names.owns(existing, r.Owner), nil
}

// RemoveRuntime deletes the certificates of a runtime and their keys, unless they belong to
// another owner or another set. It is not an error if there are no certificates. The domain of r
// does not matter.
func (c *Certificates) RemoveRuntime(ctx context.Context, r Runtime) error {
	if checkID(r.ID) != nil {
		return nil // No certificate can have such an ID.
	}

	c.locks.LockKey(string(r.ID))
	defer c.unlock(r.ID)

	for _, suffix := range []string{webhookSuffix, clientSuffix} {
		key := c.key(objectName(r.ID, suffix))
		// cert-manager writes the status of a Certificate. Each attempt decides anew.
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { return c.removePair(ctx, r, key) })
		if err != nil {
			return fmt.Errorf("certificates: remove runtime %q: %w", r.ID, err)
		}
	}

	return nil
}

func (c *Certificates) removePair(ctx context.Context, r Runtime, key client.ObjectKey) error {
	certificate, err := serverside.Get(ctx, c.client, key, &certv1.Certificate{})
	if err != nil {
		return err
	}
	if certificate != nil {
		if !c.names.isOf(certificate, r.ID) || !c.names.owns(certificate, r.Owner) {
			return nil
		}
		// cert-manager would make a new Secret while the Certificate exists.
		if err := ownership.DeleteUnchanged(ctx, c.client, certificate); err != nil {
			return err
		}
	}

	secret, err := serverside.Get(ctx, c.client, key, &corev1.Secret{})
	if err != nil || secret == nil || !c.names.has(secret) || isCopied(secret) {
		return err
	}

	return ownership.DeleteUnchanged(ctx, c.client, secret)
}

func (c *Certificates) checkOwner(existing *certv1.Certificate, r Runtime) error {
	if existing == nil {
		return nil
	}
	if !c.names.isOf(existing, r.ID) {
		return fmt.Errorf("%w: Certificate %s/%s belongs to runtime %q of set %q: delete it if that set no longer exists",
			errRuntimeTaken, existing.Namespace, existing.Name, c.names.runtimeOf(existing), c.names.label(existing, labelSet))
	}

	if c.names.owns(existing, r.Owner) {
		return nil
	}

	// An object with the recorded name but another UID replaces the recorded owner, which has been
	// deleted.
	recorded := c.names.annotation(existing, annotationOwner)
	if r.Owner != nil && recorded == ownerName(r.Owner) {
		return nil
	}
	return fmt.Errorf("%w: Certificate %s/%s belongs to %s with the UID %s: "+
		"give this object another ID, or delete that Certificate if its object is gone",
		errRuntimeTaken, existing.Namespace, existing.Name,
		recorded, c.names.annotation(existing, annotationOwnerUID))
}

// owns is true for a Certificate without owner, which belongs to every owner.
func (n objectNames) owns(certificate *certv1.Certificate, owner client.Object) bool {
	uid := n.annotation(certificate, annotationOwnerUID)
	if uid == "" {
		return true
	}
	return owner != nil && uid == string(owner.GetUID())
}

func ownerName(owner client.Object) string { return owner.GetNamespace() + "/" + owner.GetName() }

// isOf is false for a Certificate of another set, which uses the same names.
func (n objectNames) isOf(certificate *certv1.Certificate, id core.RuntimeID) bool {
	return n.runtimeOf(certificate) == id && n.has(certificate)
}

func (n objectNames) runtimeOf(certificate *certv1.Certificate) core.RuntimeID {
	if id, ok := certificate.Annotations[n.key(annotationRuntime)]; ok {
		return core.RuntimeID(id)
	}
	return core.RuntimeID(certificate.Spec.CommonName)
}

// setOwner adds an owner reference where Kubernetes allows one.
func (c *Certificates) setOwner(certificate *certv1.Certificate, r Runtime) error {
	if r.Owner == nil {
		return nil
	}

	isClusterWide := r.Owner.GetNamespace() == ""
	if !isClusterWide && r.Owner.GetNamespace() != c.namespace {
		return nil
	}
	if err := controllerutil.SetOwnerReference(r.Owner, certificate, c.client.Scheme()); err != nil {
		return fmt.Errorf("%w: owner: %w", errInvalidRuntime, err)
	}
	return nil
}

func (c *Certificates) isApplied(p *pair) bool {
	if p.existing == nil {
		return false
	}

	// A list with more elements would pass below.
	if !slices.Equal(p.wanted.Spec.DNSNames, p.existing.Spec.DNSNames) {
		return false
	}
	if !c.bothUsages() && !slices.Equal(p.wanted.Spec.Usages, p.existing.Spec.Usages) {
		return false
	}

	wanted := p.wanted.Spec
	derives := equality.Semantic.DeepDerivative
	if c.bothUsages() { // Such an issuer has no other fields.
		key := wanted.PrivateKey
		wanted = certv1.CertificateSpec{
			CommonName: wanted.CommonName, DNSNames: wanted.DNSNames, SecretName: wanted.SecretName,
			SecretTemplate: wanted.SecretTemplate, IssuerRef: cmmeta.IssuerReference{Name: wanted.IssuerRef.Name},
			PrivateKey: &certv1.CertificatePrivateKey{Algorithm: key.Algorithm, Size: key.Size},
		}
	}

	return derives(wanted, p.existing.Spec) && derives(p.wanted.Labels, p.existing.Labels) &&
		derives(p.wanted.Annotations, p.existing.Annotations) &&
		derives(p.wanted.OwnerReferences, p.existing.OwnerReferences)
}

func (c *Certificates) pairStatus(p *pair, bundle []*x509.Certificate) (status RuntimeStatus, ready bool) {
	if p.secret == nil {
		return missingStatus(p.existing), false
	}

	loaded, err := keys.ParsePair(p.secret.Data[corev1.TLSCertKey], p.secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil { // cert-manager repairs its Secret.
		return missingStatus(p.existing), false
	}
	if problem := c.misfitOf(p.wanted, loaded.Leaf); problem != "" {
		return RuntimeStatus{Reason: ReasonOutdated, Message: problem + ", and is being replaced"}, false
	}
	if !trusted(loaded.Leaf, bundle) {
		return RuntimeStatus{Reason: ReasonNoBundle, Message: "waiting for a bundle with the CA of the certificate"}, false
	}

	return RuntimeStatus{}, true
}

func missingStatus(certificate *certv1.Certificate) RuntimeStatus {
	status := RuntimeStatus{Reason: ReasonIssuing, Message: "waiting for cert-manager to issue the certificate"}
	if certificate == nil || certificate.Status.LastFailureTime == nil {
		return status
	}

	status.Reason = ReasonFailed
	for _, condition := range certificate.Status.Conditions {
		if condition.Type == certv1.CertificateConditionIssuing && condition.Message != "" {
			status.Message = condition.Message
		}
	}

	return status
}

func (c *Certificates) misfitOf(wanted *certv1.Certificate, issued *x509.Certificate) string {
	usage := x509.ExtKeyUsageServerAuth
	if slices.Contains(wanted.Spec.Usages, certv1.UsageClientAuth) {
		usage = x509.ExtKeyUsageClientAuth
	}

	switch {
	case issued.Subject.CommonName != wanted.Spec.CommonName:
		return fmt.Sprintf("the certificate is for %q", issued.Subject.CommonName)
	case !sets.New(wanted.Spec.DNSNames...).Equal(sets.New(issued.DNSNames...)):
		return "the certificate is for " + strings.Join(issued.DNSNames, ", ")
	case !c.bothUsages() && !slices.Equal(issued.ExtKeyUsage, []x509.ExtKeyUsage{usage}):
		return "the certificate has other extended key usages"
	case time.Now().After(issued.NotAfter):
		return "the certificate is expired"
	default:
		return ""
	}
}

func trusted(certificate *x509.Certificate, bundle []*x509.Certificate) bool {
	return slices.ContainsFunc(bundle, func(ca *x509.Certificate) bool { return signedBy(certificate, ca) })
}
