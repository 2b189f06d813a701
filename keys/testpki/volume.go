package testpki

import (
	"fmt"
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
// through ..data to the directory of one generation. A new generation replaces that one link, so
// that all files change at the same instant.
type Volume struct {
	dir string

	mu sync.Mutex
}

// NewVolume returns the volume in dir, which must exist.
func NewVolume(dir string) *Volume { return &Volume{dir: dir} }

// Path returns the path of the file of that name, which need not exist.
func (v *Volume) Path(name string) string { return filepath.Join(v.dir, name) }

// Paths returns the paths of the three files of [Files].
func (v *Volume) Paths() (ca, cert, key string) {
	return v.Path(fileCA), v.Path(fileCert), v.Path(fileKey)
}

// Write replaces the whole content of the volume. It is safe for concurrent use.
func (v *Volume) Write(files map[string][]byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.write(files); err != nil {
		return fmt.Errorf("write secret volume: %w", err)
	}
	return nil
}

func (v *Volume) write(files map[string][]byte) error {
	old, _ := os.Readlink(v.Path(dataLink)) // None before the first generation.
	generation, err := v.writeGeneration(files)
	if err != nil {
		return err
	}
	if err := v.swap(generation); err != nil {
		return err
	}
	if err := v.link(files); err != nil {
		return err
	}
	if old == "" {
		return nil
	}
	return os.RemoveAll(v.Path(old))
}

// writeGeneration writes the files into a new directory, and returns its name.
func (v *Volume) writeGeneration(files map[string][]byte) (string, error) {
	dir, err := os.MkdirTemp(v.dir, "..generation_")
	if err != nil {
		return "", err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return "", err
		}
	}
	return filepath.Base(dir), nil
}

// swap replaces the link to the present generation in one step.
func (v *Volume) swap(generation string) error {
	next := v.Path(dataLink + "_tmp")
	if err := os.Symlink(generation, next); err != nil {
		return err
	}
	return os.Rename(next, v.Path(dataLink))
}

// link makes the visible names, and removes those without a file.
func (v *Volume) link(files map[string][]byte) error {
	for name := range files {
		err := os.Symlink(filepath.Join(dataLink, name), v.Path(name))
		if err != nil && !os.IsExist(err) {
			return err
		}
	}

	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}

	for _, entry := range entries {
		if _, keep := files[entry.Name()]; keep || entry.Name()[0] == '.' {
			continue
		}
		if err := os.Remove(v.Path(entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
