package testpki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// Leaf is a certificate with its private key. It is safe for concurrent use.
type Leaf struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	chain       [][]byte
}

// Certificate returns the certificate itself, without its chain. Do not change it.
func (l *Leaf) Certificate() *x509.Certificate { return l.certificate }

// CertPEM returns the certificate and its intermediates, leaf first, as in a tls.crt file.
func (l *Leaf) CertPEM() []byte {
	var out bytes.Buffer
	for _, der := range l.ders() {
		out.Write(encode(pemCertificate, der))
	}
	return out.Bytes()
}

// KeyPEM returns the private key in PKCS #8 (RFC 5958), as in a tls.key file.
func (l *Leaf) KeyPEM() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(l.key)
	if err != nil {
		return nil, fmt.Errorf("private key of certificate %q: %w", l.certificate.Subject.CommonName, err)
	}
	return encode(pemPrivateKey, der), nil
}

// TLS returns the certificate for a [tls.Config].
func (l *Leaf) TLS() tls.Certificate {
	return tls.Certificate{Certificate: l.ders(), PrivateKey: l.key, Leaf: l.certificate}
}

// ders returns the DER bytes of the chain, leaf first.
func (l *Leaf) ders() [][]byte {
	return append([][]byte{l.certificate.Raw}, l.chain...)
}
