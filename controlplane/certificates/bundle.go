package certificates

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/keys"
)

// parseBundle returns the certificates in ca.crt of a Secret, none if there is no text. A CA that
// vanished from the bundle in silence would cut off its agents, so that a block is read, or named
// in an error or in the log.
func (c *Certificates) parseBundle(ctx context.Context, secret *corev1.Secret) ([]*x509.Certificate, error) {
	text := secret.Data[cmmeta.TLSCAKey]
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}

	key := client.ObjectKeyFromObject(secret)
	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("%s of Secret %s: %w", cmmeta.TLSCAKey, key, err)
	}

	c.logSkipped(ctx, key, bundle.Skipped)
	return bundle.Certificates, nil
}

// logSkipped logs a list once, and again when it changes: the Secrets are read again and again.
func (c *Certificates) logSkipped(ctx context.Context, key client.ObjectKey, skipped []string) {
	text := strings.Join(skipped, "\n")
	former, _ := c.skipped.Swap(key, text)
	if text != "" && former != text {
		c.opts.Logger.WarnContext(ctx, "PEM blocks in ca.crt of a Secret are skipped",
			slog.String("secret", key.String()), slog.Any("skipped", skipped))
	}
}

// first returns the first certificate that can be read. cert-manager repairs the others.
func first(text []byte) *x509.Certificate {
	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return nil
	}
	return bundle.Certificates[0]
}

func fingerprint(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}

func fingerprints(certificates []*x509.Certificate) []string {
	all := make([]string, len(certificates))
	for i, certificate := range certificates {
		all[i] = fingerprint(certificate)
	}
	return all
}

// compose has a stable order, so that an unchanged bundle has the same bytes.
func compose(published, authorities []*x509.Certificate, now time.Time) []*x509.Certificate {
	var bundle []*x509.Certificate
	for _, certificate := range slices.Concat(published, authorities) {
		known := slices.ContainsFunc(bundle, certificate.Equal)
		if !known && !now.After(certificate.NotAfter) {
			bundle = append(bundle, certificate)
		}
	}
	return bundle
}

func encode(certificates []*x509.Certificate) []byte {
	var text bytes.Buffer
	for _, certificate := range certificates {
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}) // Writes to memory do not fail.
	}
	return text.Bytes()
}

// signedBy compares key identifiers (RFC 5280, section 4.2.1.1), and verifies the signature where
// one of them is missing.
func signedBy(certificate, ca *x509.Certificate) bool {
	if len(certificate.AuthorityKeyId) > 0 && len(ca.SubjectKeyId) > 0 {
		return bytes.Equal(certificate.AuthorityKeyId, ca.SubjectKeyId)
	}
	return certificate.CheckSignatureFrom(ca) == nil
}

func trusted(certificate *x509.Certificate, bundle []*x509.Certificate) bool {
	return slices.ContainsFunc(bundle, func(ca *x509.Certificate) bool { return signedBy(certificate, ca) })
}
