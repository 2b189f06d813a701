package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Runtime is who gets a certificate.
type Runtime struct {
	// ID becomes the Common Name: at most 64 bytes.
	ID core.RuntimeID
	// Domain is what is registered for the runtime, in its annotation skr-domain: a DNS name without wildcard.
	Domain string
	// Owner is the object that stands for the runtime: the certificate goes with it, if it is in the same namespace, or cluster-scoped. In
	// Kubernetes nothing else can own it: then, and if Owner is nil, the certificate stays until [Certificates.RemoveRuntime].
	Owner client.Object
}

// The reasons for which the certificate of a runtime is not ready.
const (
	// ReasonIssuing means that cert-manager has not issued it yet.
	ReasonIssuing = "Issuing"
	// ReasonFailed means that cert-manager could not issue it, and tries again.
	ReasonFailed = "Failed"
	// ReasonOutdated means that what was issued does not fit the runtime any more, as after a change of its domain.
	ReasonOutdated = "Outdated"
	// ReasonNoBundle means that there is no bundle yet that has its CA: Reconcile has not come so far.
	ReasonNoBundle = "NoBundle"
)

// RuntimeStatus is how far the certificate of a runtime is.
type RuntimeStatus struct {
	// Ready means that Secret has everything. Otherwise Reason and Message say what is missing.
	Ready           bool
	Reason, Message string
	// Secret is what belongs in the Secret of the runtime: ca.crt is the bundle, tls.crt and tls.key are the certificate of the agent. Nil
	// unless ready. While a CA rotates, the bundle has both: give it to the webhook configuration before
	// the agent gets the Secret, or the API server there does not trust the agent for a moment.
	Secret map[string][]byte
	// Fingerprint is the SHA-256 of the certificate's DER bytes, in lower case hex; NotAfter is when it expires.
	Fingerprint string
	NotAfter    time.Time
}

// EnsureRuntime makes sure that a runtime has a Certificate, and returns what has been issued of it. It does not wait: call it in
// each reconcile of the runtime, and again soon while it is not ready; usually that takes less than a second. While its certificate
// is renewed, it stays ready with the last one.
//
// An error that wraps [ErrInvalidRuntime] needs another ID or domain.
func (c *Certificates) EnsureRuntime(ctx context.Context, r Runtime) (RuntimeStatus, error) {
	certificate, err := c.wantedOf(r)
	if err != nil {
		return RuntimeStatus{}, err
	}

	key := client.ObjectKeyFromObject(certificate)

	existing, err := get(ctx, c.client, key, &certv1.Certificate{})
	if err != nil {
		return RuntimeStatus{}, fmt.Errorf("certificates: of runtime %q: %w", r.ID, err)
	}

	if existing != nil && !c.isOf(existing, r.ID) {
		return RuntimeStatus{}, fmt.Errorf("%w: Certificate %s is of %q", ErrInvalidRuntime, key, existing.Spec.CommonName)
	}

	if err := c.apply(ctx, certificate); err != nil {
		return RuntimeStatus{}, fmt.Errorf("certificates: of runtime %q: %w", r.ID, err)
	}

	secret, err := get(ctx, c.client, key, &corev1.Secret{})
	if err != nil {
		return RuntimeStatus{}, fmt.Errorf("certificates: Secret of runtime %q: %w", r.ID, err)
	}

	if secret == nil || existing == nil {
		return missing(existing), nil
	}

	if err := c.ownSecret(ctx, existing, secret); err != nil {
		return RuntimeStatus{}, fmt.Errorf("certificates: Secret of runtime %q: %w", r.ID, err)
	}

	return c.runtimeStatus(ctx, r, existing, secret)
}

// wantedOf returns the Certificate of a runtime.
func (c *Certificates) wantedOf(r Runtime) (*certv1.Certificate, error) {
	if err := checkID(r.ID); err != nil {
		return nil, err
	}

	if err := checkDNSName(r.Domain); err != nil {
		return nil, fmt.Errorf("%w: domain of runtime %q: %w", ErrInvalidRuntime, r.ID, err)
	}

	certificate := c.runtimeCertificate(r)
	if r.Owner == nil || r.Owner.GetNamespace() != "" && r.Owner.GetNamespace() != c.namespace {
		return certificate, nil
	}

	scheme := c.client.Scheme()
	if err := controllerutil.SetOwnerReference(r.Owner, certificate, schemeOf(r.Owner, scheme)); err != nil {
		return nil, fmt.Errorf("%w: owner of runtime %q: %w", ErrInvalidRuntime, r.ID, err)
	}

	return certificate, nil
}

// schemeOf lets an owner that says its kind itself, as metadata only does, do without a scheme that knows it.
func schemeOf(owner client.Object, scheme *runtime.Scheme) *runtime.Scheme {
	gvk := owner.GetObjectKind().GroupVersionKind()
	if _, _, err := scheme.ObjectKinds(owner); err == nil || gvk.Empty() {
		return scheme
	}

	own := runtime.NewScheme()
	own.AddKnownTypeWithName(gvk, owner)

	return own
}

func (c *Certificates) runtimeNames(r Runtime) []string {
	// As SAN pinning compares it: without the dot at its end, and in lower case.
	return append([]string{strings.ToLower(strings.TrimSuffix(r.Domain, "."))}, c.opts.serviceNames()...)
}

func missing(certificate *certv1.Certificate) RuntimeStatus {
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

// ownSecret makes the Secret go with its Certificate, which cert-manager does on request only: a key must not outlive what it is for.
func (c *Certificates) ownSecret(ctx context.Context, certificate *certv1.Certificate, secret *corev1.Secret) error {
	if slices.ContainsFunc(secret.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == certificate.UID }) {
		return nil
	}

	owned := &corev1.Secret{}
	// With its UID nothing is created when it is gone.
	owned.Namespace, owned.Name, owned.UID = secret.Namespace, secret.Name, secret.UID
	owned.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: certv1.SchemeGroupVersion.String(), Kind: certv1.CertificateKind, Name: certificate.Name, UID: certificate.UID,
	}}

	return c.apply(ctx, owned)
}

func (c *Certificates) runtimeStatus(
	ctx context.Context, r Runtime, certificate *certv1.Certificate, secret *corev1.Secret,
) (RuntimeStatus, error) {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return missing(certificate), nil //nolint:nilerr // cert-manager mends its Secret.
	}

	if problem := c.misfit(r, pair.Leaf); problem != "" {
		return RuntimeStatus{Reason: ReasonOutdated, Message: problem + ", and is being replaced"}, nil
	}

	listener, err := get(ctx, c.client, c.ListenerSecret(), &corev1.Secret{})
	if err != nil {
		return RuntimeStatus{}, fmt.Errorf("certificates: bundle for runtime %q: %w", r.ID, err)
	}

	if listener == nil || !trusted(pair.Leaf, parse(listener.Data[cmmeta.TLSCAKey])) {
		return RuntimeStatus{Reason: ReasonNoBundle, Message: "waiting for a bundle with the CA of the certificate"}, nil
	}

	return RuntimeStatus{
		Ready: true, Message: "issued", Fingerprint: fingerprint(pair.Leaf), NotAfter: pair.Leaf.NotAfter,
		Secret: map[string][]byte{
			cmmeta.TLSCAKey:         listener.Data[cmmeta.TLSCAKey],
			corev1.TLSCertKey:       secret.Data[corev1.TLSCertKey],
			corev1.TLSPrivateKeyKey: secret.Data[corev1.TLSPrivateKeyKey],
		},
	}, nil
}

// misfit tells what of an issued certificate is not as it is wanted now, empty if nothing.
func (c *Certificates) misfit(r Runtime, issued *x509.Certificate) string {
	wanted, have := c.runtimeNames(r), slices.Clone(issued.DNSNames)
	slices.Sort(wanted)
	slices.Sort(have)

	switch {
	case issued.Subject.CommonName != string(r.ID):
		return fmt.Sprintf("the certificate is for %q", issued.Subject.CommonName)
	case !slices.Equal(slices.Compact(wanted), slices.Compact(have)):
		return "the certificate is for " + strings.Join(have, ", ")
	case c.opts.Now().After(issued.NotAfter):
		return "the certificate is expired"
	default:
		return ""
	}
}

func trusted(certificate *x509.Certificate, bundle []*x509.Certificate) bool {
	return slices.ContainsFunc(bundle, func(ca *x509.Certificate) bool { return signedBy(certificate, ca) })
}

// RemoveRuntime deletes the certificate of a runtime and its key, as far as they are of this set. That there are none is no error, nor is an ID
// that could never have got any.
func (c *Certificates) RemoveRuntime(ctx context.Context, id core.RuntimeID) error {
	if checkID(id) != nil {
		return nil //nolint:nilerr // There is nothing to remove, which is all that matters.
	}

	if err := c.removeRuntime(ctx, id); err != nil {
		return fmt.Errorf("certificates: remove runtime %q: %w", id, err)
	}

	return nil
}

func (c *Certificates) removeRuntime(ctx context.Context, id core.RuntimeID) error {
	key := c.key(objectName(id))

	certificate, err := get(ctx, c.client, key, &certv1.Certificate{})
	if err != nil {
		return err
	}

	if certificate != nil {
		if !c.isOf(certificate, id) {
			return nil
		}

		// It goes first, or cert-manager would make a new Secret.
		if err := c.remove(ctx, certificate); err != nil {
			return err
		}
	}

	secret, err := get(ctx, c.client, key, &corev1.Secret{})
	if err != nil || secret == nil || secret.Labels[LabelSet] != string(c.names) {
		return err
	}

	return c.remove(ctx, secret)
}

// isOf reports whether a Certificate is the one that this set has made for a runtime: another set has the same name for it.
func (c *Certificates) isOf(certificate *certv1.Certificate, id core.RuntimeID) bool {
	return certificate.Spec.CommonName == string(id) && certificate.Labels[LabelSet] == string(c.names)
}

// remove deletes what was looked at, and nothing that came after it.
func (c *Certificates) remove(ctx context.Context, object client.Object) error {
	//nolint:wrapcheck // The caller knows what for, and the API server names the object.
	return client.IgnoreNotFound(c.client.Delete(ctx, object, client.Preconditions{UID: new(object.GetUID())}))
}
