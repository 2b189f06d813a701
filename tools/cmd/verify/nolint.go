package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const linterConfig = ".golangci.yml"

// nolintDirective matches the list of linters of a directive.
var nolintDirective = regexp.MustCompile(`//nolint:([\w,]+)`)

// checkNolint fails if a directive names a linter that is not enabled. The linter nolintlint finds
// unused directives of enabled linters only.
func checkNolint(ctx context.Context, repo *repository) error {
	config, err := os.ReadFile(filepath.Join(repo.root, linterConfig))
	if err != nil {
		return err
	}
	files, err := repo.files(ctx, "*.go")
	if err != nil {
		return err
	}
	enabled := enabledLinters(string(config))
	var errs []error
	for _, name := range files {
		source, err := os.ReadFile(filepath.Join(repo.root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		errs = append(errs, staleDirectives(name, string(source), enabled)...)
	}
	return errors.Join(errs...)
}

// enabledLinters returns the list linters.enable of the linter's configuration.
func enabledLinters(config string) []string {
	_, rest, _ := strings.Cut(config, "\n  enable:\n")
	var enabled []string
	for line := range strings.Lines(rest) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "- ")
		switch {
		case ok:
			enabled = append(enabled, name)
		case !strings.HasPrefix(line, "    "):
			return enabled
		}
	}
	return enabled
}

func staleDirectives(name, source string, enabled []string) []error {
	var found []error
	number := 0
	for line := range strings.Lines(source) {
		number++
		match := nolintDirective.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		for linter := range strings.SplitSeq(match[1], ",") {
			if !slices.Contains(enabled, linter) {
				found = append(found, fmt.Errorf("%s:%d: nolint of %s, which is not enabled", name, number, linter))
			}
		}
	}
	return found
}
