package xfcc

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"net/url"
)

// Encode returns the header of a proxy with a client that has shown these certificates, its own
// first. [Parse] and [Element.Certificates] return them again.
func Encode(certs []*x509.Certificate) string {
	var text bytes.Buffer
	for _, cert := range certs {
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // A buffer never fails.
	}
	return `Chain="` + url.PathEscape(text.String()) + `"`
}
