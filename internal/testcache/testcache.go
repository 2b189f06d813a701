// Package testcache makes the cache of go test notice changes outside of the module of a test: of
// programs that the test compiles, and of documents that it reads.
//
// The go command repeats a test if a file has changed that the test opened or examined, but it
// ignores paths outside of the module. It compares paths as strings. A path that begins with the
// folder of the module and continues with ".." therefore counts, if no function shortens the path.
package testcache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Path returns a path to the same file that go test notices. Pass it to os.ReadFile, os.Open or
// os.Stat as it is, because [filepath.Join] and [filepath.Clean] shorten it. Outside of a module,
// Path returns path unchanged.
func Path(path string) string {
	module, err := moduleFolder()
	if err != nil {
		return path
	}

	absolute, err := filepath.Abs(path)
	if err != nil {
		return path
	}

	relative, err := filepath.Rel(module, absolute)
	if err != nil {
		return path
	}

	return module + string(filepath.Separator) + relative
}

// NoticeSources makes go test repeat the test if a program changes that is compiled from the
// folders. It ignores tests, Markdown, and folders named bin or testdata.
func NoticeSources(folders ...string) error {
	return notice(folders, func(path string) bool {
		return !strings.HasSuffix(path, "_test.go") && filepath.Ext(path) != ".md"
	})
}

// NoticeFiles makes go test repeat the test if a file changes, appears or disappears in one of the
// folders or below. A path may also name a single file.
func NoticeFiles(paths ...string) error {
	return notice(paths, func(string) bool { return true })
}

// notice examines each folder and each file that matters, by a path that go test compares.
func notice(paths []string, matters func(path string) bool) error {
	for _, path := range paths {
		err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			isSkipped := entry.Name() == "bin" || entry.Name() == "testdata"
			if entry.IsDir() && isSkipped {
				return fs.SkipDir
			}
			if !matters(path) {
				return nil
			}

			_, err = os.Stat(Path(path))
			return err
		})
		if err != nil {
			return fmt.Errorf("cache of go test: %w", err)
		}
	}
	return nil
}

// moduleFolder returns the folder of the module that contains the working directory, which is the
// folder of the package in a test.
func moduleFolder() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}

	for {
		if exists(filepath.Join(folder, "go.mod")) {
			return folder, nil
		}

		parent := filepath.Dir(folder)
		if parent == folder {
			return "", errors.New("no go.mod in the working directory or above")
		}

		folder = parent
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
