package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

// documents returns the paths of the documents for users.
func documents(t *testing.T) []string {
	t.Helper()
	test.NoticeDocuments(t)

	paths := []string{}
	err := filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil || len(paths) == 0 {
		t.Fatalf("found %v and %v in docs", paths, err)
	}
	return append(paths, "../../README.md", "../../SECURITY.md", "../../CONTRIBUTING.md", "../../CHANGELOG.md")
}

func TestLinksLeadSomewhere(t *testing.T) {
	links := 0
	for _, path := range documents(t) {
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(prose(t, path), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			links++
			target, anchor, _ := strings.Cut(link[1], "#")
			if target = filepath.Join(filepath.Dir(path), target); strings.HasPrefix(link[1], "#") {
				target = path
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads nowhere: %v", path, link[1], err)
			} else if anchor != "" && !slices.Contains(anchors(t, target), anchor) {
				t.Errorf("%s: the link %s leads to no heading", path, link[1])
			}
		}
	}
	if links == 0 {
		t.Error("there are no links")
	}
}

// prose returns a document without its blocks of code.
func prose(t *testing.T, path string) string {
	t.Helper()
	return regexp.MustCompile("(?s)```.*?```").ReplaceAllString(read(t, path), "")
}

// anchors returns the anchors of the headings of a document, as GitHub makes them.
func anchors(t *testing.T, path string) (all []string) {
	t.Helper()
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(prose(t, path), -1) {
		plain := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(plain, " ", "-"))
	}
	return all
}

// TestNamesExist holds that documents name tests, metrics, targets of make and names of packages that exist.
func TestNamesExist(t *testing.T) {
	packages := map[string]string{} // Source by the name of the folder.
	var all strings.Builder
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && (entry.Name() == "bin" || entry.Name() == ".git") {
			return filepath.SkipDir
		} else if filepath.Ext(path) == ".go" {
			packages[filepath.Base(filepath.Dir(path))] += read(t, path)
			all.WriteString(read(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	makefile := read(t, "../../Makefile")
	metrics := read(t, "../../docs/reference/metrics.md")
	named := 0
	for _, path := range documents(t) {
		for _, metric := range regexp.MustCompile(`runtime_watcher_\w+[a-z]\b`).FindAllString(read(t, path), -1) {
			if !strings.Contains(metrics, regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(metric, "")) {
				t.Errorf("%s names %s, which is no metric", path, metric)
			}
		}
		names := regexp.MustCompile(`\bTest[A-Z]\w*|` + "`make [a-z-]+|`" + `[a-z]+(\.[A-Z]\w+)+`)
		for _, name := range names.FindAllString(read(t, path), -1) {
			named++
			target, isTarget := strings.CutPrefix(name, "`make ")
			folder, exported, isExported := strings.Cut(strings.Trim(name, "`"), ".")
			exported = strings.ReplaceAll(exported, ".", `\b(?s:.*)\b`)
			switch {
			case isTarget && !matches(`(?m)^`+target+`\b.*:`, makefile):
				t.Errorf("%s names make %s, which is no target", path, target)
			case isExported && (packages[folder] == "" || strings.Contains(path, "decisions")): // It may be a former name.
			case isExported && !matches(`\b`+exported+`\b`, packages[folder]):
				t.Errorf("%s names %s`, which the package does not have", path, name)
			case !isTarget && !isExported && !strings.Contains(all.String(), "\nfunc "+name+"("):
				t.Errorf("%s names %s, which is no test", path, name)
			}
		}
	}
	if named < 100 {
		t.Errorf("%d names are found, want more", named)
	}
}
