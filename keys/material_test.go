package keys_test

import (
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// Material has the chain, the validity and the fingerprints of its certificates.
func TestNewMaterial(t *testing.T) {
	t.Parallel()

	ca := must(testpki.NewCA("one", testpki.Options{}))
	other := must(testpki.NewCA("two", testpki.Options{}))
	intermediate := must(ca.Intermediate("intermediate", testpki.Options{}))
	leaf := must(intermediate.Client(runtime1, testpki.Options{}))

	got := material(t, leaf, ca, other)
	if len(got.RootFingerprints) != 2 || got.RootFingerprints[0] == got.RootFingerprints[1] ||
		len(got.Fingerprint) != 64 {
		t.Errorf("fingerprints %v and %q, want two different of the CAs, and one of the leaf",
			got.RootFingerprints, got.Fingerprint)
	}

	if !got.NotAfter.Equal(leaf.TLS.Leaf.NotAfter) || !got.NotBefore.Equal(leaf.TLS.Leaf.NotBefore) ||
		!got.RootsNotAfter.Equal(other.Certificate.NotAfter) {
		t.Error("the validity is not that of the certificates")
	}

	if len(got.Certificate.Certificate) != 2 || !got.Certificate.Leaf.Equal(leaf.TLS.Leaf) {
		t.Error("the chain is not leaf and intermediate")
	}
	if same := must(got.Material()); same != got {
		t.Error("a material is a source of itself")
	}
}

// The error names the faulty file and its problem, and contains no key material.
func TestNewMaterialRefuses(t *testing.T) {
	t.Parallel()

	past := time.Now().Add(-time.Minute)
	future := time.Now().Add(time.Hour)
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	oldCA := must(testpki.NewCA("old", testpki.Options{NotAfter: past}))
	leaf := must(ca.Client(runtime1, testpki.Options{}))
	other := must(ca.Client("other", testpki.Options{}))
	old := must(ca.Client(runtime1, testpki.Options{NotAfter: past}))
	early := must(ca.Client(runtime1, testpki.Options{NotBefore: future}))
	cas := ca.PEM
	cert := leaf.CertPEM
	key := leaf.KeyPEM

	garbage := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("garbage")})
	for name, tc := range map[string]struct {
		ca, cert, key []byte
		file, problem string
	}{
		"empty CA":            {[]byte("\n"), cert, key, "ca.crt", "empty"},
		"empty certificate":   {cas, []byte{}, key, "tls.crt", "empty"},
		"empty key":           {cas, cert, []byte{}, "tls.key", "empty"},
		"half a CA":           {cas[:len(cas)/2], cert, key, "ca.crt", "malformed"},
		"one and a half CAs":  {slices.Concat(cas, cas[:len(cas)/2]), cert, key, "ca.crt", "malformed"},
		"half a certificate":  {cas, cert[:len(cert)/2], key, "tls.crt", "malformed"},
		"half a key":          {cas, cert, key[:len(key)/2], "tls.key", "malformed"},
		"no PEM":              {[]byte("ca"), cert, key, "ca.crt", "malformed"},
		"garbage in PEM":      {garbage, cert, key, "ca.crt", "malformed"},
		"key as certificate":  {cas, key, key, "tls.crt", "malformed"},
		"certificate as key":  {cas, cert, cert, "tls.key", "malformed"},
		"key of another":      {cas, cert, other.KeyPEM, "tls.key", "mismatch"},
		"expired certificate": {cas, old.CertPEM, old.KeyPEM, "tls.crt", "expired"},
		"expired CA":          {oldCA.PEM, cert, key, "ca.crt", "expired"},
		"not yet valid":       {cas, early.CertPEM, early.KeyPEM, "tls.crt", "not_yet_valid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := keys.NewMaterial(tc.ca, tc.cert, tc.key)
			if err == nil || string(keys.ProblemOf(err)) != tc.problem || !strings.Contains(err.Error(), tc.file) {
				t.Errorf("have %v, want that %s is %s", err, tc.file, tc.problem)
			}
		})
	}

	for name, files := range map[string][3][]byte{
		"nothing": {}, "certificate without key": {cas, cert, nil}, "key without certificate": {cas, nil, key},
	} {
		if _, err := keys.NewMaterial(files[0], files[1], files[2]); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}

func TestExpiredCABesideAValidOneIsHarmless(t *testing.T) {
	t.Parallel()

	ca := must(testpki.NewCA("ca", testpki.Options{}))
	old := must(testpki.NewCA("old", testpki.Options{NotAfter: time.Now().Add(-time.Minute)}))
	for _, bundle := range [][]byte{
		testpki.Bundle(ca, old), testpki.Bundle(old, ca), append([]byte("# a comment\n"), ca.PEM...),
	} {
		if _, err := keys.NewMaterial(bundle, nil, nil); err != nil {
			t.Error(err)
		}
	}
}

func FuzzNewMaterial(f *testing.F) {
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	leaf := must(ca.Client(runtime1, testpki.Options{}))
	f.Add(ca.PEM, leaf.CertPEM, leaf.KeyPEM)
	f.Add(ca.PEM, []byte(nil), []byte(nil))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte("-----BEGIN "), []byte("x"))

	f.Fuzz(func(t *testing.T, ca, cert, key []byte) {
		got, err := keys.NewMaterial(ca, cert, key)
		if (got == nil) == (err == nil) {
			t.Fatalf("have %v and %v, want one of them", got, err)
		}
		if err == nil && got.Certificate != nil && got.Certificate.Leaf == nil {
			t.Error("a certificate without its leaf")
		}
	})
}
