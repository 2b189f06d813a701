// Package keys provides the key material of both sides of a connection: certificates, private keys
// and trusted CAs. It reloads them from files and makes the TLS configurations that use them.
//
// A [Source] is the port. [*Material] is one fixed generation, and [*Files] reads a mounted Secret
// repeatedly. The functions that return a [tls.Config] query the source at each handshake, so that
// new key material takes effect immediately and old connections stay open.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package keys

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Source is the port for key material.
type Source interface {
	// Material returns the current generation, in which the certificate and the CA bundle belong
	// together. The same pointer means that nothing has changed.
	//
	// Material is called concurrently and for each request, and must return immediately. It fails
	// only if there was never valid material.
	Material() (*Material, error)
}

// Material is one generation of key material. It is immutable, including everything to which it
// points. It is also a [Source] that returns itself, for certificates that never rotate.
type Material struct {
	// Certificate is the chain, leaf first, with its private key and the parsed Leaf. It may be nil
	// if there is a CA bundle.
	Certificate *tls.Certificate
	// Roots are the trusted CAs. They may be nil if there is a certificate.
	Roots *x509.CertPool

	// Fingerprint is the SHA-256 of the leaf's DER bytes in lower-case hex. It is empty without a
	// certificate.
	Fingerprint string
	// RootFingerprints are the fingerprints of the CAs, in the order of the bundle.
	RootFingerprints []string
	// NotBefore and NotAfter bound the validity of the leaf; zero without a certificate.
	NotBefore, NotAfter time.Time
	// RootsNotAfter is the time at which the last of the CAs expires; zero without a bundle.
	RootsNotAfter time.Time

	// Skipped names the complete PEM blocks that are not used, with their file, their line and the
	// reason: see [ParseBundle]. [Files] logs them. It is nil if every block is used.
	Skipped []string

	roots []*x509.Certificate // those in Roots
}

var _ Source = (*Material)(nil)

// Material returns m itself.
func (m *Material) Material() (*Material, error) {
	if m == nil {
		return nil, errNoMaterial
	}
	return m, nil
}

var errNoMaterial = errors.New("keys: no key material")

// NewMaterial parses PEM text, as in the keys ca.crt, tls.crt and tls.key of a Kubernetes Secret.
// It needs a CA bundle, a certificate with its key, or both, which must be valid now. If it refuses
// a PEM text, the error has a [Problem].
func NewMaterial(caPEM, certPEM, keyPEM []byte) (*Material, error) {
	paths := Paths{CA: fileOf(caPEM, "ca.crt"), Certificate: fileOf(certPEM, "tls.crt"), Key: fileOf(keyPEM, "tls.key")}
	if err := paths.validate(); err != nil {
		return nil, err
	}
	return parse(paths, snapshot{ca: caPEM, cert: certPEM, key: keyPEM}, time.Now())
}

func fileOf(content []byte, name string) string {
	if content == nil {
		return ""
	}
	return name
}

func parse(paths Paths, files snapshot, now time.Time) (*Material, error) {
	material := &Material{}
	if paths.CA != "" {
		if err := material.addRoots(paths, files); err != nil {
			return nil, err
		}
	}

	if paths.Certificate != "" {
		if err := material.addCertificate(paths, files); err != nil {
			return nil, err
		}
	}

	if err := material.checkValidity(paths, now); err != nil {
		return nil, err
	}

	return material, nil
}

// addRoots adds the whole bundle. An expired CA verifies nothing, so it may stay in the bundle.
func (m *Material) addRoots(paths Paths, files snapshot) error {
	bundle, err := parseBundle(paths.CA, files.ca)
	if err != nil {
		return err
	}

	m.Roots = x509.NewCertPool()
	m.roots = bundle.Certificates
	m.Skipped = append(m.Skipped, inFile(paths.CA, bundle.Skipped)...)
	for _, root := range m.roots {
		m.Roots.AddCert(root)
		m.RootFingerprints = append(m.RootFingerprints, fingerprint(root))
		if root.NotAfter.After(m.RootsNotAfter) {
			m.RootsNotAfter = root.NotAfter
		}
	}

	return nil
}

// addCertificate adds the chain and its key. They must belong together. The chain is not verified,
// because a CA bundle may be for the other end only.
func (m *Material) addCertificate(paths Paths, files snapshot) error {
	pair, skipped, err := parsePair(paths.Certificate, files.cert, paths.Key, files.key)
	if err != nil {
		return err
	}

	m.Certificate = &pair
	m.Fingerprint = fingerprint(pair.Leaf)
	m.NotBefore = pair.Leaf.NotBefore
	m.NotAfter = pair.Leaf.NotAfter
	m.Skipped = append(m.Skipped, skipped...)

	return nil
}

// checkValidity leaves now out of its error, so that equal failures have equal texts and are
// reported once.
func checkValidity(file string, certificate *x509.Certificate, now time.Time) error {
	switch {
	case now.After(certificate.NotAfter):
		return &materialError{file: file, problem: ProblemExpired, err: fmt.Errorf(
			"%.64q expired at %s", certificate.Subject.CommonName, stamp(certificate.NotAfter))}
	case now.Before(certificate.NotBefore):
		return &materialError{file: file, problem: ProblemNotYetValid, from: certificate.NotBefore, err: fmt.Errorf(
			"%.64q is valid from %s", certificate.Subject.CommonName, stamp(certificate.NotBefore))}
	default:
		return nil
	}
}

// checkValidity returns an error when the certificate, or each CA of the bundle, is invalid at now.
// Of several invalid CAs, a CA that will be valid decides the error.
func (m *Material) checkValidity(paths Paths, now time.Time) (err error) {
	if m.Certificate != nil {
		if err := checkValidity(paths.Certificate, m.Certificate.Leaf, now); err != nil {
			return err
		}
	}

	for _, root := range m.roots {
		problem := checkValidity(paths.CA, root, now)
		if problem == nil {
			return nil
		}
		if err == nil || !validFrom(problem).IsZero() {
			err = problem
		}
	}
	return err
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func fingerprint(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}
