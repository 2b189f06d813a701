package node

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// volume is what a container sees of a Secret, as a kubelet makes it: each file is a link through ..data into a directory of one
// generation, and a change swaps that one link.
type volume struct {
	dir   string
	mode  os.FileMode
	group int // of all of it; -1 is that of this process

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

// write does nothing when nothing has changed, which it reports.
func (v *volume) write(files map[string][]byte) (changed bool, err error) {
	if v.written != nil && maps.EqualFunc(v.written, files, bytes.Equal) {
		return false, nil
	}

	if err := v.replace(files); err != nil {
		return false, fmt.Errorf("volume: %w", err)
	}

	return true, nil
}

// replace goes in the order of a kubelet: the new content, then names for what is new, then those that are gone.
func (v *volume) replace(files map[string][]byte) error {
	before := v.generation

	generation, err := v.fill(files)
	if err != nil {
		return err
	}

	if err := os.Symlink(generation, v.path(dataTmpLink)); err != nil {
		return err
	}

	if err := os.Rename(v.path(dataTmpLink), v.path(dataLink)); err != nil {
		return err
	}

	if err := v.names(files); err != nil {
		return err
	}

	v.generation, v.written = generation, maps.Clone(files)

	if before == "" {
		return nil
	}

	return os.RemoveAll(v.path(before))
}

func (v *volume) path(name string) string { return filepath.Join(v.dir, name) }

func (v *volume) fill(files map[string][]byte) (generation string, err error) {
	dir, err := os.MkdirTemp(v.dir, "..generation_")
	if err != nil {
		return "", err
	}

	if err := v.own(dir, 0o755); err != nil {
		return "", err
	}

	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return "", err
		}

		if err := v.own(path, v.mode); err != nil {
			return "", err
		}
	}

	return filepath.Base(dir), nil
}

// own is apart from the creation, which a mask of the process bends.
func (v *volume) own(path string, mode os.FileMode) error {
	if err := os.Chown(path, -1, v.group); err != nil {
		return err
	}

	return os.Chmod(path, mode)
}

func (v *volume) names(files map[string][]byte) error {
	for name := range files {
		if err := os.Symlink(filepath.Join(dataLink, name), v.path(name)); err != nil && !os.IsExist(err) {
			return err
		}
	}

	for _, name := range slices.Sorted(maps.Keys(v.written)) {
		if _, kept := files[name]; kept {
			continue
		}

		if err := os.Remove(v.path(name)); err != nil {
			return err
		}
	}

	return nil
}
