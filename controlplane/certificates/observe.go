package certificates

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// observed is all that one call of Reconcile has read: the view for the plan, and the objects for
// the steps. One goroutine uses it, and throws it away afterwards.
type observed struct {
	view

	names objectNames

	clientsIssuer *certv1.Issuer
	certificates  map[string]*certv1.Certificate // of CAs, by name
	secrets       map[string]*corev1.Secret      // of CAs and the server, by name
	leaves        map[string]leaf                // in all Secrets, by their names.
	orphans       map[string]metav1.ObjectMeta   // Secrets of this set that have no Certificate, by name
	objects       map[int]client.Object          // of the authorities, by generation

	listener   *corev1.Secret      // nil while there is none
	wanted     *corev1.Secret      // of the listener, nil without a server certificate.
	issued     []*x509.Certificate // of the authorities
	bundle     []*x509.Certificate // as published, without former additional CAs
	additional []*x509.Certificate // of Options.AdditionalCAs
}

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
	o.unconfirmed = c.unconfirmed(o)

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

// checkListener refuses a Secret of another program, unless its CA is imported. Agents trust other
// CAs, and a new server certificate would cut them off. After the first rotation, such a Secret is
// no longer the one that the import took over, and its bundle may have a CA of a stranger.
func (c *Certificates) checkListener(seen *observed) error {
	if seen.listener == nil || c.names.has(seen.listener) {
		return nil
	}
	if c.opts.ImportCA.Name != "" && !seen.hasRotated() {
		return nil
	}
	return fmt.Errorf("certificates: existing Secret of the listener is not of this set: %s: "+
		"want Options.ImportCA with its CA, or another name", c.ListenerSecret())
}

// hasRotated reports whether there is a CA that this set has made, and not imported.
func (o *observed) hasRotated() bool {
	for _, object := range o.objects {
		if !o.names.imported(object) {
			return true
		}
	}
	return false
}

func (c *Certificates) readIssuers(ctx context.Context, o *observed) error {
	clients, clientsErr := serverside.Get(ctx, c.client, c.key(c.names.clients()), &certv1.Issuer{})
	servers, serversErr := serverside.Get(ctx, c.client, c.key(c.names.servers()), &certv1.Issuer{})
	o.clientsIssuer = clients
	o.clientSigner = c.signer(clients)
	o.serverSigner = c.signer(servers)

	if clients != nil {
		o.request = c.names.annotation(clients, annotationRotate)
		o.switchAnyway, _ = strconv.Atoi(c.names.annotation(clients, annotationSwitchAnyway)) // Anything else names no CA.
	}

	return errors.Join(clientsErr, serversErr)
}

func (c *Certificates) signer(issuer *certv1.Issuer) int {
	if issuer == nil || issuer.Spec.CA == nil {
		return 0
	}
	return c.names.generationOf(issuer.Spec.CA.SecretName)
}

func (c *Certificates) inSet() []client.ListOption {
	return []client.ListOption{client.InNamespace(c.namespace), client.MatchingLabels{c.names.key(labelSet): c.names.set}}
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

func (o *observed) readAuthorities() {
	for _, certificate := range o.certificates {
		o.readAuthority(certificate, o.issuedIn(certificate.Spec.SecretName))
	}

	for name, secret := range o.secrets {
		issued := o.issuedIn(name)
		isImported := o.names.standsAlone(secret) && o.names.isAuthority(secret)
		if isImported && issued != nil && issued.IsCA {
			o.readAuthority(secret, issued)
		}
	}

	slices.SortFunc(o.authorities, func(a, b authority) int { return cmp.Compare(a.generation, b.generation) })
	slices.SortFunc(o.issued, func(a, b *x509.Certificate) int { return a.NotBefore.Compare(b.NotBefore) })
}

func (o *observed) readAuthority(object client.Object, issued *x509.Certificate) {
	generation, _ := strconv.Atoi(o.names.label(object, labelGeneration))
	if generation <= 0 {
		return
	}

	a := authority{generation: generation, request: o.names.annotation(object, annotationRequest)}
	if issued != nil && issued.IsCA {
		a.fingerprint = fingerprint(issued)
		a.name = string(issued.RawSubject)
		a.key = string(issued.SubjectKeyId)
		a.notAfter = issued.NotAfter
		a.life = issued.NotAfter.Sub(issued.NotBefore)
		a.known = o.names.imported(object) && slices.ContainsFunc(o.bundle, issued.Equal)
		a.replaced = !o.names.imported(object) && o.replaces(issued, o.names.authority(generation))
		o.issued = append(o.issued, issued)
	}

	o.authorities = append(o.authorities, a)
	o.objects[generation] = object
}

// replaces reports whether the bundle has another key for a CA of that name: its Secret was lost,
// and cert-manager has made a new one.
func (o *observed) replaces(issued *x509.Certificate, name string) bool {
	return issued.Subject.CommonName == name && slices.ContainsFunc(o.bundle, func(ca *x509.Certificate) bool {
		return ca.Subject.CommonName == name && !bytes.Equal(ca.RawSubjectPublicKeyInfo, issued.RawSubjectPublicKeyInfo)
	})
}

func (o *observed) issuedIn(secret string) *x509.Certificate {
	if s := o.secrets[secret]; s != nil {
		return first(s.Data[corev1.TLSCertKey])
	}
	return nil
}

// leafOf returns no runtime for the server.
func (o *observed) leafOf(certificate *certv1.Certificate) leaf {
	l := o.leaves[certificate.Spec.SecretName]
	role := o.names.label(certificate, labelRole)
	l.name = certificate.Name
	l.serving = role == roleWebhook
	l.issuing = isIssuing(certificate)
	l.created = certificate.CreationTimestamp.Time

	if role != roleServer {
		l.runtime = o.names.runtimeOf(certificate)
	}
	if certificate.Status.LastFailureTime != nil {
		l.failed = certificate.Status.LastFailureTime.Time
	}

	return l
}

// serverSecret returns the Secret with the server certificate to publish, nil if there is none. A
// certificate of an unknown CA is never published: the runtimes would not trust it.
func (o *observed) serverSecret() *corev1.Secret {
	issued := o.secrets[o.names.server()]
	if leaf := o.issuedIn(o.names.server()); leaf != nil && (trusted(leaf, o.bundle) || trusted(leaf, o.issued)) {
		return issued
	}
	return o.listener
}

// unconfirmed asks for the runtimes that may have got their first Secret before the youngest CA was
// in it.
func (c *Certificates) unconfirmed(o *observed) []core.RuntimeID {
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

// parseBundle returns the certificates in ca.crt of a Secret, none if there is no text. A CA that
// vanished from the bundle in silence would cut off its agents, so that a block is read, or named
// in an error or in the log.
func (c *Certificates) parseBundle(ctx context.Context, secret *corev1.Secret) ([]*x509.Certificate, error) {
	text := secret.Data[cmmeta.TLSCAKey]
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}

	key := client.ObjectKeyFromObject(secret)
	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("%s of Secret %s: %w", cmmeta.TLSCAKey, key, err)
	}

	c.logSkipped(ctx, key, bundle.Skipped)
	return bundle.Certificates, nil
}

// logSkipped logs a list once, and again when it changes: the Secrets are read again and again.
func (c *Certificates) logSkipped(ctx context.Context, key client.ObjectKey, skipped []string) {
	text := strings.Join(skipped, "\n")
	former, _ := c.skipped.Swap(key, text)
	if text != "" && former != text {
		c.opts.Logger.WarnContext(ctx, "PEM blocks in ca.crt of a Secret are skipped",
			slog.String("secret", key.String()), slog.Any("skipped", skipped))
	}
}

// first returns the first certificate that can be read. cert-manager repairs the others.
func first(text []byte) *x509.Certificate {
	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return nil
	}
	return bundle.Certificates[0]
}

func fingerprint(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}

func fingerprints(certificates []*x509.Certificate) []string {
	all := make([]string, len(certificates))
	for i, certificate := range certificates {
		all[i] = fingerprint(certificate)
	}
	return all
}

// compose has a stable order, so that an unchanged bundle has the same bytes.
func compose(published, authorities []*x509.Certificate, now time.Time) []*x509.Certificate {
	var bundle []*x509.Certificate
	for _, certificate := range slices.Concat(published, authorities) {
		known := slices.ContainsFunc(bundle, certificate.Equal)
		if !known && !now.After(certificate.NotAfter) {
			bundle = append(bundle, certificate)
		}
	}
	return bundle
}

func encode(certificates []*x509.Certificate) []byte {
	var text bytes.Buffer
	for _, certificate := range certificates {
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}) // Writes to memory do not fail.
	}
	return text.Bytes()
}

// signedBy compares key identifiers (RFC 5280, section 4.2.1.1), and verifies the signature where
// one of them is missing.
func signedBy(certificate, ca *x509.Certificate) bool {
	if len(certificate.AuthorityKeyId) > 0 && len(ca.SubjectKeyId) > 0 {
		return bytes.Equal(certificate.AuthorityKeyId, ca.SubjectKeyId)
	}
	return certificate.CheckSignatureFrom(ca) == nil
}
