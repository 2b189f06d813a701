package listener_test

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// authority is a throw-away CA.
type authority struct{ *testpki.CA }

// leaf is a certificate with its key.
type leaf struct{ *testpki.Leaf }

// must returns the value of a constructor of package testpki.
func must[T any](value T, err error) func(tb testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}

func newAuthority(tb testing.TB, name string) *authority {
	tb.Helper()
	return &authority{must(testpki.NewCA(name, testpki.Options{}))(tb)}
}

// intermediate returns a CA below a.
func (a *authority) intermediate(tb testing.TB, name string) *authority {
	tb.Helper()
	return &authority{must(a.Intermediate(name, testpki.Options{}))(tb)}
}

// client issues a certificate for a runtime; edits change the good template.
func (a *authority) client(tb testing.TB, name string, edits ...func(*x509.Certificate)) *leaf {
	tb.Helper()
	return &leaf{must(a.Client(name, testpki.Options{Edit: func(c *x509.Certificate) {
		for _, edit := range edits {
			edit(c)
		}
	}}))(tb)}
}

func (a *authority) roots() func() *x509.CertPool {
	pool := a.Pool()
	return func() *x509.CertPool { return pool }
}

// pair is the certificate without others of its chain.
func (l *leaf) pair() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{l.TLS.Leaf.Raw}, PrivateKey: l.TLS.PrivateKey, Leaf: l.TLS.Leaf}
}

// header is the header in which a gateway forwards the certificate.
func (l *leaf) header() string {
	return "Hash=" + fingerprint(l.TLS.Leaf) + `;Cert="` + escapedPEM(l.TLS.Leaf) + `";Subject="` + l.TLS.Leaf.Subject.String() + `";URI=`
}

func selfSigned(tb testing.TB, name string) *leaf {
	tb.Helper()
	return &leaf{must(testpki.SelfSigned(name, testpki.Options{}))(tb)}
}

func expired(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
}

func serverOnly(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }

func dnsNames(names ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.DNSNames = names }
}

func uri(tb testing.TB, text string) func(*x509.Certificate) {
	tb.Helper()
	parsed := must(url.Parse(text))(tb)
	return func(c *x509.Certificate) { c.URIs = append(c.URIs, parsed) }
}

func escapedPEM(certs ...*x509.Certificate) string {
	return strings.ReplaceAll(url.PathEscape(string(encodePEM(certs...))), "+", "%2B")
}

func encodePEM(certs ...*x509.Certificate) []byte {
	var text []byte
	for _, cert := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return text
}

func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}
