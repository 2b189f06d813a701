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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// observe reads all objects anew: nothing is remembered between two calls.
func (c *Certificates) observe(ctx context.Context) (*observed, error) {
	o := &observed{
		view: view{now: time.Now(), propagation: c.opts.Propagation}, names: c.names,
		certificates: make(map[string]*certv1.Certificate), secrets: make(map[string]*corev1.Secret),
		leaves: make(map[string]leaf), orphans: make(map[string]metav1.ObjectMeta), objects: make(map[int]client.Object),
	}

	// The Secret of the listener comes first, so that it is never younger than the others. Secrets
	// come before Certificates, so that a Secret without Certificate is an orphan.
	reads := []func(context.Context, *observed) error{
		c.readListener, c.readAdditional, c.readIssuers, c.readSecrets, c.readCertificates,
	}
	for _, read := range reads {
		if err := read(ctx, o); err != nil {
			return nil, fmt.Errorf("certificates: observe: %w", err)
		}
	}

	o.readAuthorities()
	o.wanted = c.wantedListener(o)
	o.published.current = o.isPublished()
	o.unconfirmed = c.askUnconfirmed(o)

	return o, nil
}

func (c *Certificates) readListener(ctx context.Context, o *observed) error {
	secret, err := serverside.Get(ctx, c.client, c.ListenerSecret(), &corev1.Secret{})
	if err != nil || secret == nil {
		c.bundle.Store("")
		return err
	}

	o.listener = secret
	c.bundle.Store(string(secret.Data[cmmeta.TLSCAKey]))

	o.bundle, err = c.parseBundle(ctx, secret)
	if err != nil {
		return err
	}

	since, _ := time.Parse(time.RFC3339Nano, c.names.annotation(secret, annotationBundleSince)) // Without it: now.
	o.published = published{present: true, since: since}
	for _, ca := range o.bundle {
		o.published.newest = max(o.published.newest, c.names.generationOf(ca.Subject.CommonName))
	}

	if since.IsZero() || since.After(o.now) { // A clock was ahead.
		o.published.since = o.now
	}

	return nil
}

// readAdditional reads the CAs of [Options.AdditionalCAs]. It runs after readListener, and removes
// the CAs from the bundle that were additional before, and are not any more.
func (c *Certificates) readAdditional(ctx context.Context, o *observed) error {
	for _, key := range c.opts.AdditionalCAs {
		secret := &corev1.Secret{}
		if err := c.client.Get(ctx, key, secret); err != nil && !serverside.IsAbsent(err) {
			return err
		}

		all, err := c.parseBundle(ctx, secret)
		if err != nil {
			return fmt.Errorf("additional CAs: %w", err)
		}

		cas := slices.DeleteFunc(all, func(ca *x509.Certificate) bool { return !ca.IsCA })
		if len(cas) == 0 { // It may be the wrong Secret.
			return fmt.Errorf("additional CAs: Secret %s has no CA in ca.crt", key)
		}

		o.additional = append(o.additional, cas...)
	}

	o.additional = compose(nil, o.additional, o.now)
	if o.listener != nil {
		former := strings.Split(c.names.annotation(o.listener, annotationAdditional), ",")
		o.bundle = slices.DeleteFunc(o.bundle, func(ca *x509.Certificate) bool {
			return slices.Contains(former, fingerprint(ca)) && !slices.ContainsFunc(o.additional, ca.Equal)
		})
	}

	return nil
}

func (c *Certificates) readIssuers(ctx context.Context, o *observed) error {
	clients, clientsErr := serverside.Get(ctx, c.client, c.keyOf(c.names.clients()), &certv1.Issuer{})
	servers, serversErr := serverside.Get(ctx, c.client, c.keyOf(c.names.servers()), &certv1.Issuer{})
	o.clientsIssuer = clients
	o.clientSigner = c.signerOf(clients)
	o.serverSigner = c.signerOf(servers)

	if clients != nil {
		o.request = c.names.annotation(clients, annotationRotate)
		o.switchAnyway, _ = strconv.Atoi(c.names.annotation(clients, annotationSwitchAnyway)) // Anything else names no CA.
	}

	return errors.Join(clientsErr, serversErr)
}

func (c *Certificates) signerOf(issuer *certv1.Issuer) int {
	if issuer == nil || issuer.Spec.CA == nil {
		return 0
	}
	return c.names.generationOf(issuer.Spec.CA.SecretName)
}

// readSecrets keeps the keys of the control plane alone.
func (c *Certificates) readSecrets(ctx context.Context, o *observed) error {
	return eachPage(ctx, c, func(page *corev1.SecretList) {
		for i := range page.Items {
			secret := &page.Items[i]
			if isCopied(secret) {
				continue
			}
			if issued := first(secret.Data[corev1.TLSCertKey]); issued != nil { // The plan needs no more of it.
				o.leaves[secret.Name] = leaf{
					present: true, notAfter: issued.NotAfter, issuer: string(issued.RawIssuer), signer: string(issued.AuthorityKeyId),
				}
			}

			role := c.names.label(secret, labelRole)
			if role != roleClient && role != roleWebhook {
				o.secrets[secret.Name] = secret.DeepCopy() // Else the whole page stays in memory.
			}
			if !c.names.standsAlone(secret) && c.names.isKey(secret) {
				o.orphans[secret.Name] = metav1.ObjectMeta{
					Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
				}
			}
		}
	})
}

// readCertificates comes after readSecrets, as a Certificate is older than its Secret.
func (c *Certificates) readCertificates(ctx context.Context, o *observed) error {
	err := eachPage(ctx, c, func(page *certv1.CertificateList) {
		for i := range page.Items {
			certificate := &page.Items[i]
			if certificate.DeletionTimestamp != nil {
				continue
			}

			delete(o.orphans, certificate.Spec.SecretName) // Also a Secret that a foreign Certificate uses.
			if !c.names.isOwnCertificate(certificate) {
				continue
			}

			role := c.names.label(certificate, labelRole)
			switch {
			case role == roleCA:
				o.certificates[certificate.Name] = certificate.DeepCopy()
			case role == roleClient, role == roleWebhook:
				o.runtimes = append(o.runtimes, o.leafOf(certificate))
			case certificate.Name == c.names.server():
				o.server = o.leafOf(certificate)
			}
		}
	})

	slices.SortFunc(o.runtimes, func(a, b leaf) int {
		return cmp.Or(cmp.Compare(a.runtime, b.runtime), cmp.Compare(a.name, b.name))
	})
	o.runtimes = slices.CompactFunc(o.runtimes, func(a, b leaf) bool { return a.name == b.name })
	return err
}

// askUnconfirmed asks for the runtimes that may have got their first Secret before the youngest CA
// was in it.
func (c *Certificates) askUnconfirmed(o *observed) []core.RuntimeID {
	newest := o.newest()
	if newest.fingerprint == "" {
		return nil
	}

	isOnly := len(o.authorities) == 1
	if isOnly && !o.serverLags() {
		return nil
	}

	var ask []core.RuntimeID
	for _, r := range o.runtimes {
		if !r.serving && !r.created.After(o.published.since.Add(c.opts.Propagation)) {
			ask = append(ask, r.runtime)
		}
	}

	return c.findUnconfirmed(newest.fingerprint, ask)
}

const pageSize = 500

// eachPage may visit an object again, in one piece, when the list cannot be continued.
func eachPage[L any, P interface {
	*L
	client.ObjectList
}](ctx context.Context, c *Certificates, visit func(P)) error {
	next := ""
	limit := int64(pageSize) // 0 means one piece.

	for {
		page := P(new(L))
		err := c.client.List(ctx, page, append(c.inSet(), client.Limit(limit), client.Continue(next))...)
		if err != nil && next == "" {
			return err
		}
		if err != nil {
			next = ""
			limit = 0
			continue
		}

		visit(page)

		next = page.GetContinue()
		if next == "" || limit == 0 {
			return nil
		}
	}
}
