package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// The CN and SAN of the runtimes' certificates. The control plane registers the same domains.
const (
	runtimeName     = "runtime-1"
	runtimeDomain   = "runtime-1.example.com"
	neighbour       = "runtime-2"
	neighbourDomain = "runtime-2.example.com"
)

// pki is a throw-away CA with its certificates. In production, use cert-manager.
type pki struct {
	ca *testpki.CA
	// operator is the certificate of the listener, and the CA that it trusts.
	operator *keys.Material
}

func newPKI() (*pki, error) {
	ca, err := testpki.NewCA("runtime-watcher-quickstart", testpki.Options{})
	if err != nil {
		return nil, err
	}
	leaf, err := ca.Server("operator", testpki.Options{})
	if err != nil {
		return nil, err
	}
	material, err := keys.NewMaterial(ca.PEM, leaf.CertPEM, leaf.KeyPEM)
	return &pki{ca, material}, err
}

// runtimeSecret issues one certificate for two uses: the identity of the runtime, and the webhook.
// They are the files ca.crt, tls.crt and tls.key of a folder.
func runtimeSecret(ca *testpki.CA, dir, name, domain string) (*testpki.Volume, error) {
	leaf, err := ca.Client(name, testpki.Options{
		DNSNames: []string{domain},
		IPs:      []net.IP{net.IPv4(127, 0, 0, 1)},
		Usages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	volume := testpki.NewVolume(dir)
	err = volume.Write(testpki.Files(leaf, ca))
	return volume, err
}

func (d *demo) issueCertificates(context.Context) (string, error) {
	if err := os.Mkdir(d.keys(), 0o700); err != nil {
		return "", err
	}
	var err error
	if d.pki, err = newPKI(); err != nil {
		return "", err
	}
	for _, r := range d.remotes {
		if r.secret, err = runtimeSecret(d.pki.ca, filepath.Join(d.keys(), r.name), r.name, r.domain); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("of a throw-away CA, for %s with the domain %s", runtimeName, runtimeDomain), nil
}
