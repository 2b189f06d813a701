package gateway_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
)

// secret is key material in files, as one end of a connection mounts it.
type secret struct {
	t     *testing.T
	dir   string
	issue func(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error)
	// swaps means that the files change all at once, as a kubelet changes a volume; else each is
	// renamed into its place, one after the other.
	swaps  bool
	volume *testpki.Volume
	// leaf is the last good one.
	leaf *testpki.Leaf
}

func newSecret(t *testing.T, swaps bool, issue func(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf,
	error)) *secret {
	t.Helper()
	dir := t.TempDir()
	return &secret{t: t, dir: dir, issue: issue, swaps: swaps, volume: testpki.NewVolume(dir)}
}

// write replaces all with a new leaf of issuer, and a bundle.
func (s *secret) write(issuer *testpki.CA, trusts ...*testpki.CA) {
	s.t.Helper()
	s.leaf = must(s.issue(issuer, testpki.Options{}))
	s.replace(must(testpki.Files(s.leaf, trusts...)))
}

// breakages are what can be wrong with files, with the word that metrics have for it.
var breakages = []struct {
	name, problem string
	spoil         func(s *secret, files map[string][]byte, issuer *testpki.CA)
}{
	{"half-written", "malformed", func(_ *secret, files map[string][]byte, _ *testpki.CA) {
		files[testpki.FileKey] = files[testpki.FileKey][:len(files[testpki.FileKey])/2]
	}},
	{"empty", "empty", func(_ *secret, files map[string][]byte, _ *testpki.CA) { files[testpki.FileCert] = nil }},
	{"expired", "expired", func(s *secret, files map[string][]byte, issuer *testpki.CA) {
		leaf := must(s.issue(issuer, testpki.Options{NotAfter: time.Now().Add(-time.Minute)}))
		files[testpki.FileCert], files[testpki.FileKey] = leaf.CertPEM(), must(leaf.KeyPEM())
	}},
	{"mismatched key", "mismatch", func(s *secret, files map[string][]byte, issuer *testpki.CA) {
		files[testpki.FileKey] = must(must(s.issue(issuer, testpki.Options{})).KeyPEM())
	}},
	{"garbage", "malformed", func(_ *secret, files map[string][]byte, _ *testpki.CA) {
		files[testpki.FileCA] = bytes.Repeat([]byte("garbage "), 100)
	}},
}

// spoil replaces all with something of which a part is broken.
func (s *secret) spoil(spoil func(*secret, map[string][]byte, *testpki.CA), issuer *testpki.CA, trusts ...*testpki.CA) {
	s.t.Helper()
	files := must(testpki.Files(must(s.issue(issuer, testpki.Options{})), trusts...))
	spoil(s, files, issuer)
	s.replace(files)
}

func (s *secret) replace(files map[string][]byte) {
	s.t.Helper()
	if s.swaps {
		if err := s.volume.Write(files); err != nil {
			s.t.Fatal(err)
		}
		return
	}

	for name, content := range files {
		next := filepath.Join(s.dir, name+".next")
		if err := os.WriteFile(next, content, 0o600); err != nil {
			s.t.Fatal(err)
		}

		if err := os.Rename(next, filepath.Join(s.dir, name)); err != nil {
			s.t.Fatal(err)
		}
	}
}
