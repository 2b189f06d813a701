package xfcc_test

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener/internal/xfcc"
)

func TestCertificates(t *testing.T) {
	t.Parallel()
	a, b := newCertificate(t, "a"), newCertificate(t, "b")
	upper := strings.ToUpper(hash(a))
	tests := []struct {
		name    string
		element xfcc.Element
		chain   int
	}{
		{"Cert alone", xfcc.Element{Cert: escape(a)}, 0},
		{"Cert and Chain", xfcc.Element{Cert: escape(a), Chain: escape(a, b)}, 2},
		{"Chain alone", xfcc.Element{Chain: escape(a, b)}, 1},
		{"Hash", xfcc.Element{Hash: hash(a), Cert: escape(a)}, 0},
		{"Hash in upper case", xfcc.Element{Hash: upper, Cert: escape(a)}, 0},
		{"plus signs that are not escaped", xfcc.Element{Cert: strings.ReplaceAll(escape(a), "%2B", "+")}, 0},
		{"a query", xfcc.Element{Cert: url.QueryEscape(text(a)), Chain: url.QueryEscape(text(a, b))}, 2},
		{"a plus for a space, and nothing else escaped", xfcc.Element{Cert: plusForSpace(a)}, 0},
		{"every byte escaped", xfcc.Element{Cert: escapeAll(a)}, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			leaf, chain, err := test.element.Certificates()
			if err != nil {
				t.Fatal(err)
			}
			if !leaf.Equal(a) || len(chain) != test.chain {
				t.Errorf("certificate of %s with %d others, want that of a with %d", leaf.Subject, len(chain), test.chain)
			}
		})
	}
}

func TestCertificatesRefuses(t *testing.T) {
	t.Parallel()
	a, b := newCertificate(t, "a"), newCertificate(t, "b")
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: a.Raw}))
	broken := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Raw[:len(a.Raw)/2]}))
	headers := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"a": "b"}, Bytes: a.Raw}))
	tests := []struct {
		name    string
		element xfcc.Element
		want    error
	}{
		{"nothing", xfcc.Element{}, xfcc.ErrNoCertificate},
		{"a hash alone", xfcc.Element{Hash: hash(a)}, xfcc.ErrNoCertificate},
		{"space alone", xfcc.Element{Cert: "%20%0A"}, xfcc.ErrNoCertificate},
		{"a broken escape", xfcc.Element{Cert: escape(a) + "%4"}, xfcc.ErrMalformedCertificate},
		{"an escape that is not hex", xfcc.Element{Cert: "%zz" + escape(a)}, xfcc.ErrMalformedCertificate},
		{"something else", xfcc.Element{Cert: "hello"}, xfcc.ErrMalformedCertificate},
		{"text before", xfcc.Element{Cert: "hello%0A" + escape(a)}, xfcc.ErrMalformedCertificate},
		{"text behind", xfcc.Element{Cert: escape(a) + "hello"}, xfcc.ErrMalformedCertificate},
		{"two in Cert", xfcc.Element{Cert: escape(a, b)}, xfcc.ErrMalformedCertificate},
		{"a key", xfcc.Element{Cert: url.PathEscape(key)}, xfcc.ErrMalformedCertificate},
		{"half a certificate", xfcc.Element{Cert: url.PathEscape(broken)}, xfcc.ErrMalformedCertificate},
		{"headers in PEM", xfcc.Element{Cert: url.PathEscape(headers)}, xfcc.ErrMalformedCertificate},
		{"a plus for a line break", xfcc.Element{Cert: strings.ReplaceAll(escape(a), "%0A", "+")}, xfcc.ErrMalformedCertificate},
		{"a plus before the dashes", xfcc.Element{Cert: "+" + escape(a)}, xfcc.ErrMalformedCertificate},
		{"a broken Chain", xfcc.Element{Cert: escape(a), Chain: "x"}, xfcc.ErrMalformedCertificate},
		{"a Chain without end", xfcc.Element{Cert: escape(a), Chain: strings.Repeat(escape(a), 11)}, xfcc.ErrMalformedCertificate},
		{"the Hash of another", xfcc.Element{Hash: hash(b), Cert: escape(a)}, xfcc.ErrHashMismatch},
		{"half a Hash", xfcc.Element{Hash: hash(a)[:32], Cert: escape(a)}, xfcc.ErrHashMismatch},
		{"a Hash that is not hex", xfcc.Element{Hash: "xyz", Cert: escape(a)}, xfcc.ErrHashMismatch},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := test.element.Certificates(); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
}

func newCertificate(tb testing.TB, name string) *x509.Certificate {
	tb.Helper()
	leaf, err := testpki.SelfSigned(name, testpki.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return leaf.TLS.Leaf
}

func text(certs ...*x509.Certificate) string {
	var text []byte
	for _, cert := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return string(text)
}

// escape escapes as nginx and Envoy do, also plus and equals signs.
func escape(certs ...*x509.Certificate) string {
	return strings.NewReplacer("+", "%2B", "=", "%3D", "/", "%2F", "\n", "%0A", " ", "%20").Replace(text(certs...))
}

func plusForSpace(cert *x509.Certificate) string { return strings.ReplaceAll(text(cert), " ", "+") }

func escapeAll(cert *x509.Certificate) string {
	var escaped strings.Builder
	for _, c := range []byte(text(cert)) {
		escaped.WriteString("%" + hex.EncodeToString([]byte{c}))
	}
	return escaped.String()
}

func hash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}
