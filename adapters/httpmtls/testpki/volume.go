package testpki

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// The names of the files, which are the keys of a Kubernetes secret as cert-manager writes it.
const (
	FileCA   = "ca.crt"
	FileCert = "tls.crt"
	FileKey  = "tls.key"
)

const (
	dataLink    = "..data"
	dataTmpLink = "..data_tmp"
)

// Files returns the content of a secret: the bundle of cas, and leaf with its key.
func Files(leaf *Leaf, cas ...*CA) (map[string][]byte, error) {
	key, err := leaf.KeyPEM()
	if err != nil {
		return nil, err
	}

	return map[string][]byte{FileCA: Bundle(cas...), FileCert: leaf.CertPEM(), FileKey: key}, nil
}

// Volume is a directory in which files appear as a kubelet presents a secret: each is a symbolic link through ..data to a
// directory of one generation, and a new generation swaps that one link, so that all files change at the same instant.
type Volume struct {
	dir string

	mu sync.Mutex
}

// NewVolume returns the volume of dir, which must exist.
func NewVolume(dir string) *Volume { return &Volume{dir: dir} }

// Path returns where the file of that name is, or will be.
func (v *Volume) Path(name string) string { return filepath.Join(v.dir, name) }

// Paths returns where the three files of [Files] are.
func (v *Volume) Paths() (ca, cert, key string) {
	return v.Path(FileCA), v.Path(FileCert), v.Path(FileKey)
}

// Write replaces the whole content of the volume in one atomic step. It is safe for concurrent use.
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

func (v *Volume) swap(generation string) error {
	if err := os.Symlink(generation, v.Path(dataTmpLink)); err != nil {
		return err
	}

	return os.Rename(v.Path(dataTmpLink), v.Path(dataLink))
}

// link makes the names that a user sees, and takes away those that are gone.
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

	keep := slices.Collect(maps.Keys(files))

	for _, entry := range entries {
		if entry.Name()[0] == '.' || slices.Contains(keep, entry.Name()) {
			continue
		}

		if err := os.Remove(v.Path(entry.Name())); err != nil {
			return err
		}
	}

	return nil
}
