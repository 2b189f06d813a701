package xfcc

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// maxChain bounds the certificates of a chain. Real ones have two or three.
const maxChain = 10

var (
	// ErrNoCertificate means that an element has neither Cert nor Chain.
	ErrNoCertificate = errors.New("no certificate")
	// ErrMalformedCertificate means that Cert or Chain are not certificates in percent-encoded PEM.
	ErrMalformedCertificate = errors.New("malformed certificate")
	// ErrHashMismatch means that Hash is not the SHA-256 of the certificate.
	ErrHashMismatch = errors.New("hash is not that of the certificate")
)

// Certificates returns the client certificate and the others of its chain. The client certificate
// is Cert, or the first of Chain if there is no Cert. A Hash is compared with the certificate.
// Certificates checks nothing else.
func (e *Element) Certificates() (leaf *x509.Certificate, chain []*x509.Certificate, err error) {
	if chain, err = decode("Chain", e.Chain, maxChain); err != nil {
		return nil, nil, err
	}
	certs, err := decode("Cert", e.Cert, 1)
	switch {
	case err != nil:
		return nil, nil, err
	case len(certs) > 0:
		leaf = certs[0]
	case len(chain) > 0:
		leaf, chain = chain[0], chain[1:]
	default:
		return nil, nil, ErrNoCertificate
	}
	return leaf, chain, e.checkHash(leaf)
}

func (e *Element) checkHash(leaf *x509.Certificate) error {
	if e.Hash == "" {
		return nil
	}
	want := sha256.Sum256(leaf.Raw)
	if have, err := hex.DecodeString(e.Hash); err != nil || subtle.ConstantTimeCompare(have, want[:]) == 0 {
		return ErrHashMismatch
	}
	return nil
}

// spaces undoes the escaping of a query in the lines around a certificate. A plus between them is a
// character of Base64.
var spaces = strings.NewReplacer(
	"-----BEGIN+CERTIFICATE-----", "-----BEGIN CERTIFICATE-----",
	"-----END+CERTIFICATE-----", "-----END CERTIFICATE-----",
)

// decode returns the certificates in escaped, at most limit. It returns none if escaped is empty.
func decode(key, escaped string, limit int) ([]*x509.Certificate, error) {
	// Not QueryUnescape: not every proxy escapes a plus of Base64.
	text, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is not percent-encoded", ErrMalformedCertificate, key)
	}
	var certs []*x509.Certificate
	for rest := []byte(strings.TrimSpace(spaces.Replace(text))); len(rest) > 0; {
		if len(certs) == limit {
			return nil, fmt.Errorf("%w: %s holds more than %d", ErrMalformedCertificate, key, limit)
		}
		var cert *x509.Certificate
		if cert, rest, err = next(rest); err != nil {
			return nil, fmt.Errorf("%w: %s holds %w", ErrMalformedCertificate, key, err)
		}
		certs = append(certs, cert)
	}
	return certs, nil
}

var errNoPEM = errors.New("no certificate in PEM")

// next reads one certificate. Unlike [pem.Decode], it does not search for one behind other text.
func next(text []byte) (*x509.Certificate, []byte, error) {
	if !bytes.HasPrefix(text, []byte("-----BEGIN CERTIFICATE-----")) {
		return nil, nil, errNoPEM
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
		return nil, nil, errNoPEM
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("no valid certificate: %w", err)
	}
	return cert, bytes.TrimSpace(rest), nil
}
