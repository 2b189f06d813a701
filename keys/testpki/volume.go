package testpki

import (
	"os"
	"path/filepath"
	"sync"
)

// The names of the files: the keys of a Kubernetes Secret that cert-manager writes.
const (
	fileCA   = "ca.crt"
	fileCert = "tls.crt"
	fileKey  = "tls.key"
)

const dataLink = "..data"

// Files returns the content of a Secret: the bundle of cas, and leaf with its key.
func Files(leaf *Leaf, cas ...*CA) map[string][]byte {
	return map[string][]byte{fileCA: Bundle(cas...), fileCert: leaf.CertPEM, fileKey: leaf.KeyPEM}
}

// Volume is a directory with files as a kubelet presents a Secret. Each file is a symbolic link
// through ..data to the directory of one generation. A new generation replaces that link, so that
// all files change at the same instant.
type Volume struct {
	dir string

	mu sync.Mutex
}

// NewVolume returns the volume in dir, which must exist.
func NewVolume(dir string) *Volume { return &Volume{dir: dir} }

// Path returns the path of the file with that name, which need not exist.
func (v *Volume) Path(name string) string { return filepath.Join(v.dir, name) }

// Paths returns the paths of the three files of [Files].
func (v *Volume) Paths() (ca, cert, key string) {
	return v.Path(fileCA), v.Path(fileCert), v.Path(fileKey)
}

// Write replaces the whole content of the volume. The path of a file that was removed becomes a
// dangling link. Write is safe for concurrent use.
func (v *Volume) Write(files map[string][]byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()

	old, _ := os.Readlink(v.Path(dataLink)) // None before the first generation.
	dir, err := os.MkdirTemp(v.dir, "..generation_")
	if err != nil {
		return err
	}

	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}

	next := v.Path(dataLink + "_tmp")
	if err := os.Symlink(filepath.Base(dir), next); err != nil {
		return err
	}
	if err := os.Rename(next, v.Path(dataLink)); err != nil {
		return err
	}

	for name := range files {
		if err := os.Symlink(filepath.Join(dataLink, name), v.Path(name)); err != nil && !os.IsExist(err) {
			return err
		}
	}

	if old == "" {
		return nil
	}

	return os.RemoveAll(v.Path(old))
}
