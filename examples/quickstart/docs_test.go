package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents are what users read.
func documents(t *testing.T) []string {
	t.Helper()

	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(paths) == 0 {
		t.Fatalf("found %v and %v in docs", paths, err)
	}

	return append(paths, "../../README.md", "../../SECURITY.md")
}

func TestLinksLeadSomewhere(t *testing.T) {
	links := 0

	for _, path := range documents(t) {
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(read(t, path), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}

			links++

			target, anchor, _ := strings.Cut(link[1], "#")
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), target)); err != nil || anchor != "" {
				t.Errorf("%s: the link %s leads nowhere, or to an anchor that is not checked: %v", path, link[1], err)
			}
		}
	}

	if links == 0 {
		t.Error("there are no links")
	}
}

// A claim that names a test which is not there any more proves nothing.
func TestTestsThatAreNamedExist(t *testing.T) {
	there, named := testsOf(t, "../.."), 0

	for _, path := range documents(t) {
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(read(t, path), -1) {
			named++

			if !there[name] {
				t.Errorf("%s names %s, which is no test", path, name)
			}
		}
	}

	if named == 0 {
		t.Error("no tests are named")
	}
}

func testsOf(t *testing.T, root string) map[string]bool {
	t.Helper()

	tests, declared := make(map[string]bool), regexp.MustCompile(`(?m)^func (Test\w+)\(`)

	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "bin" || entry.Name() == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}

		for _, name := range declared.FindAllStringSubmatch(read(t, path), -1) {
			tests[name[1]] = true
		}

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	return tests
}
