package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
)

// What the runtime's certificate says. The domain is also registered in the control plane: the SAN is pinned to it.
const (
	runtimeName   = "runtime-1"
	runtimeDomain = "runtime-1.example.com"
)

// pki is a throw-away certificate authority and what it has issued. In production cert-manager does this.
type pki struct {
	ca *testpki.CA
	// operator is what the listener serves with, and the CA that it trusts.
	operator *httpmtls.Material
	// runtime is the secret that is mounted into the agent: ca.crt, tls.crt and tls.key.
	runtime *testpki.Volume
}

func newPKI(dir string) (*pki, error) {
	ca, err := testpki.NewCA("runtime-watcher-quickstart", testpki.Options{})
	if err != nil {
		return nil, err
	}

	operator, err := operatorMaterial(ca)
	if err != nil {
		return nil, err
	}

	runtime, err := runtimeSecret(ca, dir)
	if err != nil {
		return nil, err
	}

	return &pki{ca: ca, operator: operator, runtime: runtime}, nil
}

func operatorMaterial(ca *testpki.CA) (*httpmtls.Material, error) {
	leaf, err := ca.Server("operator", testpki.Options{})
	if err != nil {
		return nil, err
	}

	key, err := leaf.KeyPEM()
	if err != nil {
		return nil, err
	}

	return httpmtls.NewMaterial(ca.PEM(), leaf.CertPEM(), key)
}

// runtimeSecret issues one certificate for both: the runtime's identity in the control plane, and the agent's webhook.
func runtimeSecret(ca *testpki.CA, dir string) (*testpki.Volume, error) {
	leaf, err := ca.Client(runtimeName, testpki.Options{
		DNSNames: []string{runtimeDomain},
		IPs:      []net.IP{net.IPv4(127, 0, 0, 1)},
		Usages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, err
	}

	files, err := testpki.Files(leaf, ca)
	if err != nil {
		return nil, err
	}

	volume := testpki.NewVolume(dir)

	if err := volume.Write(files); err != nil {
		return nil, err
	}

	return volume, nil
}

func (s *scene) issueCertificates(context.Context) (string, error) {
	if err := os.Mkdir(s.keys(), 0o700); err != nil {
		return "", err
	}

	var err error
	if s.pki, err = newPKI(s.keys()); err != nil {
		return "", err
	}

	return fmt.Sprintf("from a throw-away CA: for %s, whose domain is %s", runtimeName, runtimeDomain), nil
}
