package main

import (
	"context"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

// listFiles returns the files to check: Markdown, and Go code that is neither a test, nor
// generated, nor below test/. It lists the files that git tracks or would add.
func listFiles(ctx context.Context, paths []string) ([]string, error) {
	files, err := command.Files(ctx, ".", "*.md", "*.go")
	return slices.DeleteFunc(files, func(file string) bool {
		return !checked(file) || !below(file, paths) || generated(file)
	}), err
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

// generated also reports true for a file that cannot be read.
func generated(file string) bool {
	source, err := os.ReadFile(file)
	return err != nil || strings.HasSuffix(file, ".go") && generatedLine.Match(source)
}
