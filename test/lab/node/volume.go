package node

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
)

// volume holds the files of a Secret or a ConfigMap as a kubelet does: each is a link through ..data into the
// directory of one generation. A change swaps that one link.
type volume struct {
	dir    string
	mode   os.FileMode
	group  int // of all of it; -1 is that of this process
	secret bool
	// read returns the files that it should have.
	read func() (map[string][]byte, error)

	written    map[string][]byte
	generation string
}

const (
	dataLink    = "..data"
	dataTmpLink = "..data_tmp"
)

func newVolume(dir string, mode os.FileMode, group int) (*volume, error) {
	v := &volume{dir: dir, mode: mode, group: group}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return v, os.Chown(dir, -1, group)
}

// write replaces the files, and reports whether they have changed.
func (v *volume) write(files map[string][]byte) (changed bool, err error) {
	if v.written != nil && maps.EqualFunc(v.written, files, bytes.Equal) {
		return false, nil
	}
	if err := v.replace(files); err != nil {
		return false, fmt.Errorf("volume: %w", err)
	}
	return true, nil
}

// replace goes in the order of a kubelet: the new files, then the swap, then the names.
func (v *volume) replace(files map[string][]byte) error {
	before := v.generation
	generation, err := v.fill(files)
	if err != nil {
		return err
	}

	err = errors.Join(os.Symlink(generation, v.path(dataTmpLink)), os.Rename(v.path(dataTmpLink), v.path(dataLink)))
	for name := range files {
		if linked := os.Symlink(filepath.Join(dataLink, name), v.path(name)); !os.IsExist(linked) {
			err = errors.Join(err, linked)
		}
	}

	for name := range v.written {
		if _, kept := files[name]; !kept {
			err = errors.Join(err, os.Remove(v.path(name)))
		}
	}

	v.generation, v.written = generation, maps.Clone(files)
	if err != nil || before == "" {
		return err
	}

	return os.RemoveAll(v.path(before))
}

func (v *volume) path(name string) string { return filepath.Join(v.dir, name) }

func (v *volume) fill(files map[string][]byte) (generation string, err error) {
	dir, err := os.MkdirTemp(v.dir, "..generation_")
	if err != nil {
		return "", err
	}

	err = v.own(dir, 0o755)
	for name, content := range files {
		path := filepath.Join(dir, name)
		err = errors.Join(err, os.WriteFile(path, content, 0o600), v.own(path, v.mode))
	}

	return filepath.Base(dir), err
}

// own sets group and mode. The umask would change a mode that is set at creation.
func (v *volume) own(path string, mode os.FileMode) error {
	return errors.Join(os.Chown(path, -1, v.group), os.Chmod(path, mode))
}
