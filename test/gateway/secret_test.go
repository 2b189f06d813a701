package gateway_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
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
	// leaf is the last valid one.
	leaf *testpki.Leaf
}

func newSecret(t *testing.T, swaps bool, issue func(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf,
	error),
) *secret {
	t.Helper()
	dir := t.TempDir()
	return &secret{t: t, dir: dir, issue: issue, swaps: swaps, volume: testpki.NewVolume(dir)}
}

// write replaces all with a new leaf of issuer, and a bundle.
func (s *secret) write(issuer *testpki.CA, trusts ...*testpki.CA) {
	s.t.Helper()
	s.leaf = must(s.issue(issuer, testpki.Options{}))
	s.replace(testpki.Files(s.leaf, trusts...))
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
