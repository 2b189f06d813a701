package certificates

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// observed is the view, and what acting upon it needs.
type observed struct {
	view

	clientsIssuer *certv1.Issuer
	certificates  []certv1.Certificate
	secrets       map[string]*corev1.Secret // of cert-manager's, by name
	listener      *corev1.Secret            // nil while there is none
	issued        []*x509.Certificate       // of the authorities
	bundle        []*x509.Certificate       // as published
}

// observe reads the cluster, all of it anew: nothing is remembered.
func (c *Certificates) observe(ctx context.Context) (*observed, error) {
	o := &observed{view: view{now: c.opts.Now()}, secrets: make(map[string]*corev1.Secret)}

	// The listener's Secret first: what is made of the others later can only be younger.
	for _, read := range []func(context.Context, *observed) error{c.readListener, c.readIssuers, c.readSecrets, c.readCertificates} {
		if err := read(ctx, o); err != nil {
			return nil, fmt.Errorf("certificates: observe: %w", err)
		}
	}

	o.readAuthorities()
	o.readLeaves(c.names)
	o.published.current = o.fits(c.names)
	o.unconfirmed = c.unconfirmed(o)

	return o, nil
}

func (c *Certificates) readListener(ctx context.Context, o *observed) error {
	secret, err := get(ctx, c.client, c.ListenerSecret(), &corev1.Secret{})
	if err != nil || secret == nil {
		return err
	}

	o.listener = secret
	o.bundle = parse(secret.Data[cmmeta.TLSCAKey])
	since, _ := time.Parse(time.RFC3339Nano, secret.Annotations[annotationBundleSince]) // Without it, only just now.
	o.published = published{present: true, bundle: fingerprints(o.bundle), since: since}
	o.published.expired = slices.ContainsFunc(o.bundle, func(ca *x509.Certificate) bool { return o.now.After(ca.NotAfter) })

	if since.IsZero() {
		o.published.since, o.published.undated = o.now, true
	}

	return nil
}

func (c *Certificates) readIssuers(ctx context.Context, o *observed) error {
	clients, clientsErr := get(ctx, c.client, c.ClientsIssuer(), &certv1.Issuer{})
	servers, serversErr := get(ctx, c.client, c.key(c.names.servers()), &certv1.Issuer{})

	o.clientsIssuer = clients
	o.clientSigner, o.serverSigner = c.signer(clients), c.signer(servers)

	if clients != nil {
		o.request = clients.Annotations[AnnotationRotate]
		o.switchAnyway, _ = strconv.Atoi(clients.Annotations[AnnotationSwitchAnyway]) // Anything else names no CA.
	}

	return errors.Join(clientsErr, serversErr)
}

// signer returns the generation that an Issuer signs with, 0 when it is none of ours.
func (c *Certificates) signer(issuer *certv1.Issuer) int {
	if issuer == nil || issuer.Spec.CA == nil {
		return 0
	}

	text, ok := strings.CutPrefix(issuer.Spec.CA.SecretName, strings.TrimSuffix(c.names.authority(0), "0"))

	generation, err := strconv.Atoi(text)
	if !ok || err != nil {
		return 0
	}

	return generation
}

func (c *Certificates) readSecrets(ctx context.Context, o *observed) error {
	var list corev1.SecretList
	if err := c.client.List(ctx, &list, client.InNamespace(c.namespace), client.MatchingLabels{LabelSet: string(c.names)}); err != nil {
		return err //nolint:wrapcheck // observe does.
	}

	for i := range list.Items {
		o.secrets[list.Items[i].Name] = &list.Items[i]
	}

	return nil
}

func (c *Certificates) readCertificates(ctx context.Context, o *observed) error {
	var list certv1.CertificateList
	if err := c.client.List(ctx, &list, client.InNamespace(c.namespace), client.MatchingLabels{LabelSet: string(c.names)}); err != nil {
		return err //nolint:wrapcheck // observe does.
	}

	o.certificates = slices.DeleteFunc(list.Items, func(certificate certv1.Certificate) bool { return certificate.DeletionTimestamp != nil })

	return nil
}

// readAuthorities finds the CAs among the certificates.
func (o *observed) readAuthorities() {
	for i := range o.certificates {
		certificate := &o.certificates[i]

		generation, err := strconv.Atoi(certificate.Labels[labelGeneration])
		if certificate.Labels[LabelRole] != roleCA || err != nil || generation <= 0 {
			continue
		}

		a := authority{generation: generation, request: certificate.Annotations[annotationRequest]}
		if issued := o.issuedIn(certificate.Spec.SecretName); issued != nil && issued.IsCA {
			a.fingerprint, a.notAfter, a.life = fingerprint(issued), issued.NotAfter, issued.NotAfter.Sub(issued.NotBefore)
			o.issued = append(o.issued, issued)
		}

		o.authorities = append(o.authorities, a)
	}

	slices.SortFunc(o.authorities, func(a, b authority) int { return cmp.Compare(a.generation, b.generation) })
	slices.SortFunc(o.issued, func(a, b *x509.Certificate) int { return a.NotBefore.Compare(b.NotBefore) })
}

func (o *observed) issuedIn(secret string) *x509.Certificate {
	if s := o.secrets[secret]; s != nil {
		return first(s.Data[corev1.TLSCertKey])
	}

	return nil
}

func (o *observed) readLeaves(names names) {
	for i := range o.certificates {
		certificate := &o.certificates[i]

		switch certificate.Labels[LabelRole] {
		case roleRuntime:
			l := o.leaf(certificate)
			l.runtime = core.RuntimeID(certificate.Spec.CommonName)
			o.runtimes = append(o.runtimes, l)
		case roleServer:
			if certificate.Name == names.server() {
				o.server = o.leaf(certificate)
			}
		}
	}

	slices.SortFunc(o.runtimes, func(a, b leaf) int { return cmp.Compare(a.runtime, b.runtime) })
}

func (o *observed) leaf(certificate *certv1.Certificate) leaf {
	l := leaf{name: certificate.Name, issuing: isIssuing(certificate), created: certificate.CreationTimestamp.Time}

	if certificate.Status.LastFailureTime != nil {
		l.failed = certificate.Status.LastFailureTime.Time
	}

	issued := o.issuedIn(certificate.Spec.SecretName)
	if issued == nil {
		return l
	}

	l.present = true

	for _, ca := range o.issued {
		if signedBy(issued, ca) {
			l.signer = fingerprint(ca)
		}
	}

	return l
}

// fits reports whether the listener's Secret has the server's certificate as cert-manager has issued it.
func (o *observed) fits(names names) bool {
	issued := o.secrets[names.server()]

	return issued != nil && o.listener != nil &&
		slices.Equal(issued.Data[corev1.TLSCertKey], o.listener.Data[corev1.TLSCertKey]) &&
		slices.Equal(issued.Data[corev1.TLSPrivateKeyKey], o.listener.Data[corev1.TLSPrivateKeyKey])
}

// unconfirmed asks about the runtimes that may have got their first Secret before the youngest CA was in it.
func (c *Certificates) unconfirmed(o *observed) []core.RuntimeID {
	newest := o.newest()
	if newest.fingerprint == "" || len(o.authorities) == 1 && !o.serverLags() {
		return nil
	}

	var ask []core.RuntimeID

	for _, r := range o.runtimes {
		if !r.created.After(o.published.since.Add(c.opts.Propagation)) {
			ask = append(ask, r.runtime)
		}
	}

	return c.confirmed.Unconfirmed(newest.fingerprint, ask)
}

// get returns nil when there is no such object.
func get[O client.Object](ctx context.Context, reader client.Reader, key client.ObjectKey, into O) (O, error) {
	var none O

	err := reader.Get(ctx, key, into)
	if apierrors.IsNotFound(err) {
		return none, nil
	}

	if err != nil {
		return none, err //nolint:wrapcheck // The caller knows what it asked for.
	}

	return into, nil
}
