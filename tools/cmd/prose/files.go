package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
)

// listFiles returns the files to check: Markdown, and Go code that is neither a test, nor
// generated, nor below test/. It lists the files that git tracks or would add.
func listFiles(ctx context.Context, paths []string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
		"--", "*.md", "*.go").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	var files []string
	for file := range strings.SplitSeq(strings.Trim(string(out), "\x00"), "\x00") {
		if checked(file) && below(file, paths) && !generated(file) {
			files = append(files, file)
		}
	}
	return files, nil
}

func checked(file string) bool {
	if strings.Contains("/"+file, "/testdata/") {
		return false
	}
	isTest := strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "test/")
	return strings.HasSuffix(file, ".md") || !isTest
}

func below(file string, paths []string) bool {
	isBelow := func(dir string) bool { return contains(path.Clean(dir), file) }
	return len(paths) == 0 || slices.ContainsFunc(paths, isBelow)
}

// contains reports whether the file is the path, or below it.
func contains(dir, file string) bool {
	return dir == "." || file == dir || strings.HasPrefix(file, dir+"/")
}

var generatedLine = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// generated also reports true for a file that git lists and that is deleted in the working tree.
func generated(file string) bool {
	source, err := os.ReadFile(file)
	return err != nil || strings.HasSuffix(file, ".go") && generatedLine.Match(source)
}
