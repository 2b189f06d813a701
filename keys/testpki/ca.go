// Package testpki makes throw-away certificates for tests and demonstrations: certificate
// authorities, leaves with any flaw, and files as a Kubernetes secret volume presents them.
//
// It imports the standard library only and works in FIPS mode (ECDSA P-256, SHA-256). It is not for
// production: every caller can read the private keys.
package testpki

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"time"
)

const (
	// backdate makes a certificate valid on a machine with a clock that is a little slow.
	backdate = time.Hour
	// lifetime is the default of cert-manager. A certificate that lives a day counts as expiring.
	lifetime = 90 * 24 * time.Hour

	pemCertificate = "CERTIFICATE"
	pemPrivateKey  = "PRIVATE KEY"
)

// Options are the fields of a certificate beyond its Common Name. The zero value makes a valid
// certificate.
type Options struct {
	// DNSNames, IPs and URIs become Subject Alternative Names (RFC 5280, section 4.2.1.6). Default:
	// none, except for [CA.Server]: localhost, 127.0.0.1 and ::1.
	DNSNames []string
	IPs      []net.IP
	URIs     []string
	// NotBefore is the time from which the certificate is valid. Default: an hour ago.
	NotBefore time.Time
	// NotAfter is the time at which it expires. Default: 90 days from now.
	NotAfter time.Time
	// Usages are the extended key usages. Nil: those of the function that issues. Empty: none.
	Usages []x509.ExtKeyUsage
	// Edit changes the certificate last, before it is signed. Default: no change.
	Edit func(template *x509.Certificate)
}

// CA is a certificate authority. It is safe for concurrent use. Do not change it.
type CA struct {
	// Certificate is that of the CA, and PEM its text, as in a ca.crt file.
	Certificate *x509.Certificate
	PEM         []byte

	key *ecdsa.PrivateKey
	// chain are the DER bytes of the intermediates up to, and without, the root.
	chain [][]byte
}

// NewCA returns a self-signed root. It uses only the validity of opts.
func NewCA(commonName string, opts Options) (*CA, error) {
	return newCA(nil, commonName, opts)
}

// Intermediate returns a CA signed by ca. Its leaves carry the chain up to, and without, the root.
func (ca *CA) Intermediate(commonName string, opts Options) (*CA, error) {
	return newCA(ca, commonName, opts)
}

// newCA returns a CA that is signed by parent, or by itself without one.
func newCA(parent *CA, commonName string, opts Options) (*CA, error) {
	template, err := opts.template(commonName)
	if err != nil {
		return nil, err
	}

	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	template.DNSNames, template.IPAddresses, template.URIs = nil, nil, nil

	certificate, key, err := sign(parent, template)
	if err != nil {
		return nil, err
	}

	ca := &CA{Certificate: certificate, PEM: encode(pemCertificate, certificate.Raw), key: key}
	if parent != nil {
		ca.chain = append([][]byte{certificate.Raw}, parent.chain...)
	}
	return ca, nil
}

// Client returns a leaf for TLS client authentication. Its Common Name is the default identity of a
// runtime.
func (ca *CA) Client(commonName string, opts Options) (*Leaf, error) {
	return ca.issue(commonName, opts, x509.ExtKeyUsageClientAuth)
}

// Server returns a leaf for TLS server authentication, by default for this machine only.
func (ca *CA) Server(commonName string, opts Options) (*Leaf, error) {
	if len(opts.DNSNames)+len(opts.IPs)+len(opts.URIs) == 0 {
		opts.DNSNames = []string{"localhost"}
		opts.IPs = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	}
	return ca.issue(commonName, opts, x509.ExtKeyUsageServerAuth)
}

// SelfSigned returns a leaf without a CA, for both usages by default.
func SelfSigned(commonName string, opts Options) (*Leaf, error) {
	return (*CA)(nil).issue(commonName, opts, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth)
}

// issue returns a leaf, self-signed if ca is nil. usages are the default of Options.Usages.
func (ca *CA) issue(commonName string, opts Options, usages ...x509.ExtKeyUsage) (*Leaf, error) {
	template, err := opts.template(commonName)
	if err != nil {
		return nil, err
	}

	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = usages
	if opts.Usages != nil {
		template.ExtKeyUsage = opts.Usages
	}
	if opts.Edit != nil {
		opts.Edit(template)
	}

	certificate, key, err := sign(ca, template)
	if err != nil {
		return nil, err
	}

	if ca == nil {
		return newLeaf(certificate, key, nil)
	}
	return newLeaf(certificate, key, ca.chain)
}

// Pool returns a pool that trusts this CA only.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate)
	return pool
}

// Bundle returns the certificates of several CAs as one PEM file, for a rotation with overlap.
func Bundle(cas ...*CA) []byte {
	var all []byte
	for _, ca := range cas {
		all = append(all, ca.PEM...)
	}
	return all
}

func (o Options) template(commonName string) (*x509.Certificate, error) {
	uris := make([]*url.URL, 0, len(o.URIs))
	for _, raw := range o.URIs {
		uri, err := url.Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("URI of certificate %q: %w", commonName, err)
		}

		uris = append(uris, uri)
	}

	now := time.Now()
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName},
		DNSNames:              o.DNSNames,
		IPAddresses:           o.IPs,
		URIs:                  uris,
		NotBefore:             cmp.Or(o.NotBefore, now.Add(-backdate)),
		NotAfter:              cmp.Or(o.NotAfter, now.Add(lifetime)),
		BasicConstraintsValid: true,
	}, nil
}

// sign makes a key for template. The key of parent signs it, or without a parent the new key.
func sign(parent *CA, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("key for certificate %q: %w", template.Subject.CommonName, err)
	}

	issuer, issuerKey := template, key
	if parent != nil {
		issuer, issuerKey = parent.Certificate, parent.key
	}

	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), issuerKey)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate %q: %w", template.Subject.CommonName, err)
	}

	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("read back certificate %q: %w", template.Subject.CommonName, err)
	}
	return certificate, key, nil
}

func encode(blockType string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: der})
}

// Leaf is a certificate with its private key. Do not change it.
type Leaf struct {
	// TLS is for a [tls.Config]. Its Leaf is the certificate itself, without its chain.
	TLS tls.Certificate
	// CertPEM has the certificate and its intermediates, leaf first, as in a tls.crt file.
	CertPEM []byte
	// KeyPEM has the private key in PKCS #8 (RFC 5958), as in a tls.key file.
	KeyPEM []byte
}

func newLeaf(certificate *x509.Certificate, key *ecdsa.PrivateKey, chain [][]byte) (*Leaf, error) {
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("private key of certificate %q: %w", certificate.Subject.CommonName, err)
	}
	ders := append([][]byte{certificate.Raw}, chain...)
	var text bytes.Buffer
	for _, der := range ders {
		text.Write(encode(pemCertificate, der))
	}
	return &Leaf{
		TLS:     tls.Certificate{Certificate: ders, PrivateKey: key, Leaf: certificate},
		CertPEM: text.Bytes(), KeyPEM: encode(pemPrivateKey, private),
	}, nil
}
