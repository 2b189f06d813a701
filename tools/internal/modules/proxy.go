package modules

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// Proxy is a folder that GOPROXY=file://... takes as a module proxy.
type Proxy struct{ dir string }

// NewProxy returns a proxy in dir, which is made when it is missing.
func NewProxy(dir string) *Proxy { return &Proxy{dir: dir} }

// URL is the value for GOPROXY.
func (p *Proxy) URL() string { return "file://" + filepath.ToSlash(p.dir) }

// Add packs the folder of a module at one version: its files, and the LICENSE of the repository.
// The bytes are those that the go command makes of a tag.
func (p *Proxy) Add(root string, m Module, version string, at time.Time) error {
	dir := filepath.Join(p.dir, filepath.FromSlash(m.Path), "@v")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	packed, err := pack(root, m, version)
	if err != nil {
		return fmt.Errorf("%s: %w", m.Dir, err)
	}
	mod, err := os.ReadFile(goMod(root, m.Dir))
	if err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": at.UTC()})
	if err != nil {
		return err
	}
	files := map[string][]byte{".zip": packed, ".mod": mod, ".info": info}
	for ending, content := range files {
		if err := os.WriteFile(filepath.Join(dir, version+ending), content, 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "list"), []byte(version+"\n"), 0o600)
}

func pack(root string, m Module, version string) ([]byte, error) {
	dir := filepath.Join(root, filepath.FromSlash(m.Dir))
	checked, err := zip.CheckDir(dir)
	if err != nil {
		return nil, err
	}
	files := []zip.File{file{"LICENSE", filepath.Join(root, "LICENSE")}}
	for _, disk := range checked.Valid {
		name, err := filepath.Rel(dir, disk)
		if err != nil {
			return nil, err
		}
		if name != "LICENSE" {
			files = append(files, file{filepath.ToSlash(name), disk})
		}
	}
	var packed bytes.Buffer
	err = zip.Create(&packed, module.Version{Path: m.Path, Version: version}, files)
	return packed.Bytes(), err
}

// file is a zip.File with a name in the module.
type file struct{ name, disk string }

func (f file) Path() string                 { return f.name }
func (f file) Lstat() (os.FileInfo, error)  { return os.Lstat(f.disk) }
func (f file) Open() (io.ReadCloser, error) { return os.Open(f.disk) }

// Sums returns the two lines of a go.sum for a packed module.
func (p *Proxy) Sums(m Module, version string) (string, error) {
	base := filepath.Join(p.dir, filepath.FromSlash(m.Path), "@v", version)
	content, err := dirhash.HashZip(base+".zip", dirhash.Hash1)
	if err != nil {
		return "", err
	}
	mod, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(base + ".mod") })
	return fmt.Sprintf("%s %s %s\n%[1]s %[2]s/go.mod %[4]s\n", m.Path, version, content, mod), err
}
