package simulation

import (
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
)

// serverName is the name of the control plane.
const serverName = "control-plane.example.com"

// pki is the key material of all schedules: keys are costly, and virtual time begins in 2000.
type pki struct {
	ca     *testpki.CA
	server *httpmtls.Material

	mu      sync.Mutex
	clients map[string]*httpmtls.Material
}

// newPKI makes the key material outside of a bubble, where time is real.
func newPKI() (*pki, error) {
	ca, err := testpki.NewCA("simulation", validity())
	if err != nil {
		return nil, err
	}

	opts := validity()
	opts.DNSNames = []string{serverName}

	leaf, err := ca.Server("control plane", opts)
	if err != nil {
		return nil, err
	}

	material, err := materialOf(ca, leaf)

	return &pki{ca: ca, server: material, clients: make(map[string]*httpmtls.Material)}, err
}

func validity() testpki.Options {
	return testpki.Options{
		NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:  time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

func materialOf(ca *testpki.CA, leaf *testpki.Leaf) (*httpmtls.Material, error) {
	key, err := leaf.KeyPEM()
	if err != nil {
		return nil, err
	}

	return httpmtls.NewMaterial(ca.PEM(), leaf.CertPEM(), key)
}

// domainOf is the registered domain of a runtime.
func domainOf(runtime string) string { return runtime + ".skr.example.com" }

// client returns the key material of a runtime.
func (p *pki) client(runtime string) (*httpmtls.Material, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if material := p.clients[runtime]; material != nil {
		return material, nil
	}

	opts := validity()
	opts.DNSNames = []string{domainOf(runtime)}
	opts.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}

	leaf, err := p.ca.Client(runtime, opts)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", runtime, err)
	}

	material, err := materialOf(p.ca, leaf)
	p.clients[runtime] = material

	return material, err
}
