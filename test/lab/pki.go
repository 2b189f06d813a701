// Package lab puts the real parts together for tests: API servers, certificates, the agent as a
// process, an operator with a listener, and the webhook configuration between them.
package lab

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// PKI makes the certificates of a test.
type PKI struct {
	CA *testpki.CA

	t testing.TB
}

// NewPKI returns a throw-away certificate authority.
func NewPKI(t testing.TB) *PKI {
	t.Helper()
	ca := Must(testpki.NewCA("runtime-watcher test", testpki.Options{}))
	return &PKI{CA: ca, t: t}
}

// RuntimeVolume returns a volume with the secret of a runtime's agent: its client certificate,
// which is also the certificate of the webhook.
func (p *PKI) RuntimeVolume(runtime, domain string) *testpki.Volume {
	p.t.Helper()
	return p.Volume(Must(RuntimeLeaf(p.CA, runtime, domain)))
}

// RuntimeLeaf issues the certificate of a runtime's agent.
func RuntimeLeaf(ca *testpki.CA, runtime, domain string) (*testpki.Leaf, error) {
	return ca.Client(runtime, testpki.Options{DNSNames: []string{domain, "localhost"}, IPs: loopback(), Usages: BothUsages()})
}

// Volume returns a volume with a leaf and the CA.
func (p *PKI) Volume(leaf *testpki.Leaf) *testpki.Volume {
	p.t.Helper()

	volume := testpki.NewVolume(p.t.TempDir())
	NoError(p.t, volume.Write(testpki.Files(leaf, p.CA)))
	return volume
}

// ServerMaterial returns the key material of a listener.
func (p *PKI) ServerMaterial() *keys.Material {
	p.t.Helper()
	return Material(Must(p.CA.Server("listener", testpki.Options{})), p.CA)
}

// Material returns the key material of a leaf, with the bundle of cas.
func Material(leaf *testpki.Leaf, cas ...*testpki.CA) *keys.Material {
	return Must(keys.NewMaterial(testpki.Bundle(cas...), leaf.CertPEM, leaf.KeyPEM))
}
