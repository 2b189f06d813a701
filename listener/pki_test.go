package listener_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/listener"
)

// authority is a throw-away CA.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// leaf is a certificate with its key.
type leaf struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// others are shown behind the certificate.
	others []*leaf
}

func newAuthority(tb testing.TB, name string) *authority {
	tb.Helper()
	template := caTemplate(name)
	key := newKey(tb)
	return &authority{cert: sign(tb, template, template, key, key), key: key}
}

// intermediate returns a CA below a.
func (a *authority) intermediate(tb testing.TB, name string) *authority {
	tb.Helper()
	key := newKey(tb)
	return &authority{cert: sign(tb, caTemplate(name), a.cert, key, a.key), key: key}
}

// client issues a certificate for a runtime; edits change the good template.
func (a *authority) client(tb testing.TB, name string, edits ...func(*x509.Certificate)) *leaf {
	tb.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(tb),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, edit := range edits {
		edit(template)
	}
	key := newKey(tb)
	return &leaf{cert: sign(tb, template, a.cert, key, a.key), key: key}
}

// server issues a certificate for 127.0.0.1.
func (a *authority) server(tb testing.TB) *leaf {
	tb.Helper()
	return a.client(tb, "listener", serverOnly, func(c *x509.Certificate) {
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	})
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func (a *authority) roots() listener.RootsFunc {
	pool := a.pool()
	return func() *x509.CertPool { return pool }
}

func (l *leaf) pair(chain ...*authority) tls.Certificate {
	pair := tls.Certificate{Certificate: [][]byte{l.cert.Raw}, PrivateKey: l.key, Leaf: l.cert}
	for _, ca := range chain {
		pair.Certificate = append(pair.Certificate, ca.cert.Raw)
	}
	for _, other := range l.others {
		pair.Certificate = append(pair.Certificate, other.cert.Raw)
	}
	return pair
}

// header is the header in which a gateway forwards the certificate.
func (l *leaf) header() string {
	return "Hash=" + fingerprint(l.cert) + `;Cert="` + escapedPEM(l.cert) + `";Subject="` + l.cert.Subject.String() + `";URI=`
}

func selfSigned(tb testing.TB, name string) *leaf {
	tb.Helper()
	template := caTemplate(name)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	key := newKey(tb)
	return &leaf{cert: sign(tb, template, template, key, key), key: key}
}

func expired(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
}

func notYetValid(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
}

func serverOnly(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }

func dnsNames(names ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.DNSNames = names }
}

func uri(tb testing.TB, text string) func(*x509.Certificate) {
	tb.Helper()
	parsed, err := url.Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
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

func caTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-24 * time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

func sign(tb testing.TB, template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) *x509.Certificate {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return cert
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func serial(tb testing.TB) *big.Int {
	tb.Helper()
	number, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		tb.Fatal(err)
	}
	return number
}
