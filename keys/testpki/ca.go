// Package testpki makes throw-away certificates for tests and demonstrations: certificate
// authorities, leaves with any flaw, and files as a Kubernetes secret volume presents them.
//
// It imports only the standard library and works in FIPS mode (ECDSA P-256, SHA-256). It is not for
// production, because every caller can read the private keys.
package testpki

import (
	"cmp"
	"crypto"
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
	// NotAfter is the time at which the certificate expires. Default: 90 days from now.
	NotAfter time.Time
	// Usages are the extended key usages. Nil: the usages of the issuing function. Empty: none.
	Usages []x509.ExtKeyUsage
	// Edit changes the certificate last, before it is signed. Default: no change.
	Edit func(template *x509.Certificate)
}

// CA is a certificate authority. It is safe for concurrent use. Do not change it.
type CA struct {
	// Certificate is the certificate of the CA, and PEM its text, as in a ca.crt file.
	Certificate *x509.Certificate
	PEM         []byte

	self *Leaf
	// chain are the DER bytes of the intermediates up to, and without, the root.
	chain [][]byte
}

// NewCA returns a self-signed root. It uses only the validity of opts.
func NewCA(commonName string, opts Options) (*CA, error) {
	return (*CA)(nil).Intermediate(commonName, opts)
}

// Intermediate returns a CA signed by ca. Its leaves carry the chain up to, but not including, the
// root.
func (ca *CA) Intermediate(commonName string, opts Options) (*CA, error) {
	validity := Options{NotBefore: opts.NotBefore, NotAfter: opts.NotAfter}
	validity.Edit = func(template *x509.Certificate) {
		template.IsCA = true
		template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	}
	own, err := ca.issueLeaf(commonName, validity)
	if err != nil {
		return nil, err
	}

	issued := &CA{Certificate: own.TLS.Leaf, PEM: encode(pemCertificate, own.TLS.Leaf.Raw), self: own}
	if ca != nil {
		issued.chain = own.TLS.Certificate
	}

	return issued, nil
}

// Client returns a leaf for TLS client authentication. Its Common Name is the default identity of a
// runtime.
func (ca *CA) Client(commonName string, opts Options) (*Leaf, error) {
	return ca.issueLeaf(commonName, opts, x509.ExtKeyUsageClientAuth)
}

// Server returns a leaf for TLS server authentication, by default only for this machine.
func (ca *CA) Server(commonName string, opts Options) (*Leaf, error) {
	if len(opts.DNSNames)+len(opts.IPs)+len(opts.URIs) == 0 {
		opts.DNSNames = []string{"localhost"}
		opts.IPs = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	}
	return ca.issueLeaf(commonName, opts, x509.ExtKeyUsageServerAuth)
}

// SelfSigned returns a leaf without a CA, for both usages by default.
func SelfSigned(commonName string, opts Options) (*Leaf, error) {
	return (*CA)(nil).issueLeaf(commonName, opts, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth)
}

// issueLeaf returns a leaf, self-signed if ca is nil. usages are the default of Options.Usages.
func (ca *CA) issueLeaf(commonName string, opts Options, usages ...x509.ExtKeyUsage) (*Leaf, error) {
	now := time.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName},
		DNSNames:              opts.DNSNames,
		IPAddresses:           opts.IPs,
		NotBefore:             cmp.Or(opts.NotBefore, now.Add(-backdate)),
		NotAfter:              cmp.Or(opts.NotAfter, now.Add(lifetime)),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           usages,
		BasicConstraintsValid: true,
	}

	for _, raw := range opts.URIs {
		uri, err := url.Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("URI of certificate %q: %w", commonName, err)
		}

		template.URIs = append(template.URIs, uri)
	}

	if opts.Usages != nil {
		template.ExtKeyUsage = opts.Usages
	}
	if opts.Edit != nil {
		opts.Edit(template)
	}

	leaf, err := ca.signLeaf(template)
	if err != nil {
		return nil, fmt.Errorf("certificate %q: %w", commonName, err)
	}

	return leaf, nil
}

// signLeaf makes a key for template. The key of ca signs it, or without a CA the new key.
func (ca *CA) signLeaf(template *x509.Certificate) (*Leaf, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}

	issuer := template
	signer := crypto.PrivateKey(key)
	chain := [][]byte(nil)
	if ca != nil {
		issuer = ca.Certificate
		signer = ca.self.TLS.PrivateKey
		chain = ca.chain
	}

	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), signer)
	if err != nil {
		return nil, err
	}

	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}

	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}

	leaf := &Leaf{KeyPEM: encode(pemPrivateKey, private)}
	leaf.TLS = tls.Certificate{Certificate: append([][]byte{der}, chain...), PrivateKey: key, Leaf: certificate}
	for _, der := range leaf.TLS.Certificate {
		leaf.CertPEM = append(leaf.CertPEM, encode(pemCertificate, der)...)
	}

	return leaf, nil
}

// Pool returns a pool that trusts only this CA.
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

func encode(blockType string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: der})
}

// Leaf is a certificate with its private key. Do not change it.
type Leaf struct {
	// TLS is for a [tls.Config]. Its Leaf is the certificate itself, without its chain.
	TLS tls.Certificate
	// CertPEM contains the certificate and its intermediates, leaf first, as in a tls.crt file.
	CertPEM []byte
	// KeyPEM contains the private key in PKCS #8 (RFC 5958), as in a tls.key file.
	KeyPEM []byte
}
