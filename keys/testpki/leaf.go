package testpki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// Leaf is a certificate with its private key. Do not change it.
type Leaf struct {
	// TLS is for a [tls.Config]. Its Leaf is the certificate itself, without its chain.
	TLS tls.Certificate
	// CertPEM has the certificate and its intermediates, leaf first, as in a tls.crt file.
	CertPEM []byte
	// KeyPEM has the private key in PKCS #8 (RFC 5958), as in a tls.key file.
	KeyPEM []byte
}

// newLeaf returns the leaf with the intermediates of chain.
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
