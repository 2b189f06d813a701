package xfcc

import (
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"strings"
)

// Encode returns the header of a proxy with a client that has shown these certificates, its own
// first. [Parse] and [Element.Certificates] return them again. It leaves out the first certificate
// for which the header has no room, and all behind it. It fails with [ErrTooLarge] if there is no
// room for the client's own.
func Encode(certs []*x509.Certificate) (string, error) {
	const begin, end = `Chain="`, `"`
	room := MaxSize - len(begin) - len(end)
	var chain strings.Builder
	for _, cert := range certs[:min(len(certs), maxChain)] {
		text := escape(cert, room-chain.Len())
		if text == "" {
			break
		}
		chain.WriteString(text)
	}
	if chain.Len() == 0 {
		return "", ErrTooLarge
	}
	return begin + chain.String() + end, nil
}

// escape returns a certificate in percent-encoded PEM, or "" if that has more than most bytes.
func escape(cert *x509.Certificate, most int) string {
	if len(cert.Raw) > most {
		return ""
	}
	text := url.PathEscape(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})))
	if len(text) > most {
		return ""
	}
	return text
}
