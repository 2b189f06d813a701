package simulation

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// serverName is the name of the control plane.
const serverName = "control-plane.example.com"

// pki is the key material of all schedules: keys are costly, and virtual time begins in 2000.
type pki struct {
	older, newer *testpki.CA
	servers      map[*testpki.CA]*testpki.Leaf
	webhook      *keys.Material // of all agents
	store        string         // folder of NATS servers

	mu      sync.Mutex
	clients map[holder]*testpki.Leaf
}

// holder is a runtime and the authority of its certificate.
type holder struct {
	runtime string
	ca      *testpki.CA
}

// newPKI makes the key material outside of a bubble, where time is real.
func newPKI() (*pki, error) {
	p := &pki{servers: make(map[*testpki.CA]*testpki.Leaf), clients: make(map[holder]*testpki.Leaf)}
	for _, ca := range []**testpki.CA{&p.older, &p.newer} {
		made, err := testpki.NewCA("simulation", validity())
		if err != nil {
			return nil, err
		}
		opts := validity()
		opts.DNSNames = []string{serverName}
		*ca = made
		if p.servers[made], err = made.Server("control plane", opts); err != nil {
			return nil, err
		}
	}
	opts := validity()
	opts.DNSNames = []string{"agent"}
	leaf, err := p.older.Server("agent", opts)
	if err != nil {
		return nil, err
	}
	p.webhook, err = materialOf(leaf)
	return p, err
}

// apiServer returns the configuration of an API server that calls a webhook.
func (p *pki) apiServer() *tls.Config {
	return &tls.Config{RootCAs: p.older.Pool(), ServerName: "agent", MinVersion: tls.VersionTLS13}
}

func validity() testpki.Options {
	return testpki.Options{
		NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:  time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

// domainOf is the registered domain of a runtime.
func domainOf(runtime string) string { return runtime + ".skr.example.com" }

// client returns the certificate of a runtime.
func (p *pki) client(runtime string, ca *testpki.CA) (*testpki.Leaf, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := holder{runtime, ca}
	if leaf := p.clients[key]; leaf != nil {
		return leaf, nil
	}
	leaf, err := issue(runtime, ca, validity())
	p.clients[key] = leaf
	return leaf, err
}

func issue(runtime string, ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error) {
	opts.DNSNames = []string{domainOf(runtime)}
	opts.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	leaf, err := ca.Client(runtime, opts)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", runtime, err)
	}
	return leaf, nil
}

// clientKeys returns the first key material of a runtime.
func (p *pki) clientKeys(runtime string) (*keys.Material, error) {
	leaf, err := p.client(runtime, p.older)
	if err != nil {
		return nil, err
	}
	return materialOf(leaf, p.older)
}

func materialOf(leaf *testpki.Leaf, trusted ...*testpki.CA) (*keys.Material, error) {
	return keys.NewMaterial(testpki.Bundle(trusted...), leaf.CertPEM, leaf.KeyPEM)
}
