package consumer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/dirhash"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

// copySources copies the files that git knows, or would add.
func copySources(ctx context.Context, root, to string) error {
	names, err := command.Files(ctx, root)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := copyFile(filepath.Join(root, filepath.FromSlash(name)), filepath.Join(to, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
	}
	return nil
}

// copyFile does nothing for a file that is not regular.
func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600)
}

// copyFolder copies the files below a folder.
func copyFolder(from, to string) error {
	return fs.WalkDir(os.DirFS(from), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return copyFile(filepath.Join(from, name), filepath.Join(to, name))
	})
}

// hashOf returns 12 hexadecimal digits of the content of a folder.
func hashOf(dir string) (string, error) {
	const digits = 12
	hash, err := dirhash.HashDir(dir, "", dirhash.Hash1)
	return fmt.Sprintf("%x", sha256.Sum256([]byte(hash)))[:digits], err
}
