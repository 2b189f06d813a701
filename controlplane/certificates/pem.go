package certificates

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"slices"
	"time"
)

// parse returns the certificates of a PEM text and skips all else.
func parse(text []byte) []*x509.Certificate {
	var all []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, certificate)
		}
	}
	return all
}

// first returns the first certificate of a PEM text, nil if there is none.
func first(text []byte) *x509.Certificate {
	if all := parse(text); len(all) > 0 {
		return all[0]
	}
	return nil
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

// compose returns the bundle: the published CAs that are not expired, and then the new ones, each
// once. The order is stable, so that an unchanged bundle has the same bytes.
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

// signedBy reports whether ca has signed a certificate. It compares key identifiers, and verifies
// the signature only where one of them is missing.
func signedBy(certificate, ca *x509.Certificate) bool {
	if len(certificate.AuthorityKeyId) > 0 && len(ca.SubjectKeyId) > 0 {
		return bytes.Equal(certificate.AuthorityKeyId, ca.SubjectKeyId)
	}
	return certificate.CheckSignatureFrom(ca) == nil
}
