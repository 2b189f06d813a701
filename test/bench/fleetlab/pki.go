package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// serverName is the name in the certificate of the operator.
const serverName = "localhost"

// trust is a CA bundle that all runtimes share.
type trust struct {
	pool         *x509.CertPool
	fingerprints []string
}

func newTrust(cas ...*testpki.CA) *trust {
	t := &trust{pool: x509.NewCertPool()}
	for _, ca := range cas {
		t.pool.AddCert(ca.Certificate())
		t.fingerprints = append(t.fingerprints, fingerprint(ca.Certificate()))
	}
	return t
}

func fingerprint(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}

// keySet is the key material of one runtime. It implements [keys.Source].
type keySet struct {
	present atomic.Pointer[keys.Material]
}

// Material returns the present generation.
func (k *keySet) Material() (*keys.Material, error) { return k.present.Load(), nil }

// issue replaces the certificate by a new one of ca, with the domain of the runtime.
func (k *keySet) issue(ca *testpki.CA, name string, t *trust) error {
	leaf, err := ca.Client(name, testpki.Options{DNSNames: []string{domain(name)}})
	if err != nil {
		return err
	}
	certificate := leaf.TLS()
	k.store(&certificate, t)
	return nil
}

// trusting keeps the certificate, and replaces the CA bundle.
func (k *keySet) trusting(t *trust) { k.store(k.present.Load().Certificate, t) }

func (k *keySet) store(certificate *tls.Certificate, t *trust) {
	leaf := certificate.Leaf
	k.present.Store(&keys.Material{
		Certificate: certificate, Roots: t.pool, Fingerprint: fingerprint(leaf), RootFingerprints: t.fingerprints,
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, RootsNotAfter: leaf.NotAfter,
	})
}

func domain(name string) string { return name + ".example.com" }
