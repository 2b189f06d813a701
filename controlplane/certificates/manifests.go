package certificates

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	fieldOwner = "runtime-watcher-certificates"

	// Labels and annotations are words here, which [objectNames.key] completes.
	//
	// labelSet has the name of the [Certificates] of an object, labelRole one of the roles.
	labelSet  = "certificates"
	labelRole = "certificate-role"

	roleCA      = "ca"
	roleServer  = "server"
	roleClient  = "runtime"
	roleWebhook = "webhook"

	labelGeneration = "ca-generation"
)

// Annotations of the clients' Issuer, with which a user controls and observes a rotation.
const (
	// annotationRotate requests a new CA whenever its value changes.
	annotationRotate = "rotate-ca"
	// annotationSwitchAnyway is the generation of a CA to which the server certificate switches
	// without waiting for the confirmation of all runtimes. The others are cut off until they get
	// the new bundle.
	annotationSwitchAnyway = "switch-anyway"
	// annotationRotation reports the progress of a rotation, and the runtimes that it waits for.
	annotationRotation = "rotation"
)

const (
	annotationRequest = "requested-by"
	// annotationBundleSince is the time at which the bundle got its youngest CA.
	annotationBundleSince = "bundle-since"
	// annotationImported is <namespace>/<name> of the Secret that a CA was copied from.
	annotationImported = "imported-from"
	// annotationAdditional lists the fingerprints of [Options.AdditionalCAs] in the bundle.
	annotationAdditional = "additional-cas"
	annotationRuntime    = "runtime-id"
	// annotationOwner is <namespace>/<name> of the object of a runtime, annotationOwnerUID its UID.
	annotationOwner    = "certificate-owner"
	annotationOwnerUID = "certificate-owner-uid"
)

const (
	// maxName leaves room for the suffixes in labels and in Common Names.
	maxName = 40
	// maxCommonName is the upper bound of RFC 5280, appendix A.1 (ub-common-name).
	maxCommonName = 64
	// maxDNSName leaves out the dot at the end (RFC 1035, section 2.3.4).
	maxDNSName = 253
	hashDigits = 10

	clientSuffix  = "-watcher-tls"
	webhookSuffix = "-webhook-tls"
)

// objectNames makes the names of the objects of one set, and of their labels and annotations. All
// files of this package use them.
type objectNames struct {
	set    string
	stored names.Names
}

func (n objectNames) key(word string) string { return n.stored.Key(word) }

func (n objectNames) label(object metav1.Object, word string) string {
	return object.GetLabels()[n.key(word)]
}

func (n objectNames) annotation(object metav1.Object, word string) string {
	return object.GetAnnotations()[n.key(word)]
}

// has reports whether an object has the label of the set.
func (n objectNames) has(object metav1.Object) bool { return n.label(object, labelSet) == n.set }

func (n objectNames) selfSigned() string { return n.set + "-selfsigned" }
func (n objectNames) clients() string    { return n.set + "-clients" }
func (n objectNames) servers() string    { return n.set + "-servers" }
func (n objectNames) server() string     { return n.set + "-server" }
func (n objectNames) listener() string   { return n.set + "-listener" }

func (n objectNames) authority(generation int) string {
	return n.set + "-ca-" + strconv.Itoa(generation)
}

func (n objectNames) validate() error {
	if errs := validation.IsDNS1123Label(n.set); len(errs) > 0 || len(n.set) > maxName {
		return fmt.Errorf("certificates: name %.64q: want a DNS-1123 label of at most %d characters", n.set, maxName)
	}
	return nil
}

// generationOf returns 0 for a name that is not exactly that of a CA, such as one with "+1" or
// "01".
func (n objectNames) generationOf(name string) int {
	text, _ := strings.CutPrefix(name, strings.TrimSuffix(n.authority(0), "0"))
	generation, _ := strconv.Atoi(text) // 0 if it is no number.
	if generation <= 0 || name != n.authority(generation) {
		return 0
	}
	return generation
}

// objectName returns the name of a Certificate and its Secret. It is the ID if that can be a name.
// Otherwise it is the valid part of the ID, with a hash that keeps different IDs apart. No other
// object of this package ends with these suffixes.
func objectName(id core.RuntimeID, suffix string) string {
	readable := strings.Trim(strings.Map(nameRune, strings.ToLower(string(id))), "-")
	if readable == string(id) {
		return readable + suffix
	}

	sum := sha256.Sum256([]byte(id))
	return strings.TrimLeft(readable+"-", "-") + hex.EncodeToString(sum[:])[:hashDigits] + suffix
}

func nameRune(r rune) rune {
	isLetter := r >= 'a' && r <= 'z'
	isDigit := r >= '0' && r <= '9'
	if isLetter || isDigit {
		return r
	}
	return '-'
}

func checkID(id core.RuntimeID) error {
	if err := option.RuntimeName(string(id)); err != nil {
		return fmt.Errorf("%w: %w", errInvalidRuntime, err)
	}
	if len(id) > maxCommonName {
		return fmt.Errorf("%w: ID %.32q… has %d bytes, want at most %d: it is the Common Name (RFC 5280, ub-common-name)",
			errInvalidRuntime, string(id), len(id), maxCommonName)
	}
	return nil
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

func checkDNSName(name string) error {
	name = strings.TrimSuffix(name, ".")
	if _, err := netip.ParseAddr(name); err == nil || len(name) > maxDNSName ||
		len(validation.IsDNS1123Subdomain(strings.ToLower(name))) > 0 {
		return fmt.Errorf("want a DNS name, have %.300q", name)
	}
	return nil
}

// canonical is a DNS name as SAN pinning compares it: in lower case, without the dot at its end.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// canonicals keeps the order, because the first name is the Common Name.
func canonicals(dnsNames []string) []string {
	all := make([]string, len(dnsNames))
	for i, name := range dnsNames {
		all[i] = canonical(name)
	}
	return all
}

func (c *Certificates) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: c.namespace, Name: name, Labels: map[string]string{c.names.key(labelSet): c.names.set}}
}

func (c *Certificates) issuer(name string, config certv1.IssuerConfig) *certv1.Issuer {
	return &certv1.Issuer{
		TypeMeta:   metav1.TypeMeta{APIVersion: certv1.SchemeGroupVersion.String(), Kind: certv1.IssuerKind},
		ObjectMeta: c.meta(name), Spec: certv1.IssuerSpec{IssuerConfig: config},
	}
}

func (c *Certificates) signing(name string, generation int) *certv1.Issuer {
	return c.issuer(name, certv1.IssuerConfig{CA: &certv1.CAIssuer{SecretName: c.names.authority(generation)}})
}

// authority returns the Certificate of a CA. This package rotates it. cert-manager renews it only
// at the last moment, and then with the same key, so that its signatures stay valid.
func (c *Certificates) authority(generation int, request string) *certv1.Certificate {
	name := c.names.authority(generation)
	certificate := c.certificate(name, roleCA)
	certificate.Labels[c.names.key(labelGeneration)] = strconv.Itoa(generation)
	certificate.Annotations = map[string]string{c.names.key(annotationRequest): request}
	certificate.Spec.CommonName = name
	certificate.Spec.IsCA = true
	certificate.Spec.Duration = &metav1.Duration{Duration: c.opts.CADuration}
	certificate.Spec.RenewBefore = &metav1.Duration{Duration: shortestRenewal}
	certificate.Spec.PrivateKey.RotationPolicy = certv1.RotationPolicyNever
	certificate.Spec.Usages = []certv1.KeyUsage{certv1.UsageCertSign, certv1.UsageCRLSign, certv1.UsageDigitalSignature}
	certificate.Spec.IssuerRef = c.opts.CAIssuer

	if c.opts.CAIssuer.Name == "" {
		certificate.Spec.IssuerRef = issuerRef(c.names.selfSigned())
	}

	return certificate
}

func (c *Certificates) serverCertificate() *certv1.Certificate {
	certificate := c.certificate(c.names.server(), roleServer)
	if len(c.dnsNames[0]) <= maxCommonName {
		certificate.Spec.CommonName = c.dnsNames[0]
	}

	certificate.Spec.DNSNames = c.dnsNames
	certificate.Spec.Usages = []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageServerAuth}
	certificate.Spec.IssuerRef = issuerRef(c.names.servers())

	return certificate
}

// clientCertificate cannot be served, so that no runtime can act as the listener.
func (c *Certificates) clientCertificate(r Runtime) *certv1.Certificate {
	certificate := c.runtimeCertificate(r, objectName(r.ID, clientSuffix), roleClient)
	certificate.Spec.CommonName = string(r.ID)
	certificate.Spec.DNSNames = []string{canonical(r.Domain)}
	certificate.Spec.Usages = []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageClientAuth}

	return certificate
}

// webhookCertificate is the serving certificate of a webhook. It identifies no runtime, unless the
// issuer has certificates for both usages only. Such an issuer may share a key between certificates
// with equal names, so they differ in the Common Name.
func (c *Certificates) webhookCertificate(r Runtime) *certv1.Certificate {
	certificate := c.runtimeCertificate(r, objectName(r.ID, webhookSuffix), roleWebhook)
	if c.bothUsages() {
		certificate.Spec.CommonName = string(r.ID)
	}

	certificate.Spec.DNSNames = c.opts.serviceNames()
	certificate.Spec.Usages = []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageServerAuth}
	return certificate
}

func (c *Certificates) runtimeCertificate(r Runtime, name, role string) *certv1.Certificate {
	certificate := c.certificate(name, role)
	certificate.Spec.IssuerRef = issuerRef(c.names.clients())
	certificate.Annotations = map[string]string{c.names.key(annotationRuntime): string(r.ID)}

	if r.Owner != nil {
		certificate.Annotations[c.names.key(annotationOwner)] = ownerName(r.Owner)
		certificate.Annotations[c.names.key(annotationOwnerUID)] = string(r.Owner.GetUID())
	}

	return certificate
}

// certificate returns the common part of all Certificates. ECDSA P-256 is allowed by FIPS 186-5,
// and the cheapest in a handshake.
func (c *Certificates) certificate(name, role string) *certv1.Certificate {
	meta := c.meta(name)
	meta.Labels[c.names.key(labelRole)] = role
	return &certv1.Certificate{
		TypeMeta:   metav1.TypeMeta{APIVersion: certv1.SchemeGroupVersion.String(), Kind: certv1.CertificateKind},
		ObjectMeta: meta,
		Spec: certv1.CertificateSpec{
			SecretName: name, SecretTemplate: &certv1.CertificateSecretTemplate{Labels: meta.Labels},
			Duration:    &metav1.Duration{Duration: c.opts.Duration},
			RenewBefore: &metav1.Duration{Duration: c.opts.RenewBefore},
			PrivateKey: &certv1.CertificatePrivateKey{
				Algorithm: c.opts.KeyAlgorithm, Size: c.opts.KeySize, Encoding: certv1.PKCS8,
				RotationPolicy: certv1.RotationPolicyAlways,
			},
			RevisionHistoryLimit: new(int32(1)),
		},
	}
}

func issuerRef(name string) cmmeta.IssuerReference {
	return cmmeta.IssuerReference{Group: certv1.SchemeGroupVersion.Group, Kind: certv1.IssuerKind, Name: name}
}
